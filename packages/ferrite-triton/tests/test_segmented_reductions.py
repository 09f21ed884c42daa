"""The call `ferrite.reduce_segments` as launches: what each takes, what is allocated for them, and dropped."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ferrite_ir import parse_graph
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.sizes import evaluate, symbol
from ferrite_scheduler import Policy, schedule
from ferrite_scheduler.model.policy import DEFAULT_POLICY
from ferrite_scheduler.model.target import DEFAULT_TARGET
from ferrite_triton import emit_program
from ferrite_triton.host.segment_shapes import SEGMENTS, RowsShape, most_rows, scratch_of, shapes_for, sorts_all

POLICY = {"segment_bytes": 0, "segment_row": 1}
GRAPH = """graph @f(i: i64[600], x: bf16[600, 64], t: bf16[{rows}, 64]{more}) -> (y{returned}) {{
  s: f32[{rows}, 64] = loop [r < {rows}, c < 64] {start}
  u: f32[{rows}, 64] = update add s [p < 600, c < 64] at [at(i[p], {rows}), c] cast.f32(x[p, c])
  y: bf16[{rows}, 64] = loop [r < {rows}, c < 64] cast.bf16(u[r, c])
}}"""


def program(start: str = "cast.f32(t[r, c])", rows: int = 60, taken: str = "", count: int = 600) -> dict[str, Any]:
    more, returned = (f", {taken}: f32[4]", f", {taken}") if taken else ("", "")
    text = GRAPH.replace("600", str(count)).format(start=start, rows=rows, more=more, returned=returned)
    graph = parse_graph(text)
    return emit_program(schedule(graph, policy=Policy(**POLICY))).to_mapping()


def steps(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [step for step in found["steps"] if step["do"] == kind]


def freed(found: dict[str, Any]) -> set[str]:
    return {name for step in steps(found, "free") for name in step["names"]}


def launches(found: dict[str, Any]) -> list[tuple[str, list[str]]]:
    names = {kernel["id"]: kernel["name"].rpartition("_")[0] for kernel in found["kernels"]}
    return [(names[step["kernel"]], step["args"]) for step in steps(found, "launch")]


def test_few_rows_are_sorted_while_they_are_listed() -> None:
    found = program()
    listed = ["y_counts", "y_lists", "y_segments", "y_ordered", "y_queue", "y_tasks"]
    assert launches(found) == [
        ("zero_counts", ["y_counts", "y_tasks"]),
        ("bin_rows", ["i", *listed]),
        ("reduce_segments", [*listed, "y_parts", "x", "t", "y"]),
    ]


def test_many_rows_are_sorted_once_it_is_known_whether_there_are_long_places() -> None:
    found = program(rows=60_000, count=100_000)
    lists = ["y_counts", "y_lists"]
    shares, chunks = ["y_segments", "y_ordered"], ["y_queue", "y_tasks"]
    assert launches(found) == [
        ("zero_counts", ["y_counts", "y_tasks", "y_is_sorted"]),
        ("bin_rows", ["i", *lists, *shares, "y_is_sorted", *chunks, "t"]),
        ("sort_rows", ["i", *shares, "y_is_sorted", "y_tasks"]),
        ("reduce_segments", [*lists, *shares, *chunks, "y_parts", "x", "t", "y"]),
    ]


@pytest.mark.parametrize(
    ("count", "rows", "known"),
    [(1 << 15, 60, True), ((1 << 15) + 1, 60_000, False), (100_000, 60, True), (100_000, 1000, False)],
)
def test_all_shares_are_sorted_where_they_are_few_or_nearly_all_places_are_long(
    count: int,
    rows: int,
    known: bool,  # noqa: FBT001
) -> None:
    found = shapes_for(count, rows, 64, 16, 64)
    assert sorts_all(count, found) == known
    assert ("is_sorted" not in scratch_of(count, found, F32)) == known


def test_shares_that_may_be_sorted_are_as_many_as_are_looked_at() -> None:
    found = program(rows=60_000, count=100_000)
    shapes = {step["name"]: step["shape"] for step in steps(found, "alloc")}
    assert shapes["y_is_sorted"] == [98]  # of 1024 rows
    texts = {kernel["name"].rpartition("_")[0]: kernel["source"] for kernel in found["kernels"]}
    assert "tl.store(is_sorted + lane, 0, lane < 98)" in texts["zero_counts"]


def test_scratch_memory_is_dropped() -> None:
    found = program()
    scratch = {step["name"] for step in steps(found, "alloc")} - {"y"}
    assert scratch < freed(found)
    shapes = {step["name"]: step["shape"] for step in steps(found, "alloc")}
    # Three shares of 256 rows; places that fill their list of 64 and chunks of 128 that are full.
    assert shapes["y_segments"] == [60 * 3]
    assert shapes["y_ordered"] == [3 * 256]
    assert shapes["y_queue"] == [2 * (600 // 65 + 600 // 128)]


def test_scratch_memory_takes_no_name_of_the_program() -> None:
    found = program(taken="y_counts")
    assert {"name": "y_counts_"}.items() <= next(s for s in steps(found, "alloc") if "counts" in s["name"]).items()


def test_a_number_that_all_places_start_with_is_in_the_text() -> None:
    found = program("f32(-1.5)")
    assert all("t" not in args for _, args in launches(found))
    text = found["kernels"][-1]["source"]
    assert 'tasks, parts, source, None, out, "add", -1.5, 600, 60, 64, 64, 64, 128, 256,' in text


@pytest.mark.parametrize(
    ("rows", "capacity"), [(1200, 16), (300, 32), (75, 64), (30, 64), (6, 256), (5, 256), (2, 32), (1, 32)]
)
def test_lists_have_room_for_rows_that_are_spread_evenly(rows: int, capacity: int) -> None:
    shapes = {step["name"]: step["shape"] for step in steps(program(rows=rows), "alloc")}
    assert shapes["y_lists"] == [rows * capacity]


@pytest.mark.parametrize(
    ("rows", "count", "side_by_side"),
    [(60_000, 100_000, "8, 2"), (20_000, 30_000, "4, 2"), (1200, 600, "1, 2"), (75, 600, "1, 8"), (2, 600, "1, 16")],
)
def test_places_of_few_rows_are_combined_side_by_side_where_there_are_many(
    rows: int, count: int, side_by_side: str
) -> None:
    assert f", {side_by_side}, 16, 64, " in program(rows=rows, count=count)["kernels"][-1]["source"]


def test_where_most_places_have_no_rows_they_are_copied_by_programs_behind_those_that_bin() -> None:
    found = program(rows=2400)
    listed = ["y_counts", "y_lists", "y_segments", "y_ordered", "y_queue", "y_tasks"]
    assert launches(found) == [
        ("zero_counts", ["y_counts", "y_tasks", "y_found"]),
        ("bin_rows", ["i", *listed, "t", "y", "y_touched", "y_found"]),
        ("reduce_segments", [*listed, "y_parts", "x", "y", "y_touched", "y_found"]),
    ]
    assert freed(found) >= {"y_touched", "y_found"}
    shapes = {step["name"]: step["shape"] for step in steps(found, "alloc")}
    assert (shapes["y_touched"], shapes["y_found"]) == ([600], [1])
    _, binning, combining = (kernel["grid"] for kernel in found["kernels"])
    copies = 2400 * 64 * 2 // (16 << 10) + 1
    assert (binning, combining) == (3 + 3 + copies, 600), "places without rows have no program"


@pytest.mark.parametrize("rows", [600, 4000000])
def test_numbers_have_32_bits(rows: int) -> None:
    text = GRAPH.replace("600", str(rows)).format(start="f32(0.0)", rows=60, more="", returned="")
    found = emit_program(schedule(parse_graph(text), policy=Policy(**POLICY))).to_mapping()
    dtypes = {step["name"]: step["dtype"] for step in steps(found, "alloc")}
    assert (dtypes["y_counts"], dtypes["y_segments"], dtypes["y_lists"]) == ("i32", "i32", "i32")


@pytest.mark.parametrize(("count", "spread"), [(600, 4), (100_000, 128), (1 << 18, 256), (1 << 22, 256)])
def test_chunks_look_at_some_shares_at_once(count: int, spread: int) -> None:
    assert RowsShape(count, 60, 64, 16, 64).spread == spread <= SEGMENTS.most_spread


@pytest.mark.parametrize(("rows", "halves"), [(4, False), (60, True), (300, True), (2, False)])
def test_half_lists_have_code_where_most_are_half_empty(rows: int, halves: bool) -> None:  # noqa: FBT001
    assert RowsShape(600, rows, 64, 16, 64).halves == halves
    assert f", 64, {halves}, None, None)" in program(rows=rows)["kernels"][-1]["source"]


def test_shares_are_larger_where_the_segments_of_many_destinations_would_take_much_memory() -> None:
    shapes = {step["name"]: step["shape"] for step in steps(program(rows=1 << 18), "alloc")}
    assert shapes["y_segments"] == [3 << 18]
    text = GRAPH.replace("600", "100000").format(start="f32(0.0)", rows=1 << 17, more="", returned="")
    found = emit_program(schedule(parse_graph(text), policy=Policy(**POLICY))).to_mapping()
    shapes = {step["name"]: step["shape"] for step in steps(found, "alloc")}
    assert shapes["y_segments"] == [49 << 17]  # shares of 2048 rows, not of 1024


def test_counts_are_all_that_is_added_atomically() -> None:
    accesses = {
        (kernel["name"].rpartition("_")[0], param["name"])
        for kernel in program()["kernels"]
        for param in kernel["params"]
        if param["access"] == "atomic"
    }
    assert accesses == {("bin_rows", "counts"), ("bin_rows", "tasks"), ("reduce_segments", "tasks")}


COUNTS = (
    0,
    1,
    2,
    16,
    17,
    4095,
    4096,
    4097,
    16384,
    16385,
    65537,
    262144,
    300_000,
    1 << 20,
    1 << 22,
    (1 << 22) + 1,
    1 << 26,
)
WIDTH, BATCH, BLOCK = 768, 8, 256
shapes = partial(shapes_for, width=WIDTH, batch=BATCH, block=BLOCK)


def symbolic(where: str = "s0: size >= 0 ~ 600", rows: int = 60) -> dict[str, Any]:
    text = GRAPH.replace("600", "s0").format(start="f32(0.0)", rows=rows, more="", returned="")
    return emit_program(
        schedule(parse_graph(text.replace("(y)", f"(y) where {where}")), policy=Policy(**POLICY))
    ).to_mapping()


def chosen(found: tuple[RowsShape, ...], count: int) -> RowsShape:
    """Returns the shape that a call of so many rows takes."""
    return next((shape for shape in found[:-1] if count <= shape.count), found[-1])


@pytest.mark.parametrize("rows", [1, 5, 60, 1000, 50257, 1 << 18])
@pytest.mark.parametrize("most", [None, 500, 100_000, 1 << 22])
def test_scratch_memory_is_enough_for_any_number_of_rows(rows: int, most: int | None) -> None:
    count = symbol("n", low=0, high=most)
    found = shapes(count, rows)
    scratch = {name: extent for name, (_, extent) in scratch_of(count, found, F32).items()}
    for n in (n for n in COUNTS if most is None or n <= most):
        shape, extents = chosen(found, n), {name: evaluate(extent, {"n": n}) for name, extent in scratch.items()}
        slots, shares = shape.slots(n), shape.shares_of(n)
        long_places, full_chunks = n // (shape.capacity + 1), n // shape.chunk
        assert slots >= long_places + full_chunks
        assert extents["counts"] >= rows
        assert extents["is_sorted"] >= shares
        assert extents["lists"] >= rows * shape.capacity
        assert extents["segments"] >= rows * shares
        assert extents["ordered"] >= shares * shape.share
        assert extents["queue"] >= 2 * slots
        assert extents["tasks"] >= 1 + 2 * slots * shape.blocks
        assert extents["parts"] >= slots * WIDTH


@pytest.mark.parametrize("rows", [60, 50257])
def test_scratch_memory_is_not_much_more_than_one_number_of_rows_needs(rows: int) -> None:
    count = symbol("n", low=0)
    scratch = scratch_of(count, shapes(count, rows), F32)
    for n in (100, 8192, 100_000, 1 << 20):
        needed = scratch_of(n, shapes(n, rows), F32)
        for name in ("lists", "segments", "parts"):
            (dtype, extent), (least, wanted) = scratch[name], needed[name]
            # Shapes are made for up to four times as many rows, and lists are powers of two.
            assert evaluate(extent, {"n": n}) * dtype.bytes <= 16 * wanted * least.bytes, (name, n)


def test_numbers_have_32_bits_up_to_what_is_checked() -> None:
    for width in (1, 64, 768, 1 << 20):
        shape = RowsShape(1 << 12, 1, width, 1, 64)
        most = most_rows(shape)
        assert most + 4096 < 1 << 31
        assert 1 + 2 * (most // 17 + most // 128) * shape.blocks < 1 << 31


def test_a_launch_takes_what_is_right_for_its_number_of_rows() -> None:
    found = symbolic()
    names = {kernel["id"]: kernel["name"].rpartition("_")[0] for kernel in found["kernels"]}
    launched = ("zero_counts", "bin_rows", "sort_rows", "reduce_segments")
    for step, name in zip(steps(found, "launch"), launched, strict=True):
        alternatives = step.get("alternatives", [])
        assert {names[kernel] for kernel in (*(other["kernel"] for other in alternatives), step["kernel"])} == {name}
        limits = [other["when"] for other in alternatives]
        assert limits == sorted(limits)
        assert bool(limits) == (name != "zero_counts")
        assert all(limit[0][1] < 1 << 22 for limit in limits)
        assert step["args"][-1] == "s0"
        assert step.get("expected", 0) == 0
    (condition,) = steps(found, "check")
    assert condition["holds"] == ["le", "s0", (1 << 31) - 1 - 4096]


@pytest.mark.parametrize("rows", [1, 5, 60, 1000, 30_000])
def test_all_launches_of_a_call_take_one_shape(rows: int) -> None:
    """What lists rows and what combines them must know them by the same shares, lists and chunks."""
    found = symbolic(rows=rows)
    (allocated,) = (step for step in steps(found, "alloc") if step["name"] == "y_counts")
    assert allocated["dtype"] == "i32"
    sources = {kernel["id"]: kernel["source"] for kernel in found["kernels"]}
    _, listing, sorting, combining = steps(found, "launch")
    batch, programs = DEFAULT_POLICY.segment_batch, DEFAULT_TARGET.processors * DEFAULT_TARGET.resident_programs
    for n in COUNTS:
        shape = chosen(shapes_for(symbol("s0", low=0), rows, 64, batch, 64, programs), n)
        slots = str(shape.slots(symbol("n0", low=0))).replace("//", " // ").replace("(", "").replace(")", "")
        slots = slots.replace("+", " + ")
        lists = f"n0, {rows}, False, {shape.capacity}, {shape.chunk}, {slots}, {shape.share}, 256, 0, 65536, "
        shares = f"n0, {rows}, False, {shape.share})"
        sums = f"n0, {rows}, 64, 64, {shape.capacity}, {shape.chunk}, {shape.share}, {shape.spread}, {slots}, "
        sums += f"{shape.group}, {shape.depth}, {shape.batch}, 64, {shape.halves}, None, None)"
        for step, numbers in ((listing, lists), (sorting, shares), (combining, sums)):
            conditions = [(other["when"][0][1], other["kernel"]) for other in step["alternatives"]]
            taken = next((kernel for limit, kernel in conditions if n <= limit), step["kernel"])
            assert numbers in sources[taken]


def test_nothing_is_checked_of_numbers_of_rows_that_are_known_to_be_small() -> None:
    found = symbolic("s0: size >= 0 <= 4000 ~ 600")
    assert not steps(found, "check")
    assert [step.get("alternatives", []) for step in steps(found, "launch")] == [[], [], [], []]


def test_texts_depend_on_no_hint() -> None:
    one, other = (symbolic(f"s0: size >= 0 ~ {hint}")["kernels"] for hint in (2, 100_000))
    assert [kernel["source"] for kernel in one] == [kernel["source"] for kernel in other]
