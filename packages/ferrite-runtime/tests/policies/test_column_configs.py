"""First configs of reductions over columns: whole lines of memory, and enough rows at a time."""

from __future__ import annotations

import pytest

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.candidates import configs
from policy_cases import H200, first, outer, outer_of
from runtime_kernels import row_sum, spec


def test_loops_over_rows_and_over_columns() -> None:
    assert first(row_sum(4096, 32768)) == Config.of({"XBLOCK": 1, "RBLOCK": 2048}, 8)
    assert first(row_sum(8, 1 << 20)).block("RBLOCK") == 4096, "few programs read more at a time"
    assert first(outer(1 << 16, 333)) == Config.of({"XBLOCK": 32, "RBLOCK": 32}, 4), "many programs are small"
    assert first(outer(1 << 16, 4096)) == Config.of({"XBLOCK": 64, "RBLOCK": 64}, 8), "but of tall columns"
    assert first(outer(1024, 128)) == Config.of({"XBLOCK": 16, "RBLOCK": 128}, 8), "few programs read more at a time"
    assert first(outer(6400, 186)) == Config.of({"XBLOCK": 16, "RBLOCK": 128}, 8), "as far as they have warps for it"
    assert first(outer(1 << 16, 186)) == Config.of({"XBLOCK": 32, "RBLOCK": 32}, 4)
    assert first(outer(1024, 256)) == Config.of({"XBLOCK": 8, "RBLOCK": 256}, 8), "and all of what is not much"
    assert first(outer(1024, 4096)) == Config.of({"XBLOCK": 8, "RBLOCK": 512}, 16), "of long columns, much more"


@pytest.mark.parametrize(
    ("points", "dtype", "live", "expected"),
    [
        (1 << 17, "bf16", 1, (64, 128)),  # of sums twice as many: they take few registers
        (1 << 17, "f32", 1, (64, 64)),
        (1 << 17, "bf16", 2, (64, 64)),
        (1 << 17, "f32", 2, (32, 64)),
        (1 << 15, "bf16", 2, (64, 64)),  # a line of what is read, where programs are few
        (1 << 15, "f32", 1, (32, 128)),
        (6624, "bf16", 2, (16, 256)),  # fewer columns, and more rows, where they would be fewer still
    ],
)
def test_of_tall_columns_much_is_read_at_once(points: int, dtype: str, live: int, expected: tuple[int, int]) -> None:
    columns, rows = expected
    mapping = outer_of(dtype, points, 1000, "looped", live_values=live, element_bytes=4)
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": rows}, 8)


@pytest.mark.parametrize(
    ("points", "dtype", "tile", "warps"),
    [
        (1 << 17, "bf16", (64, 32), 4),
        (1 << 17, "f32", (128, 4), 8),
        ((1 << 17) - 32, "f32", (32, 64), 8),  # a tile would be cut off
    ],
)
def test_of_moments_of_tall_columns_all_programs_run_at_once(
    points: int, dtype: str, tile: tuple[int, int], warps: int
) -> None:
    mapping = outer_of(dtype, points, 1000, "looped", live_values=3, element_bytes=4)
    assert first(mapping) == Config.of({"XBLOCK": tile[0], "RBLOCK": tile[1]}, warps)


@pytest.mark.parametrize(("columns", "warps"), [(98304, 1), (98304 + 2, 2), (98304 + 1, 4)])
def test_warps_share_columns_as_far_as_threads_read_vectors(columns: int, warps: int) -> None:
    mapping = outer_of("f32", columns, 8, "persistent", live_values=1, element_bytes=4)
    assert first(mapping) == Config.of({"XBLOCK": 128}, warps)


@pytest.mark.parametrize(("dtype", "rows", "warps"), [("bf16", 16, 2), ("f32", 32, 4)])
def test_of_many_columns_a_thread_holds_32_bytes(dtype: str, rows: int, warps: int) -> None:
    mapping = outer_of(dtype, 1 << 17, 333, "looped", element_bytes=4, live_values=2)
    assert first(mapping) == Config.of({"XBLOCK": 1024 // rows, "RBLOCK": rows}, warps)


@pytest.mark.parametrize(("rows", "live", "columns", "block"), [(100, 1, 128, 16), (100, 3, 64, 8), (256, 1, 128, 16)])
def test_short_columns_of_halves_are_reduced_by_one_warp(rows: int, live: int, columns: int, block: int) -> None:
    mapping = outer_of("bf16", 1 << 18, rows, "looped", element_bytes=2, live_values=live)
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": block}, 1)


@pytest.mark.parametrize(
    ("dtype", "stores", "columns"), [("bf16", 0, 128), ("f32", 0, 64), ("bf16", 1, 32), ("f32", 1, 32)]
)
def test_columns_of_which_few_lie_beside_each_other_have_few_in_a_thread(dtype: str, stores: int, columns: int) -> None:
    moved = (1 << 25) * (2 if dtype == "bf16" else 4) * (1 + stores)
    mapping = outer_of(dtype, 1 << 21, 16, "persistent", element_bytes=4, noncoalesced=True, bytes=moved)
    assert first(mapping) == Config.of({"XBLOCK": columns}, 4)


@pytest.mark.parametrize(
    ("points", "flops", "columns", "warps"),
    [
        (1 << 12, 8, 32, 1),
        (1 << 12, 64, 16, 1),  # heavy ones: fewer columns for each program
        (1 << 18, 64, 64, 1),  # enough programs as it is
        (1 << 9, 64, 16, 1),  # a thread keeps eight elements
    ],
)
def test_columns_that_take_many_instructions_make_more_programs(
    points: int, flops: int, columns: int, warps: int
) -> None:
    mapping = outer_of("f32", points, 16, "persistent", element_bytes=4, flops=points * 16 * flops)
    assert first(mapping) == Config.of({"XBLOCK": columns}, warps)


def test_columns_that_share_tiles_are_a_whole_line_wide() -> None:
    mapping = outer_of("bf16", 1 << 18, 128, "persistent", element_bytes=2, neighbours=40)
    assert first(mapping) == Config.of({"XBLOCK": 64}, 4)


@pytest.mark.parametrize(
    ("points", "row", "dtype", "live", "expected"),
    [
        (1 << 22, 8, "bf16", 1, (256, 1)),
        (1 << 22, 32, "bf16", 1, (64, 1)),
        (1 << 19, 64, "bf16", 1, (64, 2)),
        (1 << 18, 128, "bf16", 1, (32, 2)),
        (1 << 18, 256, "bf16", 1, (32, 4)),
        (1 << 18, 256, "f32", 1, (32, 8)),
        (1 << 22, 8, "bf16", 3, (256, 1)),
        (1 << 22, 8, "bf16", 4, (128, 1)),
        (1 << 22, 8, "f32", 1, (128, 1)),
        (1 << 19, 64, "f32", 1, (32, 2)),
        (1 << 22, 8, "f64", 1, (64, 1)),
        (4096, 64, "f32", 1, (32, 4)),
        (4096, 8, "f32", 1, (32, 1)),
    ],
)
def test_short_columns_are_held_by_one_warp(points: int, row: int, dtype: str, live: int, expected: tuple) -> None:
    """As many columns as its threads read 128 bytes of each, but whole lines; half of it if programs are few."""
    element_bytes = 8 if dtype == "f64" else 4
    mapping = outer_of(dtype, points, row, "persistent", live_values=live, element_bytes=element_bytes)
    columns, warps = expected
    assert first(mapping) == Config.of({"XBLOCK": columns}, warps)


@pytest.mark.parametrize(
    ("points", "rows", "live", "expected"),
    [
        (49920, 150, 1, (128, 32, 2)),
        (62592, 77, 2, (64, 32, 4)),
        (62592, 20, 2, (64, 32, 4)),  # no more than there are
        (62592, 7, 2, (64, 8, 1)),
        (1 << 18, 150, 1, (128, 16, 1)),  # enough is on its way
    ],
)
def test_programs_of_short_columns_ask_for_enough_together(
    points: int, rows: int, live: int, expected: tuple[int, int, int]
) -> None:
    mapping = outer_of("bf16", points, rows, "looped", element_bytes=4, live_values=live)
    columns, block, warps = expected
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": block}, warps)


def test_columns_that_are_read_again_are_few_at_a_time() -> None:
    def again(rows: int) -> KernelSpec:
        mapping = outer(16384, rows)
        facts = {**mapping["facts"], "passes": 2, "element_bytes": 4}
        return spec("again", "", mapping["params"], mapping["axes"], form="looped", facts=facts)

    assert first(again(4096)) == Config.of({"XBLOCK": 16, "RBLOCK": 1024}, 16), "one program to a multiprocessor"
    assert first(again(1000)) == Config.of({"XBLOCK": 32, "RBLOCK": 512}, 8), "whole lines of all programs stay cached"
    assert first(again(500)) == Config.of({"XBLOCK": 16, "RBLOCK": 512}, 8), "one turn reads all of a column"


@pytest.mark.parametrize(
    ("columns", "rows", "expected"),
    [
        (4224, 1000, (32, 512, 8)),  # a program of half a line to a multiprocessor
        (2000, 700, (8, 1024, 8)),
        (978, 1000, (8, 1024, 8)),  # no fewer than memory is read in
        (300, 5000, (8, 2048, 16)),
    ],
)
def test_few_columns_that_are_read_again_are_shared_out(
    columns: int, rows: int, expected: tuple[int, int, int]
) -> None:
    mapping = outer(columns, rows)
    facts = {**mapping["facts"], "passes": 2, "element_bytes": 4}
    again = spec("again", "", mapping["params"], mapping["axes"], form="looped", facts=facts)
    x, r, warps = expected
    assert first(again) == Config.of({"XBLOCK": x, "RBLOCK": r}, warps)


def test_columns_that_are_read_again_try_two_programs_to_a_multiprocessor() -> None:
    mapping = outer(16384, 4096)
    facts = {**mapping["facts"], "passes": 2, "element_bytes": 4, "bytes": 1 << 29}
    again = KernelSpec.from_mapping(spec("again", "", mapping["params"], mapping["axes"], form="looped", facts=facts))
    tried = [(c.block("XBLOCK"), c.block("RBLOCK"), c.num_warps) for c in configs(again, H200, "max")]
    assert tried[:3] == [(16, 1024, 16), (8, 1024, 8), (16, 512, 8)]


@pytest.mark.parametrize(("columns", "block"), [(8192, 32), (8192 + 16, 16), (4096, 16)])
def test_a_thread_holds_the_rows_that_are_reduced_together(columns: int, block: int) -> None:
    mapping = outer(columns, 1024)
    axes = [{**axis, "max_block": axis["size"] & -axis["size"]} for axis in mapping["axes"]]
    kernel = spec("reduced", "", mapping["params"], axes, form="looped", facts={**mapping["facts"], "rows_together": 8})
    for config in configs(KernelSpec.from_mapping(kernel), H200, "full"):
        threads_in_a_column = config.num_warps * 32 * 4 // config.block("XBLOCK")
        assert config.block("RBLOCK") >= 8 * threads_in_a_column
    assert first(kernel).block("XBLOCK") == block


@pytest.mark.parametrize(
    ("dtype", "columns", "warps"), [("f32", 65536, 2), ("f32", 16384, 4), ("bf16", 131072, 1), ("bf16", 32768, 2)]
)
def test_many_programs_that_reduce_rows_together_are_small(dtype: str, columns: int, warps: int) -> None:
    mapping = outer(columns, 1024)
    params = [{**param, "dtype": dtype} if param["access"] == "read" else param for param in mapping["params"]]
    facts = {**mapping["facts"], "rows_together": 8}
    assert first(spec("reduced", "", params, mapping["axes"], form="looped", facts=facts)).num_warps == warps


@pytest.mark.parametrize(
    ("points", "rows", "dtype", "live", "expected"),
    [
        (71425, 96, "bf16", 1, (64, 128, 4)),  # in one turn, with 64 elements to a thread
        (71426, 96, "bf16", 1, (64, 128, 4)),  # two at a time are few as well
        (71432, 96, "bf16", 1, (128, 16, 1)),  # aligned: a loop, with eight elements at a time
        (9999, 800, "bf16", 1, (16, 1024, 8)),  # of longer columns fewer
        (30001, 300, "f32", 1, (32, 512, 8)),
        (317, 3064, "bf16", 1, (16, 512, 32)),  # too long for one turn: more warps, for eight elements to a thread
        (330, 3064, "bf16", 1, (16, 512, 16)),  # or eight pairs
        (71425, 96, "bf16", 4, (64, 16, 4)),  # as is what has much alive at once
    ],
)
def test_columns_at_odd_places_are_read_in_one_turn_or_by_many_threads(
    points: int, rows: int, dtype: str, live: int, expected: tuple[int, int, int]
) -> None:
    columns, block, warps = expected
    mapping = outer_of(dtype, points, rows, "looped", live_values=live, element_bytes=4)
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": block}, warps)
