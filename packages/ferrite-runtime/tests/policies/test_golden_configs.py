"""The configs that PyTorch's compiler would measure, row by row: each is among ours, or a reason says why not.

"Among ours" means with full effort. What runs without tuning is the subject of `test_row_configs.py` and the like:
first choices come from measurements (benchmarks/RESULTS.md), and differ from the first entry of most of these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ferrite_runtime.devices.descriptors import known_devices
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import spec_forms
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.candidates import configs, wider_configs
from runtime_kernels import grid_axis, pointwise, row_softmax, row_sum, spec, tensor

H200 = known_devices()["h200"]
Row = tuple[str, dict[str, Any], tuple[tuple[tuple[int, ...], int], ...]]


def tiled(**sizes: int) -> dict[str, Any]:
    axes = [grid_axis(name, size) for name, size in sizes.items()]
    return spec("t", "", [tensor("a"), tensor("b", access="write")], axes, facts={"element_bytes": 4})


def crowded(rows: int, columns: int) -> dict[str, Any]:
    mapping = row_sum(rows, columns)
    facts = {**mapping["facts"], "loads": 10}
    return spec("crowded", "", mapping["params"], mapping["axes"], form="looped", facts=facts)


# Blocks in the order x, y, z or x, r (x alone where the row is held whole), and warps.
MET: tuple[Row, ...] = (
    ("pointwise x=1", pointwise("a", size=1), (((1,), 1),)),
    ("pointwise x=128", pointwise("a", size=128), (((128,), 4),)),
    ("pointwise x=4096", pointwise("a", size=4096), (((256,), 4), ((128,), 4))),
    ("pointwise x=65536", pointwise("a", size=65536), (((512,), 4), ((256,), 4))),
    ("pointwise x=2^20", pointwise("a", size=1 << 20), (((1024,), 4), ((512,), 8))),
    ("pointwise x=2^28", pointwise("a", size=1 << 28), (((1024,), 4), ((512,), 8))),
    (
        "2-D 1024x1024",
        tiled(x=1024, y=1024),
        (((32, 32), 4), ((64, 64), 8), ((256, 16), 8), ((16, 256), 8), ((1024, 1), 4), ((1, 1024), 4)),
    ),
    ("2-D 16x4096", tiled(x=16, y=4096), (((16, 64), 4), ((16, 256), 8), ((16, 32), 4), ((1, 512), 4))),
    ("2-D 65536x2", tiled(x=65536, y=2), (((512, 2), 4), ((2048, 2), 8), ((1024, 1), 4))),
    (
        "3-D 64^3",
        tiled(x=64, y=64, z=64),
        (
            ((16, 16, 16), 8),
            ((64, 8, 8), 8),
            ((8, 64, 8), 8),
            ((8, 8, 64), 8),
            ((64, 16, 1), 4),
            ((16, 64, 1), 4),
            ((16, 1, 64), 4),
        ),
    ),
    (
        "reduction 4096x4096",
        row_sum(4096, 4096),
        (((1, 2048), 16), ((64, 8), 4), ((64, 64), 16), ((8, 512), 16), ((64, 4), 8)),
    ),
    (
        "reduction 4096x4096, register intensive",
        crowded(4096, 4096),
        (((1, 1024), 8), ((64, 8), 4), ((64, 64), 16), ((8, 512), 16), ((64, 4), 8)),
    ),
    ("reduction 4096x256", row_sum(4096, 256), (((1, 256), 2), ((2, 256), 4), ((64, 64), 16), ((16, 256), 16))),
    ("reduction 4096x128", row_sum(4096, 128), (((16, 128), 16), ((4, 128), 4), ((32, 128), 16))),
    ("reduction 1x2^20", row_sum(1, 1 << 20), (((1, 2048), 16), ((1, 512), 4), ((1, 4096), 16), ((1, 256), 8))),
    ("reduction 2^20x8", row_sum(1 << 20, 8), (((256, 8), 16), ((64, 8), 4), ((512, 8), 16))),
    ("persistent 4096x64", row_softmax(4096, 64), (((1,), 2), ((8,), 4), ((32,), 8))),
    ("persistent 4096x256", row_softmax(4096, 256), (((1,), 2), ((8,), 8), ((2,), 4))),
    ("persistent 4096x1024", row_softmax(4096, 1024), (((1,), 8),)),
    ("persistent 1x1024", row_softmax(1, 1024), (((1,), 8),)),
)

NOT_MET = {
    "pointwise x=2^34 and more": (
        "the wider blocks there come from counting threads against a limit that is on programs: 2^34 elements in "
        "blocks of 1024 are 2^24 programs of 2^31 possible, so the usual blocks do (and 2^35 and more do not fail)"
    ),
    "reduction 2^30x64": (
        "the same limit makes the block of x grow until that of r shrinks to 4; ours stay what they are for 2^20 rows"
    ),
    "2-D 1x65536": "an axis of one point is no axis: the kernel is flat, and gets the flat rows",
    "min 8 elements/thread": "no kernel of ours asks for a minimum: vector width is in the first choice of blocks",
    "one element per thread (hints)": "quarter blocks with a warp per 32 elements come out of the descent, if they pay",
    "warps clamp": "warps follow from elements and live values per thread (`Shape.fit`), bounded by the device",
    "grid_reduction": (
        "a long reduction that nothing follows is split in two kernels, whose tables are those above; where programs "
        "hold parts of a row and wait for each other the text fixes the parts, and there is one config"
    ),
    "split scan": (
        "the scheduler splits a long scan into parts, their totals and their sums, kernels of the tables above and of "
        "the form `scan`; none looks back at what another program of its launch has done"
    ),
    "foreach and combo": "no spec has a branch on the program id; sequences of small kernels start by one native call",
}


def block_names(mapping: Mapping[str, Any]) -> list[str]:
    return [axis["block"] for axis in mapping["axes"] if axis["block"] not in mapping["blocks"]]


@pytest.mark.parametrize(("name", "mapping", "expected"), MET, ids=[row[0] for row in MET])
def test_row_is_met(name: str, mapping: dict[str, Any], expected: tuple[tuple[tuple[int, ...], int], ...]) -> None:
    kernel = KernelSpec.from_mapping(mapping)
    ours = (*configs(kernel, H200, "full"), *wider_configs(kernel, H200))
    assert len(set(ours)) == len(ours)
    names = block_names(mapping)
    for blocks, warps in expected:
        wanted = Config.of(dict(zip(names, blocks, strict=True)), warps)
        assert wanted in ours, f"{name}: {wanted} is not among {[str(config) for config in ours]}"


def test_rows_that_are_not_met_say_why() -> None:
    assert all(len(reason) > 40 for reason in NOT_MET.values())
    huge = KernelSpec.from_mapping(pointwise("a", size=1 << 35))
    for config in (*configs(huge, H200, "full"), *wider_configs(huge, H200)):
        assert huge.programs({}, dict(config.blocks)) < 1 << 31
    tall = KernelSpec.from_mapping(row_sum(1 << 30, 64))
    deep = {config.block("RBLOCK") for config in (*configs(tall, H200, "full"), *wider_configs(tall, H200))}
    assert max(deep) == 64


GRIDS = (
    # x size and block, programs: the grid has one axis, whatever the sizes (docs/decisions/0001).
    (1000, 256, 4),
    (1000, 1, 1000),
    (0, 256, 0),
)


@pytest.mark.parametrize(("size", "block", "programs"), GRIDS)
def test_grid_rows(size: int, block: int, programs: int) -> None:
    assert KernelSpec.from_mapping(pointwise("a", size=size)).programs({}, {"XBLOCK": block}) == programs


@pytest.mark.parametrize(("y", "x"), [(70000, 33), (131072, 1), (200000, 1)])
def test_no_row_is_beyond_a_grid_of_one_axis(y: int, x: int) -> None:
    """Where a second axis of a grid ends at 65535, ours has nothing to spread, and no slot to mask."""
    grid = ["mul", ["ceildiv", "x", "XBLOCK"], ["ceildiv", "y", "YBLOCK"]]
    axes = [grid_axis("x", x), grid_axis("y", y)]
    kernel = KernelSpec.from_mapping(spec("t", "", [tensor("a")], axes, grid=grid))
    assert kernel.is_flat
    assert kernel.programs({}, {"XBLOCK": 32, "YBLOCK": 1}) == -(-x // 32) * y


@pytest.mark.parametrize("form", [form for form in spec_forms() if form != "mixed_combo"])
def test_forms_without_a_table_have_what_their_writers_and_policies_list(form: str) -> None:
    fixed = {"XBLOCK": 128} if form in ("template", "sort") else {}
    extra = {"configs": [{"blocks": {"XBLOCK": 64}, "num_warps": 2, "num_stages": 1}]} if form == "user" else {}
    extra |= {"facts": {"threads": 128}} if form == "register_norm" else {}
    kernel = KernelSpec.from_mapping(pointwise("a", size=1 << 20, form=form, blocks=fixed, **extra))
    wider = wider_configs(kernel, H200)
    assert bool(wider) == (form in ("pointwise", "combo", "persistent", "row_column")), (
        "a looped one needs an axis to reduce"
    )
    if form == "user":
        assert configs(kernel, H200, "full") == kernel.configs
