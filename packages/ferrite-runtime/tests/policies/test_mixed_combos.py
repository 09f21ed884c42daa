"""Specs of mixed combos: what their parts say, how blocks are chosen for each, and that they run."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ferrite_runtime.devices.descriptors import known_devices
from ferrite_runtime.engines.size_buckets import BucketedKernel
from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.canonical_json import kernel_id
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.blocks import misfit
from ferrite_runtime.policies.candidates import configs, interpreter_config, launch_bytes
from ferrite_runtime.policies.coordinate_descent import neighbours
from ferrite_runtime.policies.prediction import predict
from ferrite_runtime.policies.resources import foresee_problem
from runtime_kernels import grid_axis, reduction_axis, row_facts, spec, tensor

H200 = known_devices()["h200"]


def loop_part(number: int, size: Any, hint: int | None = None) -> dict[str, Any]:
    hint = size if hint is None else hint
    return {
        "form": "pointwise",
        "copies": 1,
        "params": [f"in{number}", f"out{number}"],
        "axes": [grid_axis("x", size, hint=hint)],
        "blocks": {},
        "grid": ["ceildiv", "x", "XBLOCK"],
        "facts": {
            "bytes": 8 * hint,
            "element_bytes": 4,
            "contiguous_axis": "x",
            "numel": hint,
            "loads": 1,
            "stores": 1,
        },
    }


def rows_part(number: int, rows: Any, columns: int, hint: int | None = None) -> dict[str, Any]:
    count = rows if hint is None else hint
    block = 1 << (columns - 1).bit_length()
    return {
        "form": "persistent",
        "copies": 1,
        "params": [f"in{number}", f"out{number}"],
        "axes": [grid_axis("x", rows, hint=count), reduction_axis(columns, max_block=block)],
        "blocks": {"RBLOCK": block},
        "grid": ["ceildiv", "x", "XBLOCK"],
        "facts": {**row_facts(count, columns, 1), "bytes": 4 * count * (columns + 1)},
    }


def columns_part(number: int, columns: int, points: int) -> dict[str, Any]:
    part = rows_part(number, columns, points)
    axes = [grid_axis("x", columns), reduction_axis(points)]
    return {**part, "form": "looped", "axes": axes, "blocks": {}, "facts": {**part["facts"], "contiguous_axis": "x"}}


def combo(*parts: dict[str, Any], sizes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the spec of a mixed combo of such parts; it has no text."""
    axes = [
        {**axis, "name": f"{axis['name']}_{k}", "block": f"{axis['block']}_{k}"}
        for k, part in enumerate(parts)
        for axis in part["axes"]
    ]
    grids = [["ceildiv", f"x_{k}", f"XBLOCK_{k}"] for k in range(len(parts))]
    params = [tensor(name, access="write" if name[0] == "o" else "read") for part in parts for name in part["params"]]
    params += [{"name": name, "role": "size", "dtype": "i32", "hint": 1000} for name in sizes]
    total = sum(part["facts"]["bytes"] for part in parts)
    reductions = sum(part["facts"].get("reductions", 0) for part in parts)
    return spec(
        "k",
        "",
        params,
        axes,
        form="mixed_combo",
        blocks={f"{name}_{k}": block for k, part in enumerate(parts) for name, block in part["blocks"].items()},
        grid=["add", *grids],
        facts={"bytes": total, "element_bytes": 4, "reductions": reductions},
        parts=list(parts),
    )


TWO = combo(rows_part(0, 64, 1000), loop_part(1, 5000))


def test_it_is_read_and_written() -> None:
    kernel = KernelSpec.from_mapping(TWO)
    assert kernel.to_mapping() == TWO
    rows, points = kernel.alone
    assert (rows.form, points.form) == ("persistent", "pointwise")
    assert [param.name for param in rows.params] == ["in0", "out0"]
    assert [axis.name for axis in rows.axes] == ["x", "r"]
    assert kernel.of_part({"x_0": 64, "r_0": 1000, "x_1": 5000}, 1) == {"x": 5000}
    assert kernel.programs({}, {"XBLOCK_0": 2, "XBLOCK_1": 512}) == 32 + 10


def test_another_kernel_is_alone() -> None:
    kernel = KernelSpec.from_mapping(spec("k", "", [tensor("a")], [grid_axis("x", 8)]))
    assert kernel.alone == (kernel,)
    assert kernel.of_part({"x": 8}, 0) == {"x": 8}


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("axes", 0, "size"), 65, "axes"),
        (("axes", 2, "block"), "XBLOCK_2", "axes"),
        (("blocks", "RBLOCK_0"), 512, "blocks"),
        (("parts", 1, "params", 0), "in7", "parts[1].params"),
        (("parts", 0, "copies"), 0, "parts[0].copies"),
        (("parts", 0, "form"), "grid_reduction", "parts[0].form"),
        (("parts", 0, "facts", "parts"), 2, "parts[0].facts.parts"),
    ],
)
def test_what_does_not_fit_together_is_refused(path: tuple[Any, ...], value: Any, told: str) -> None:
    changed = copy.deepcopy(TWO)
    *outer, last = path
    place = changed
    for step in outer:
        place = place[step]
    place[last] = value
    if path[0] == "axes" and path[2] == "block":
        changed["grid"] = ["add", ["ceildiv", "x_0", "XBLOCK_0"], ["ceildiv", "x_1", value]]
    changed["id"] = kernel_id(changed)
    with pytest.raises(SpecError) as error:
        KernelSpec.from_mapping(changed)
    assert told in str(error.value)


def test_only_mixed_combos_have_parts() -> None:
    plain = spec("k", "", [tensor("a")], [grid_axis("x", 8)], parts=[loop_part(0, 8)])
    with pytest.raises(SpecError, match="parts"):
        KernelSpec.from_mapping(plain)


def test_each_part_has_blocks_of_its_own_and_all_have_as_many_warps() -> None:
    kernel = KernelSpec.from_mapping(combo(rows_part(0, 64, 8192), rows_part(1, 4096, 64), loop_part(2, 1 << 20)))
    found = configs(kernel, H200, "full")
    assert {name for name, _ in found[0].blocks} == {"XBLOCK_0", "XBLOCK_1", "XBLOCK_2"}
    alone = [configs(part, H200, "none")[0] for part in kernel.alone]
    assert found[0].num_warps == max(config.num_warps for config in alone)
    assert found[0].block("XBLOCK_0") == alone[0].block("XBLOCK")
    assert found[0].block("XBLOCK_1") >= alone[1].block("XBLOCK")
    assert len({config.num_warps for config in found}) > 1
    assert all(not misfit(kernel, config, kernel.hint_sizes()) for config in found)
    assert all(foresee_problem(kernel, config, H200, kernel.hint_sizes()) is None for config in found)


def test_small_parts_do_not_decide_about_warps() -> None:
    large, small = rows_part(0, 4096, 256), rows_part(1, 1, 1024)
    kernel = KernelSpec.from_mapping(combo(large, small))
    first = configs(kernel, H200, "none")[0]
    assert first.num_warps == configs(kernel.alone[0], H200, "none")[0].num_warps


def test_parts_do_not_fill_the_device_one_by_one() -> None:
    alone = KernelSpec.from_mapping(combo(*(loop_part(k, 1 << 16) for k in range(2)))).alone[0]
    kernel = KernelSpec.from_mapping(combo(*(loop_part(k, 1 << 16) for k in range(32))))
    assert configs(alone, H200, "none")[0].block("XBLOCK") < configs(kernel, H200, "none")[0].block("XBLOCK_0")


def test_columns_of_small_launches_take_more_rows_at_once_if_nothing_else_is_computed_meanwhile() -> None:
    kernel = KernelSpec.from_mapping(combo(columns_part(0, 6400, 186), columns_part(1, 6400, 185)))
    assert configs(kernel.alone[0], H200, "none")[0].block("RBLOCK") == 128
    assert configs(kernel, H200, "none")[0].block("RBLOCK_0") == 32


def test_the_interpreter_gets_a_program_for_each_part() -> None:
    kernel = KernelSpec.from_mapping(TWO)
    config = interpreter_config(kernel, kernel.hint_sizes())
    assert kernel.programs({}, dict(config.blocks)) == 2


def test_a_config_fits_if_it_fits_each_part() -> None:
    kernel = KernelSpec.from_mapping(TWO)
    assert not misfit(kernel, Config.of({"XBLOCK_0": 1, "XBLOCK_1": 128}, 4), kernel.hint_sizes())
    assert "XBLOCK" in misfit(kernel, Config.of({"XBLOCK_0": 1}, 4), kernel.hint_sizes())
    too_wide = Config.of({"XBLOCK_0": 64, "XBLOCK_1": 128}, 1)
    assert "registers" in str(foresee_problem(kernel, too_wide, H200, kernel.hint_sizes()))


def test_bytes_and_time_are_those_of_all_parts() -> None:
    kernel = KernelSpec.from_mapping(TWO)
    each = [launch_bytes(part, H200) for part in kernel.alone]
    assert launch_bytes(kernel, H200) == sum(filter(None, each))
    apart = sum(predict(part, H200).seconds for part in kernel.alone)
    together = predict(kernel, H200).seconds
    assert max(predict(part, H200).memory for part in kernel.alone) < together < apart


def test_only_warps_are_searched() -> None:
    kernel = KernelSpec.from_mapping(TWO)
    assert neighbours(kernel, H200, configs(kernel, H200, "none")[0], kernel.hint_sizes()) == ()


def test_a_launch_with_one_empty_part_is_not_idle() -> None:
    kernel = KernelSpec.from_mapping(combo(loop_part(0, "n0", 100), loop_part(1, "n1", 100), sizes=("n0", "n1")))
    bucketed = BucketedKernel(kernel, None)  # type: ignore[arg-type]  # nothing is compiled
    assert not bucketed.is_idle_at({"n0": 0, "n1": 5})
    assert bucketed.is_idle_at({"n0": 0, "n1": 0})
