"""First configs of reductions over rows: how many rows and threads a program has."""

from __future__ import annotations

import pytest

from ferrite_runtime.devices.descriptors import typical_device
from ferrite_runtime.formats.canonical_json import kernel_id
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from ferrite_runtime.policies.blocks import misfit
from ferrite_runtime.policies.candidates import configs, next_power_of_two
from policy_cases import H200, first, in_runs
from runtime_kernels import grid_axis, reduction_axis, row_softmax, row_sum, shared_softmax, spec, tensor


def test_rows_of_two_matrices_of_halves_are_reduced_with_a_vector_two_at_a_time() -> None:
    def of(rows: int, dtype: str = "bf16", vectors: int = 1, matrices: int = 2) -> Config:
        mapping = row_softmax(rows, 4096)
        size = {"bf16": 2, "i8": 1}[dtype]
        params = [tensor("in_ptr", dtype), tensor("out_ptr", "bf16", access="write")]
        facts = {**mapping["facts"], "element_bytes": size, "live_values": 2, "bytes": rows * 4096 * 2}
        facts |= {"vectors": vectors, "loads": vectors + matrices} if vectors else {}
        blocks = {"form": "persistent", "blocks": mapping["blocks"]}
        return first(spec("a", "", params, mapping["axes"], facts=facts, **blocks))

    assert of(14336) == Config.of({"XBLOCK": 2}, 4)
    assert of(14336, matrices=1) == of(14336, vectors=0)
    assert of(256) == of(256, vectors=0)
    assert of(14336, "i8") == of(14336, "i8", vectors=0)
    assert of(14336, vectors=0) == Config.of({"XBLOCK": 1}, 8)


@pytest.mark.parametrize(
    ("rows", "columns", "block", "warps"),
    [
        (65536, 64, 32, 4),
        (1 << 18, 33, 8, 1),  # longer than what a warp reads at once, of which one holds 16 elements to a thread
        (65536, 33, 8, 1),
        (48947, 47, 8, 1),  # too few programs for the device otherwise
        (20879, 47, 16, 8),  # too few of half as many rows, too
        (65536, 100, 16, 4),
        (65536, 333, 2, 1),
        (1 << 16, 256, 4, 1),
        (4096, 256, 4, 8),
        (4096, 1024, 1, 2),
        (4096, 768, 1, 2),
        (4, 1024, 1, 4),
        (4096, 4096, 1, 8),
        (4096, 16384, 1, 32),
        (4, 256, 1, 2),
    ],
)
def test_persistent_rows(rows: int, columns: int, block: int, warps: int) -> None:
    assert first(row_softmax(rows, columns)) == Config.of({"XBLOCK": block}, warps)


def test_what_is_only_reduced_is_so_at_any_size() -> None:
    """The bytes that a spec states are of the sizes that are expected."""
    size = {"name": "n", "role": "size", "dtype": "i64", "hint": 1024}
    axes = [{**grid_axis("x", 1024), "size": "n", "hint": 1024}, reduction_axis(33)]
    params = [tensor("a"), tensor("b", access="write"), size]
    facts = {"contiguous_axis": "r", "bytes": 2 * 1024 * 33 * 4, "live_values": 1, "stores": 1}
    mapping = spec("a", "", params, axes, form="persistent", blocks={"RBLOCK": 64}, facts=facts)
    kernel = KernelSpec.from_mapping(mapping)
    (config,) = configs(kernel, H200, "none", {"x": 1 << 20, "r": 33})
    assert config == Config.of({"XBLOCK": 8}, 1), "as many to a thread as of what is stored, too"


def test_one_row_is_spread_over_more_threads_where_rows_are_few() -> None:
    assert first(row_softmax(4, 1024)).num_warps > first(row_softmax(4096, 1024)).num_warps


@pytest.mark.parametrize(("dtype", "warps"), [("bf16", [4, 8]), ("f32", [8, 4])])
def test_rows_that_leave_much_of_their_tile_empty_try_fewer_threads(dtype: str, warps: list[int]) -> None:
    """Of halves they take fewer at first: as measured."""
    mapping = row_softmax(16384, 3000)
    params = [{**param, "dtype": dtype} for param in mapping["params"]]
    facts = {**mapping["facts"], "element_bytes": 2 if dtype == "bf16" else 4, "bytes": 3 << 26}
    kernel = KernelSpec.from_mapping(spec("rows", "", params, mapping["axes"], form="persistent", facts=facts))
    assert [config.num_warps for config in configs(kernel, H200, "max")][:2] == warps


@pytest.mark.parametrize(("written", "warps"), [("f8e4m3fn", [4, 8]), ("bf16", [8, 16])])
def test_quantised_rows_try_fewer_threads(written: str, warps: list[int]) -> None:
    mapping = row_softmax(16384, 4096)
    params = [{**param, "dtype": written if param["access"] == "write" else "bf16"} for param in mapping["params"]]
    facts = {**mapping["facts"], "element_bytes": 2, "bytes": 3 << 26}
    kernel = KernelSpec.from_mapping(spec("rows", "", params, mapping["axes"], form="persistent", facts=facts))
    assert [config.num_warps for config in configs(kernel, H200, "max")][:2] == warps


@pytest.mark.parametrize(
    ("dtype", "size", "block", "warps"),
    [
        ("bf16", 1 << 17, 16384, 32),
        ("bf16", 50304, 8192, 32),  # no more lanes past the end than needed
        ("bf16", 49152, 16384, 32),
        ("bf16", 16000, 4096, 8),
        ("f32", 49152, 8192, 32),
        ("f32", 12288, 4096, 32),
        ("f32", 10000, 4096, 32),
        ("f32", 8000, 2048, 8),
        # between vectors of 16 bytes
        ("f32", 12130, 2048, 8),
        ("f32", 12131, 2048, 8),
        ("f32", 16383, 8192, 32),
        ("f32", 20001, 8192, 32),
    ],
)
def test_rows_that_are_read_again_are_few_at_a_time(dtype: str, size: int, block: int, warps: int) -> None:
    mapping = row_sum(4096, size)
    params = [{**param, "dtype": dtype} for param in mapping["params"]]
    facts = {"passes": 2, "element_bytes": 2 if dtype == "bf16" else 4, "contiguous_axis": "r"}
    again = spec("again", "", params, mapping["axes"], form="looped", facts=facts)
    assert first(again) == Config.of({"XBLOCK": 1, "RBLOCK": block}, warps)


@pytest.mark.parametrize(
    ("rows", "row", "flops", "block", "warps"),
    [
        (8192, 256, 10, 8, 8),  # a million threads would have two elements each
        (1 << 20, 256, 10, 8, 1),
        (256, 256, 10, 1, 2),  # one row: as many as are worth to combine
        (6656, 128, 200, 16, 16),
        (1024, 128, 200, 2, 4),  # of what takes long two elements are enough
    ],
)
def test_small_launches_have_more_warps(rows: int, row: int, flops: int, block: int, warps: int) -> None:
    mapping = row_softmax(rows, row)
    facts = {**mapping["facts"], "flops": flops * rows * row, "element_bytes": 4, "bytes": rows * row * 4}
    kernel = spec("a", "", mapping["params"], mapping["axes"], form="persistent", blocks={"RBLOCK": row}, facts=facts)
    assert first(kernel) == Config.of({"XBLOCK": block}, warps)


@pytest.mark.parametrize(
    ("length", "dtype", "stores", "live", "expected"),
    [
        (333, "f32", 1, 2, (4, 1)),
        (33, "f32", 1, 1, (32, 1)),
        (33, "f32", 2, 1, (16, 1)),
        (1025, "bf16", 1, 1, (2, 2)),
        (1025, "f32", 1, 1, (1, 2)),
        (3, "bf16", 1, 2, (256, 2)),
        (3, "f32", 1, 2, (256, 4)),
    ],
)
def test_rows_that_are_only_reduced_are_held_by_few_threads(
    length: int, dtype: str, stores: int, live: int, expected: tuple[int, int]
) -> None:
    mapping, row = row_sum(1 << 21, length), next_power_of_two(length)
    params = [{**param, "dtype": dtype} for param in mapping["params"]]
    read = (1 << 21) * length * (2 if dtype == "bf16" else 4)
    facts = {**mapping["facts"], "live_values": live, "stores": stores, "bytes": read, "element_bytes": 4}
    kernel = spec("a", "", params, mapping["axes"], form="persistent", blocks={"RBLOCK": row}, facts=facts)
    rows, warps = expected
    assert first(kernel) == Config.of({"XBLOCK": rows}, warps)


@pytest.mark.parametrize(
    ("rows", "length", "only_reduces", "expected"),
    [
        (2368, 441, True, (4, 1)),
        (1000, 441, True, (4, 1)),
        (1200, 121, True, (8, 1)),
        (700, 841, True, (2, 1)),
        (4000, 289, False, (2, 2)),
        (6000, 169, False, (4, 2)),
        (1500, 625, False, (1, 2)),
        (100000, 441, False, (2, 1)),
    ],
)
def test_few_odd_rows_have_no_more_warps_than_many(
    rows: int, length: int, *, only_reduces: bool, expected: tuple[int, int]
) -> None:
    mapping, row = row_sum(rows, length), next_power_of_two(length)
    facts = {**mapping["facts"], "bytes": rows * length * (4 if only_reduces else 8), "element_bytes": 4}
    facts |= {"live_values": 2}
    kernel = spec("a", "", mapping["params"], mapping["axes"], form="persistent", blocks={"RBLOCK": row}, facts=facts)
    assert first(kernel) == Config.of({"XBLOCK": expected[0]}, expected[1])


@pytest.mark.parametrize(
    ("rows", "length", "dtype", "only_reduces", "expected"),
    [
        (1 << 20, 3, "bf16", True, (512, 8)),
        (1 << 20, 5, "f32", False, (512, 8)),
        (1 << 20, 13, "bf16", False, (128, 4)),
        (1 << 20, 33, "bf16", True, (128, 4)),
        (1 << 20, 33, "bf16", False, (32, 1)),
        (1 << 14, 17, "bf16", False, (32, 1)),
        (100, 3, "bf16", False, (32, 1)),
    ],
)
def test_threads_with_a_row_of_their_own(
    rows: int, length: int, dtype: str, expected: tuple[int, int], *, only_reduces: bool
) -> None:
    """Two of very short ones, one warp to a program where long ones are stored or rows are few."""
    mapping, row = row_sum(rows, length), next_power_of_two(length)
    params = [{**param, "dtype": dtype} for param in mapping["params"]]
    read = rows * length * (2 if dtype == "bf16" else 4)
    facts = {**mapping["facts"], "row_per_thread": True, "bytes": read if only_reduces else 2 * read}
    kernel = spec("a", "", params, mapping["axes"], form="persistent", blocks={"RBLOCK": row}, facts=facts)
    assert first(kernel) == Config.of({"XBLOCK": expected[0]}, expected[1])


@pytest.mark.parametrize(("dtype", "block"), [("bf16", 4096), ("f32", 2048)])
def test_sums_of_narrow_rows_take_twice_as_many_elements_for_each_thread(dtype: str, block: int) -> None:
    mapping = row_sum(4096, 50304)
    params = [{**param, "dtype": dtype} if param["access"] == "read" else param for param in mapping["params"]]
    kernel = spec("narrow", "", params, mapping["axes"], form="looped", facts=mapping["facts"])
    assert first(kernel) == Config.of({"XBLOCK": 1, "RBLOCK": block}, 8)


def test_long_rows_of_halves_need_few_threads() -> None:
    for dtype, warps in (("bf16", 8), ("f32", 16)):
        mapping = row_softmax(8192, 8192)
        params = [{**param, "dtype": dtype} for param in mapping["params"]]
        facts = {**mapping["facts"], "element_bytes": 2 if dtype == "bf16" else 4}
        rows = spec("rows", "", params, mapping["axes"], form="persistent", facts=facts)
        assert first(rows).num_warps == warps


def test_rows_taken_one_after_the_other_need_few_threads() -> None:
    wide = first(in_runs(16384, 4096))
    assert (wide.block("XBLOCK"), wide.num_warps) == (1, 8)
    assert first(in_runs(16384, 256)).block("XBLOCK") == 4


@pytest.mark.parametrize(("columns", "warps"), [(768, 1), (1024, 2), (1000, 2), (640, 1), (1536, 2), (2048, 4)])
def test_rows_are_read_in_whole_steps(columns: int, warps: int) -> None:
    halves = [{**param, "dtype": "bf16"} for param in row_softmax(65536, columns)["params"]]
    for mapping in (in_runs(65536, columns), row_softmax(65536, columns)):
        facts = {**mapping["facts"], "element_bytes": 2, "live_values": 3}
        narrow = spec("rows", "", halves, mapping["axes"], form=mapping["form"], facts=facts)
        chosen = first(narrow)
        assert (chosen.block("XBLOCK"), chosen.num_warps) == (1, warps)


def symbolic_rows() -> dict:
    mapping = row_softmax(512, 1025)
    params = [*mapping["params"], {"name": "n", "role": "size", "dtype": "i32", "hint": 2}]
    axes = [mapping["axes"][0], reduction_axis("n", hint=2)]
    return spec("rows", "", params, axes, form="persistent", facts=mapping["facts"])


def test_steps_past_the_end_are_left_out_of_rows_of_a_known_length_only() -> None:
    """Of a length that only the call tells, the compiler drops no step: twice the threads share what is idle."""
    mapping = row_softmax(512, 1025)
    static = spec("rows", "", mapping["params"], mapping["axes"], form="persistent", facts=mapping["facts"])
    chosen = first(symbolic_rows(), sizes={"x": 512, "r": 1025})
    assert (chosen.block("RBLOCK"), chosen.num_warps) == (2048, 2 * first(static).num_warps)


def test_a_tile_of_a_symbolic_row_is_more_than_half_full() -> None:
    kernel, sizes = KernelSpec.from_mapping(symbolic_rows()), {"x": 512, "r": 1024}
    assert "more than it takes to hold the 1024" in misfit(kernel, Config.of({"XBLOCK": 1, "RBLOCK": 2048}, 4), sizes)
    assert misfit(kernel, Config.of({"XBLOCK": 1, "RBLOCK": 1024}, 4), sizes) == ""


def test_a_thread_gets_as_many_bytes_of_narrow_rows() -> None:
    def warps(dtype: str, size: int) -> int:
        mapping = row_sum(16384, 4096)
        params = [{**param, "dtype": dtype} if param["access"] == "read" else param for param in mapping["params"]]
        facts = {"loads": 1, "stores": 1, "bytes": 16384 * (4096 * size + 4), "contiguous_axis": "r", "live_values": 2}
        return first(spec("sums", "", params, mapping["axes"], form="persistent", facts=facts)).num_warps

    assert [warps(dtype, size) for dtype, size in (("i8", 1), ("bf16", 2), ("f32", 4))] == [4, 8, 8]


def test_rows_that_are_shared_have_one_config_with_as_many_elements_to_a_thread_as_fit() -> None:
    kernel = shared_softmax(2048, 131072, 8192)
    found = configs(KernelSpec.from_mapping(kernel), H200, "max")
    assert found == (Config.of({"XBLOCK": 1}, 4),)
    odd = KernelSpec.from_mapping(shared_softmax(2048, 131070, 8192))
    assert configs(odd, H200, "max") == (Config.of({"XBLOCK": 1}, 8),), "half as many, each loaded by itself"
    kernel["facts"]["contiguous_axis"] = "q"  # which a bundle may say
    kernel["id"] = kernel_id(kernel)
    assert configs(KernelSpec.from_mapping(kernel), H200, "max") == found
    kernel["facts"]["contiguous_axis"], kernel["blocks"]["RBLOCK"] = "x", 256
    kernel["id"] = kernel_id(kernel)
    columns = KernelSpec.from_mapping(kernel)
    assert configs(columns, H200, "max") == (Config.of({"XBLOCK": 32}, 4),)
    assert columns.programs({}, {"XBLOCK": 32}) == 2048 // 32 * (131072 // 256)


@pytest.mark.parametrize(("target", "warps"), [("sm_90", 4), ("gfx942", 2)])
def test_programs_that_hold_images_have_so_many_threads_as_ask_for_words(target: str, warps: int) -> None:
    facts = {
        "splits": 16,
        "register_tiles": 8,
        "registers": 56,
        "threads": 128,
        "contiguous_axis": "x",
        "element_bytes": 2,
    }
    axes = [grid_axis("x", 320, max_block=32), reduction_axis(4096, max_block=32)]
    blocks = {"XBLOCK": 32, "RBLOCK": 32}
    held = spec("held", "", [tensor("a", "bf16")], axes, form="register_norm", blocks=blocks, facts=facts)
    (found,) = configs(KernelSpec.from_mapping(held), typical_device(Target.parse(target)), "max")
    assert found.num_warps == warps


@pytest.mark.parametrize(
    ("columns", "dtype", "expected"),
    [
        (9549, "bf16", (16384, 8)),  # at once, as rows begin anywhere
        (9544, "bf16", (4096, 8)),  # but not at multiples of 16 bytes
        (9549, "f32", (2048, 8)),
        (16385, "bf16", (4096, 8)),
    ],
)
def test_rows_at_odd_places_that_are_hardly_too_long_are_read_in_one_turn(
    columns: int, dtype: str, expected: tuple[int, int]
) -> None:
    mapping = row_sum(1276, columns)
    params = [tensor("in_ptr", dtype), tensor("out_ptr", "f32", access="write")]
    found = first(spec("a", "", params, mapping["axes"], facts={**mapping["facts"], "element_bytes": 4}, form="looped"))
    assert found == Config.of({"XBLOCK": 1, "RBLOCK": expected[0]}, expected[1])
