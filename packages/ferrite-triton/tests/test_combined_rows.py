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


def program(start: str = "cast.f32(t[r, c])", rows: int = 300, taken: str = "", **policy: bool) -> dict[str, Any]:
    more, returned = (f", {taken}: f32[4]", f", {taken}") if taken else ("", "")
    graph = parse_graph(GRAPH.format(start=start, rows=rows, more=more, returned=returned))
    return emit_program(schedule(graph, policy=Policy(**POLICY, **policy))).to_mapping()


def steps(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [step for step in found["steps"] if step["do"] == kind]


def freed(found: dict[str, Any]) -> set[str]:
    return {name for step in steps(found, "free") for name in step["names"]}


def launches(found: dict[str, Any]) -> list[tuple[str, list[str]]]:
    names = {kernel["id"]: kernel["name"].rpartition("_")[0] for kernel in found["kernels"]}
    return [(names[step["kernel"]], step["args"]) for step in steps(found, "launch")]


def test_rows_are_counted_ordered_and_combined() -> None:
    found = program()
    assert launches(found) == [
        ("zero_counts", ["y_counts"]),
        ("count_places", ["i", "y_counts", "y_ranks"]),
        ("start_places", ["y_counts", "y_starts"]),
        ("order_rows", ["i", "y_ranks", "y_starts", "y_counts", "y_packed", "t", "y"]),
        ("combine_rows", ["y_packed", "x", "t", "y", "y_edges"]),
        ("combine_edges", ["y_packed", "t", "y", "y_edges"]),
    ]


def test_scratch_memory_is_dropped() -> None:
    found = program()
    scratch = {step["name"] for step in steps(found, "alloc")} - {"y"}
    assert scratch < freed(found)
    # Each chunk has 16 rows, and leaves two of 64 elements; behind the last row comes one more.
    shapes = {step["name"]: step["shape"] for step in steps(found, "alloc")}
    assert shapes["y_packed"] == [609]
    assert shapes["y_edges"] == [2 * 38 * 64]


def test_scratch_memory_takes_no_name_of_the_program() -> None:
    found = program(taken="y_counts")
    assert {"name": "y_counts_"}.items() <= next(s for s in steps(found, "alloc") if "counts" in s["name"]).items()


def test_a_number_that_all_places_start_with_is_in_the_text() -> None:
    found = program("f32(-1.5)")
    assert all("t" not in args for _, args in launches(found))
    assert (
        'fmath.combine_rows(packed, source, None, out, edges, "add", -1.5, 600, 300,' in found["kernels"][-2]["source"]
    )


@pytest.mark.parametrize(("rows", "key"), [(32766, "i16"), (32767, "i32")])
def test_places_are_sorted_as_narrow_as_they_are(rows: int, key: str) -> None:
    text = GRAPH.format(start="f32(0.0)", rows=rows, more="", returned="").replace("600", str(rows))
    policy = Policy(**POLICY, combined_in_order=True)
    found = emit_program(schedule(parse_graph(text), policy=policy)).to_mapping()
    (sort,) = steps(found, "extern")
    assert sort["target"] == "aten.sort.stable"
    (keys,) = [step for step in steps(found, "alloc") if step["name"] == sort["args"][0]["ref"]]
    assert keys["dtype"] == key
    assert set(sort["results"]) < freed(found)


def test_counts_are_all_that_is_added_atomically() -> None:
    accesses = {
        (kernel["name"].rpartition("_")[0], param["name"])
        for kernel in program()["kernels"]
        for param in kernel["params"]
        if param["access"] == "atomic"
    }
    assert accesses == {("count_places", "counts")}
