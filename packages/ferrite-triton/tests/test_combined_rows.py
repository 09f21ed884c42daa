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


def test_rows_are_listed_and_combined() -> None:
    found = program()
    listed = ["y_counts", "y_lists", "y_runs", "y_ordered", "y_queue", "y_tasks"]
    assert launches(found) == [
        ("zero_counts", ["y_counts", "y_tasks"]),
        ("list_rows", ["i", *listed]),
        ("combine_rows", [*listed, "y_parts", "x", "t", "y"]),
    ]


def test_scratch_memory_is_dropped() -> None:
    found = program()
    scratch = {step["name"] for step in steps(found, "alloc")} - {"y"}
    assert scratch < freed(found)
    shapes = {step["name"]: step["shape"] for step in steps(found, "alloc")}
    # Three shares of 256 rows; places that fill their list of 64 and chunks of 128 that are full.
    assert shapes["y_runs"] == [60 * 3]
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


@pytest.mark.parametrize(("rows", "side_by_side"), [(1200, "8, 2"), (300, "8, 2"), (75, "2, 8"), (2, "1, 16")])
def test_places_of_few_rows_are_combined_side_by_side(rows: int, side_by_side: str) -> None:
    assert f", {side_by_side}, 64)" in program(rows=rows)["kernels"][-1]["source"]


def test_numbers_that_need_more_bits_have_them() -> None:
    text = GRAPH.replace("600", "4000000").format(start="f32(0.0)", rows=60, more="", returned="")
    found = emit_program(schedule(parse_graph(text), policy=Policy(**POLICY))).to_mapping()
    dtypes = {step["name"]: step["dtype"] for step in steps(found, "alloc")}
    assert (dtypes["y_counts"], dtypes["y_runs"], dtypes["y_lists"]) == ("i64", "i64", "i32")


def test_shares_are_larger_where_the_runs_of_many_places_would_take_much_memory() -> None:
    shapes = {step["name"]: step["shape"] for step in steps(program(rows=1 << 18), "alloc")}
    assert shapes["y_runs"] == [3 << 18]
    text = GRAPH.replace("600", "100000").format(start="f32(0.0)", rows=1 << 17, more="", returned="")
    found = emit_program(schedule(parse_graph(text), policy=Policy(**POLICY))).to_mapping()
    shapes = {step["name"]: step["shape"] for step in steps(found, "alloc")}
    assert shapes["y_runs"] == [49 << 17]  # shares of 2048 rows, not of 1024


def test_counts_are_all_that_is_added_atomically() -> None:
    accesses = {
        (kernel["name"].rpartition("_")[0], param["name"])
        for kernel in program()["kernels"]
        for param in kernel["params"]
        if param["access"] == "atomic"
    }
    assert accesses == {("list_rows", "counts"), ("list_rows", "tasks"), ("combine_rows", "tasks")}
