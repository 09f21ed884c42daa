"""Kernel specs of the shapes that tests of config policies ask about, and the first config of each."""

from __future__ import annotations

from ferrite_runtime.devices.descriptors import DeviceFacts, known_devices
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.candidates import configs
from runtime_kernels import grid_axis, reduction_axis, row_softmax, row_sum, spec, tensor

H200 = known_devices()["h200"]


def first(mapping: dict, device: DeviceFacts = H200, **extra) -> Config:
    return configs(KernelSpec.from_mapping(mapping), device, "none", **extra)[0]


def tiles(
    rows: int = 4096, columns: int = 4096, points: int = 4096, products: int = 1, width: int = 2, **limits: int
) -> KernelSpec:
    """Returns the spec of a product of matrices that is computed tile by tile."""
    extents = {"y": rows, "x": columns, "r": points}
    axes = [
        {**(reduction_axis(points) if name == "r" else grid_axis(name, size)), "max_block": limits.get(name, 256)}
        for name, size in extents.items()
    ]
    params = [tensor("in_ptr", "bf16"), tensor("out_ptr", "bf16", access="write")]
    facts = {"product": products, "left_bytes": width, "right_bytes": width * products}
    return KernelSpec.from_mapping(spec("a", "", params, axes, form="tiled_contraction", facts=facts))


def outer(rows: int, columns: int, form: str = "looped") -> dict:
    mapping = row_sum(rows, columns)
    return spec(
        "outer",
        "",
        mapping["params"],
        mapping["axes"],
        form=form,
        facts={**mapping["facts"], "contiguous_axis": "x"},
    )


def outer_of(dtype: str, points: int, rows: int, form: str, **facts: object) -> dict:
    """Returns columns of another type, with other facts; those of a persistent kernel are held whole."""
    mapping = outer(points, rows, form)
    params = [{**param, "dtype": dtype} for param in mapping["params"]]
    blocks = {"RBLOCK": rows} if form == "persistent" else {}
    return spec("outer", "", params, mapping["axes"], form=form, blocks=blocks, facts={**mapping["facts"], **facts})


def in_runs(rows: int, columns: int) -> dict:
    mapping = row_softmax(rows, columns)
    facts = {**mapping["facts"], "chunk": 64, "live_values": 6}
    return spec("chunks", "", mapping["params"], mapping["axes"], form="row_column", facts=facts)
