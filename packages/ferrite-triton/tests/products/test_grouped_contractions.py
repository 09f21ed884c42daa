"""Products whose rows, or what is summed over, are in groups, run in plain Python beside the evaluator."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ferrite_ir import evaluate, parse_graph
from ferrite_scheduler import Policy, schedule
from ferrite_triton import emit_kernel
from ferrite_triton.tile import run_program
from numpy_programs import run_in_numpy
from tile_kernels import draw, flat, run_kernel

TILES = Policy(tile_products=True)
ROWS = """
graph @f(x: bf16[20, 9], w: bf16[5, 18, 9], ends: i32[5], s: f32[20, 18]) -> (y) {
  p: f32[20, 18] = contract [m < 20, n < 18 | k < 9 | g < 5] x[m, k] * w[g, n, k] segments m as g until ends[g]
  y: f32[20, 18] = loop [m < 20, n < 18] add(p[m, n], s[m, n])
}"""
SCALED = """
graph @f(x: bf16[20, 9], w: i8[5, 16, 9], c: f32[5], ends: i32[5], s: f32[20, 16]) -> (y) {
  p: f32[20, 16] = contract [m < 20, n < 16 | k < 9 | g < 5]
    x[m, k] * cast.bf16(mul(cast.f32(w[g, n, k]), c[g])) segments m as g until ends[g]
  y: f32[20, 16] = loop [m < 20, n < 16] add(p[m, n], s[m, n])
}"""
SUMS = """
graph @f(x: bf16[20, 9], w: bf16[20, 18], ends: i32[5], s: f32[5, 9, 18]) -> (y) {
  p: f32[5, 9, 18] = contract [g < 5, i < 9, j < 18 | m < 20] x[m, i] * w[m, j] segments m as g until ends[g]
  y: f32[5, 9, 18] = loop [g < 5, i < 9, j < 18] add(p[g, i, j], s[g, i, j])
}"""
GATE = (
    ROWS.replace("s: f32[20, 18]", "v: bf16[5, 18, 9]")
    .replace("s[m, n]", "q[m, n]")
    .replace(
        "  y:",
        """
  q: f32[20, 18] = contract [m < 20, n < 18 | k < 9 | e < 5] x[m, k] * v[e, n, k] segments m as e until ends[e]
  y:""",
    )
)
LATE = ROWS.replace("until ends[g]", "until add(ends[g], i32(1))")
ENDS = ([3, 3, 4, 17, 20], [0, 0, 0, 0, 0], [20, 20, 20, 20, 20], [4, 8, 12, 16, 20], [1, 2, 3, 3, 9])


@pytest.mark.parametrize("run", [run_program, run_in_numpy], ids=["evaluated", "numpy"])
@pytest.mark.parametrize("blocks", [2, 4, 16])
@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("text", [ROWS, SCALED, SUMS, GATE, LATE], ids=["rows", "scaled", "sums", "gate", "late"])
def test_groups_begin_and_end_anywhere(text: str, ends: list[int], blocks: int, run: Callable[..., None]) -> None:
    graph, generator = parse_graph(text), random.Random(0)
    memory: dict[str, list[Any]] = {
        value.name: draw(generator, int(value.type.storage_size), value.type.dtype) for value in graph.inputs
    }
    memory["ends"] = list(ends)
    inputs = [nested(iter(memory[value.name]), value.type.shape) for value in graph.inputs]
    (output,) = graph.outputs
    memory[output.name] = [None] * int(graph.values[output.name].type.storage_size)
    run_kernel(schedule(graph, policy=TILES), memory, blocks, run=run)
    (expected,) = evaluate(graph, inputs)
    assert memory[output.name] == list(flat(expected))


@pytest.mark.parametrize("ends", [[30, 40, 50, 60, 70], [9, 3, 12, 1, 30], [-4, -2, 3, 5, 7]], ids=str)
@pytest.mark.parametrize("text", [ROWS, SUMS], ids=["rows", "sums"])
def test_wrong_ends_access_nothing_that_is_not_there(text: str, ends: list[int]) -> None:
    graph = parse_graph(text)
    memory: dict[str, list[Any]] = {v.name: [1.0] * int(v.type.storage_size) for v in graph.inputs}
    memory["ends"] = ends
    memory["y"] = [0.0] * int(graph.values["y"].type.storage_size)
    run_kernel(schedule(graph, policy=TILES), memory, 4)  # an index that is out of bounds is an error


def nested(numbers: Any, shape: tuple[Any, ...]) -> Any:
    return [nested(numbers, shape[1:]) for _ in range(shape[0])] if shape else next(numbers)


def test_there_are_tiles_for_groups_wherever_they_begin() -> None:
    spec = emit_kernel(schedule(parse_graph(ROWS), policy=TILES).kernels[0])
    assert spec.grid == ["mul", ["add", ["floordiv", "y", "YBLOCK"], 6], ["ceildiv", "x", "XBLOCK"]]
    assert spec.blocks == {"GBLOCK": 8}
    assert [axis["kind"] for axis in spec.axes] == ["grid", "grid", "reduction"]


def test_where_groups_end_is_looked_up_once() -> None:
    source = emit_kernel(schedule(parse_graph(GATE), policy=TILES).kernels[0]).source
    assert source.count("ends = ") == 1
    assert source.count("tl.dot") == 2
