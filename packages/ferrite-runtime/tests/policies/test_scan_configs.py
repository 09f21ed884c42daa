"""First configs of scans and sorts, of rows and of columns."""

from __future__ import annotations

import pytest

from ferrite_runtime.formats.config import Config
from policy_cases import first, outer, outer_of
from runtime_kernels import row_softmax, row_sum, spec, tensor


@pytest.mark.parametrize(
    ("columns", "block", "warps"),
    [(3, 256, 1), (33, 16, 1), (333, 2, 1), (128, 8, 1), (1025, 1, 2), (1024, 1, 4), (2048, 1, 8)],
)
def test_of_short_rows_one_warp_scans_a_thousand_elements(columns: int, block: int, warps: int) -> None:
    """And of longer ones, which lie at odd places, as many: each is read by itself."""
    mapping = row_sum(1 << 18, columns)
    mapping = spec("scan", "", mapping["params"], mapping["axes"], form="scan", facts=mapping["facts"])
    assert first(mapping) == Config.of({"XBLOCK": block, "RBLOCK": 1 << (columns - 1).bit_length()}, warps)


@pytest.mark.parametrize(
    ("rows", "columns", "block", "warps"),
    [
        (1024, 65536, 8192, 8),
        (1017, 9762, 8192, 8),
        (1017, 9761, 2048, 4),
        (1017, 100001, 2048, 4),
        (80, 30679, 8192, 8),  # four turns of a loop, for which a multiprocessor has nothing else to do
        (66, 9997, 4096, 8),  # three, but with fewer lanes than two of 8192
    ],
)
def test_long_rows_are_scanned_in_large_blocks(rows: int, columns: int, block: int, warps: int) -> None:
    """Odd ones, of which each element is an access by itself, by few warps, unless there are few of them."""
    mapping = row_sum(rows, columns)
    mapping = spec("scan", "", mapping["params"], mapping["axes"], form="scan", facts=mapping["facts"])
    assert first(mapping) == Config.of({"XBLOCK": 1, "RBLOCK": block}, warps)


@pytest.mark.parametrize(
    ("dtype", "rows", "expected"),
    [
        ("bf16", 100, (128, 128, 8)),
        ("bf16", 333, (32, 512, 8)),
        ("f32", 100, (64, 128, 4)),
        ("f32", 200, (64, 256, 8)),
        ("f32", 1 << 12, (64, 64, 4)),
    ],
)
def test_columns_that_fit_a_tile_are_scanned_whole(dtype: str, rows: int, expected: tuple[int, int, int]) -> None:
    mapping = outer_of(dtype, 1 << 17, rows, "scan", element_bytes=2 if dtype == "bf16" else 4)
    columns, block, warps = expected
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": block}, warps)


@pytest.mark.parametrize(
    ("dtype", "points", "rows", "expected"),
    [
        ("bf16", 1 << 17, 200, (32, 256, 4)),  # tiles of half as many elements as of a scan alone
        ("f32", 1 << 17, 400, (16, 512, 4)),
        ("bf16", 6400, 186, (16, 256, 8)),  # few programs: a quarter, and fewer columns
        ("f32", 6400, 186, (8, 256, 4)),
    ],
)
def test_parts_of_columns_that_go_on_from_others_have_small_tiles(
    dtype: str, points: int, rows: int, expected: tuple[int, int, int]
) -> None:
    mapping = outer_of(dtype, points, rows, "scan", element_bytes=4, live_values=3)
    columns, block, warps = expected
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": block}, warps)


@pytest.mark.parametrize(("dtype", "points", "block", "warps"), [("bf16", 33553, 64, 4), ("f32", 16777, 32, 1)])
def test_columns_whose_rows_begin_at_odd_places_are_scanned_by_few_threads(
    dtype: str, points: int, block: int, warps: int
) -> None:
    mapping = outer_of(dtype, points, 1000, "scan", element_bytes=2 if dtype == "bf16" else 4)
    assert first(mapping) == Config.of({"XBLOCK": 64, "RBLOCK": block}, warps)


@pytest.mark.parametrize(
    ("dtype", "size", "warps"),
    [("bf16", 128, 2), ("f32", 128, 4), ("bf16", 1024, 4), ("f32", 1024, 8), ("bf16", 2048, 4), ("f32", 2048, 2)],
)
def test_a_thread_sorts_16_bytes_of_rows_that_are_not_long(dtype: str, size: int, warps: int) -> None:
    mapping = row_softmax(1 << 16, size)
    params = [tensor("a", dtype), tensor("b", dtype, "write"), tensor("places", "i64", "write")]
    facts = {**mapping["facts"], "element_bytes": 8}
    kernel = spec("rows", "", params, mapping["axes"], form="sort", blocks=mapping["blocks"], facts=facts)
    assert first(kernel).num_warps == warps


@pytest.mark.parametrize(
    ("row", "dtype", "expected"), [(3, "bf16", (512, 4, 1)), (10, "bf16", (128, 16, 1)), (50, "f32", (32, 64, 2))]
)
def test_short_columns_are_scanned_whole_by_few_warps(row: int, dtype: str, expected: tuple) -> None:
    mapping = outer_of(dtype, 1 << 20, row, "scan")
    columns, depth, warps = expected
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": depth}, warps)


def test_columns_are_scanned_in_lines_with_several_rows_to_a_thread() -> None:
    mapping = outer(16384, 4096, form="scan")
    facts = {**mapping["facts"], "element_bytes": 2, "live_values": 9}
    scan = spec("scan", "", mapping["params"], mapping["axes"], form="scan", facts=facts)
    assert first(scan) == Config.of({"XBLOCK": 32, "RBLOCK": 256}, 4), "half a line, as there are few columns"


@pytest.mark.parametrize(
    ("points", "rows", "expected"),
    [
        (43374, 236, (32, 256, 16)),
        (14256, 180, (16, 256, 8)),  # few programs: of half a line
        (9647, 759, (16, 256, 8)),  # more rows than one tile holds
        (19561, 257, (32, 128, 8)),  # of two tiles one would be all but empty
        (1 << 17, 50, (32, 64, 4)),
        (1 << 17, 1, (32, 1, 1)),
        (1 << 17, 3, (32, 4, 1)),
    ],
)
def test_columns_that_take_long_to_combine_are_scanned_by_many_threads(
    points: int, rows: int, expected: tuple[int, int, int]
) -> None:
    mapping = outer_of("f32", points, rows, "scan", element_bytes=4, flops=80 * points * rows)
    columns, block, warps = expected
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": block}, warps)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (10167, 62, (4, 64, 1)),
        (958, 716, (1, 1024, 4)),
        (132, 16936, (1, 8192, 32)),
        (40000, 512, (1, 512, 2)),
        # Of odd rows each warp combines what those before it come to, for every element of a thread.
        (3386, 2457, (1, 4096, 2)),
        (879, 14411, (1, 512, 4)),
        (132, 16935, (1, 1024, 8)),
        (182, 2049, (1, 4096, 8)),
    ],
)
def test_rows_that_take_long_to_combine_are_scanned_by_many_threads(
    rows: int, columns: int, expected: tuple[int, int, int]
) -> None:
    mapping = row_sum(rows, columns)
    facts = {**mapping["facts"], "flops": 80 * rows * columns}
    block, row, warps = expected
    found = first(spec("scan", "", mapping["params"], mapping["axes"], form="scan", facts=facts))
    assert found == Config.of({"XBLOCK": block, "RBLOCK": row}, warps)


def test_columns_at_odd_places_are_scanned_whole_where_it_takes_some_operations_to_combine() -> None:
    mapping = outer_of("f32", 11357, 546, "scan", element_bytes=4, flops=12 * 11357 * 546)
    assert first(mapping) == Config.of({"XBLOCK": 16, "RBLOCK": 1024}, 8)


@pytest.mark.parametrize(("points", "warps"), [(428305, 8), (428304, 1)])
def test_short_columns_at_odd_places_have_many_threads(points: int, warps: int) -> None:
    found = first(outer_of("f32", points, 28, "scan", element_bytes=4))
    assert found == Config.of({"XBLOCK": 128 if warps == 8 else 32, "RBLOCK": 32}, warps)
