"""Products of matrices tile by tile as tile programs, run in plain Python beside the evaluator of the language."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ferrite_ir import evaluate, parse_graph
from ferrite_scheduler import Policy, schedule
from ferrite_triton import emit_kernel
from ferrite_triton.kernels import tile_programs
from ferrite_triton.tile.statements import For
from tile_kernels import draw, flat, run_kernel

TILES = Policy(tile_products=True)

PRODUCT = """
graph @f(x: bf16[20, 9], w: bf16[18, 9], s: f32[20, 18]) -> (y) {
  p: f32[20, 18] = contract [m < 20, n < 18 | k < 9] x[m, k] * w[n, k]
  y: f32[20, 18] = loop [m < 20, n < 18] add(p[m, n], s[m, n])
}"""
BATCH = """
graph @f(x: bf16[3, 20, 5], w: bf16[3, 18, 5]) -> (y) {
  p: f32[3, 20, 18] = contract [b < 3, m < 20, n < 18 | k < 5] x[b, m, k] * w[b, n, k]
  y: f32[3, 20, 18] = loop [b < 3, m < 20, n < 18] relu(p[b, m, n])
}"""
UPDATE = """
graph @f(x: bf16[20, 9], w: bf16[18, 9], s: f32[20, 18]) -> (t) {
  p: f32[20, 18] = contract [m < 20, n < 18 | k < 9] x[m, k] * w[n, k]
  t: f32[20, 18] = update add s [m < 20, n < 18] at [m, n] p[m, n]
}"""


@pytest.mark.parametrize("blocks", [2, 4, 16])
@pytest.mark.parametrize(
    "text",
    [
        PRODUCT,
        BATCH,
        PRODUCT.replace("9]", "16]"),
        PRODUCT.replace("bf16", "f8e4m3fn"),
        PRODUCT.replace("bf16", "f32").replace("contract", "contract fast"),
    ],
    ids=["a matrix", "a batch", "of parts of rows", "of 8 bits", "of 32 bits"],
)
def test_each_tile_is_stored_whatever_the_number_of_tiles_of_a_program(text: str, blocks: int) -> None:
    graph, generator = parse_graph(text), random.Random(0)
    memory: dict[str, list[Any]] = {
        value.name: draw(generator, int(value.type.storage_size), value.type.dtype) for value in graph.inputs
    }
    inputs = [nested(iter(memory[value.name]), value.type.shape) for value in graph.inputs]
    (output,) = graph.outputs
    memory[output.name] = [None] * int(graph.values[output.name].type.storage_size)
    run_kernel(schedule(graph, policy=TILES), memory, blocks)
    (expected,) = evaluate(graph, inputs)
    assert memory[output.name] == list(flat(expected))


def nested(numbers: Any, shape: tuple[Any, ...]) -> Any:
    return [nested(numbers, shape[1:]) for _ in range(shape[0])] if shape else next(numbers)


def test_rounds_and_the_loop_inside_are_one_for_the_compiler() -> None:
    (kernel,) = schedule(parse_graph(PRODUCT), policy=TILES).kernels
    (program,) = tile_programs(kernel)
    (rounds,) = [statement for statement in program.body if isinstance(statement, For)]
    assert rounds.flattens
    (inside,) = [statement for statement in rounds.body if isinstance(statement, For)]
    assert not inside.flattens
    assert emit_kernel(kernel).axes[0] == {
        "name": "t", "kind": "rounds", "size": 1, "hint": 1, "block": "TBLOCK", "max_block": 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "head", "precision"),
    [
        ("bf16", "contract", ""),
        ("f32", "contract fast", ', input_precision="tf32"'),
        ("f8e4m3fn", "contract fast", ""),
        ("f8e5m2", "contract", ", max_num_imprecise_acc=min(128, RBLOCK)"),
    ],
)
def test_tensor_cores_round_no_more_than_they_may(dtype: str, head: str, precision: str) -> None:
    text = PRODUCT.replace("bf16", dtype).replace("contract", head)
    (kernel,) = schedule(parse_graph(text), policy=TILES).kernels
    spec = emit_kernel(kernel)
    (line,) = (line for line in spec.source.splitlines() if "tl.dot" in line)
    assert line.endswith(f", sum_1{precision})")
    facts = spec.facts.to_mapping()
    assert facts["factor_bytes"] == {"bf16": 2, "f32": 4}.get(dtype, 1)
    assert facts.get("partial_sums", False) == (dtype == "f8e5m2")


def test_what_updates_memory_takes_each_tile_once() -> None:
    kernel = schedule(parse_graph(UPDATE), policy=TILES).kernels[0]
    assert len(kernel.body) == 2
    assert "t" not in [axis["name"] for axis in emit_kernel(kernel).axes]
