"""The call `ferrite.combine_rows` as launches: what each takes, what is allocated for them, and that it is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, schedule
from ferrite_triton import emit_program

POLICY = {"combined_bytes": 0, "combined_row": 1}
GRAPH = """graph @f(i: i64[600], x: bf16[600, 64], t: bf16[{rows}, 64]{more}) -> (y{returned}) {{
  s: f32[{rows}, 64] = loop [r < {rows}, c < 64] {start}
  u: f32[{rows}, 64] = update add s [p < 600, c < 64] at [at(i[p], {rows}), c] cast.f32(x[p, c])
  y: bf16[{rows}, 64] = loop [r < {rows}, c < 64] cast.bf16(u[r, c])
}}"""


def program(start: str = "cast.f32(t[r, c])", rows: int = 60, taken: str = "") -> dict[str, Any]:
    more, returned = (f", {taken}: f32[4]", f", {taken}") if taken else ("", "")
    graph = parse_graph(GRAPH.format(start=start, rows=rows, more=more, returned=returned))
    return emit_program(schedule(graph, policy=Policy(**POLICY))).to_mapping()


def steps(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [step for step in found["steps"] if step["do"] == kind]


def freed(found: dict[str, Any]) -> set[str]:
    return {name for step in steps(found, "free") for name in step["names"]}


def launches(found: dict[str, Any]) -> list[tuple[str, list[str]]]:
    names = {kernel["id"]: kernel["name"].rpartition("_")[0] for kernel in found["kernels"]}
    return [(names[step["kernel"]], step["args"]) for step in steps(found, "launch")]


def test_rows_are_listed_ordered_and_combined() -> None:
    found = program()
    assert launches(found) == [
        ("zero_counts", ["y_counts", "y_low_counts", "y_high_counts"]),
        ("list_rows", ["i", "y_counts", "y_lists", "y_low_counts"]),
        ("order_low", ["i", "y_counts", "y_low_counts", "y_high_counts", "y_partly"]),
        ("order_high", ["y_counts", "y_high_counts", "y_partly", "y_packed"]),
        ("combine_rows", ["y_counts", "y_packed", "y_lists", "x", "t", "y", "y_edges"]),
        ("combine_edges", ["y_counts", "y_packed", "t", "y", "y_edges"]),
    ]


def test_scratch_memory_is_dropped() -> None:
    found = program()
    scratch = {step["name"] for step in steps(found, "alloc")} - {"y"}
    assert scratch < freed(found)
    # Each chunk has 16 rows, and leaves two of 64 elements; behind the last row come 17 more.
    shapes = {step["name"]: step["shape"] for step in steps(found, "alloc")}
    assert shapes["y_packed"] == [617]
    assert shapes["y_edges"] == [2 * 38 * 64]


def test_scratch_memory_takes_no_name_of_the_program() -> None:
    found = program(taken="y_counts")
    assert {"name": "y_counts_"}.items() <= next(s for s in steps(found, "alloc") if "counts" in s["name"]).items()


def test_a_number_that_all_places_start_with_is_in_the_text() -> None:
    found = program("f32(-1.5)")
    assert all("t" not in args for _, args in launches(found))
    text = found["kernels"][-2]["source"]
    assert 'fmath.combine_rows(counts, packed, source, None, out, edges, program, "add", -1.5, 60,' in text
    assert 'fmath.combine_lists(counts, lists, source, None, out, program - 38, "add", -1.5, 60,' in text


@pytest.mark.parametrize(("rows", "capacity"), [(75, 64), (30, 64), (6, 256)])
def test_lists_have_room_for_rows_that_are_spread_evenly(rows: int, capacity: int) -> None:
    shapes = {step["name"]: step["shape"] for step in steps(program(rows=rows), "alloc")}
    assert shapes["y_lists"] == [rows * capacity]


@pytest.mark.parametrize("rows", [76, 3])
def test_few_rows_of_a_place_and_very_many_are_all_ordered(rows: int) -> None:
    assert launches(program(rows=rows)) == [
        ("zero_counts", ["y_counts", "y_low_counts", "y_high_counts"]),
        ("list_rows", ["i", "y_counts", "y_low_counts"]),
        ("order_low", ["i", "y_counts", "y_low_counts", "y_high_counts", "y_partly"]),
        ("order_high", ["y_counts", "y_high_counts", "y_partly", "y_packed"]),
        ("combine_rows", ["y_counts", "y_packed", "x", "t", "y", "y_edges"]),
        ("combine_edges", ["y_counts", "y_packed", "t", "y", "y_edges"]),
    ]


def test_counts_are_all_that_is_added_atomically() -> None:
    accesses = {
        (kernel["name"].rpartition("_")[0], param["name"])
        for kernel in program()["kernels"]
        for param in kernel["params"]
        if param["access"] == "atomic"
    }
    assert accesses == {("list_rows", "counts"), ("list_rows", "low_counts"), ("order_low", "high_counts")}
