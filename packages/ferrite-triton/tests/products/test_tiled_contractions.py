"""Products of matrices tile by tile as tile programs, run in plain Python beside the evaluator of the language."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ferrite_ir import evaluate, parse_graph
from ferrite_scheduler import Policy, schedule
from ferrite_triton import emit_kernel, emit_program
from ferrite_triton.analysis import described_blocks
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.host.spec import KernelSpec
from ferrite_triton.kernels import tile_programs
from ferrite_triton.tile import run_program
from ferrite_triton.tile.statements import For
from numpy_programs import run_in_numpy
from tile_kernels import draw, flat, run_kernel

TILES = Policy(tile_products=True)


@pytest.fixture(autouse=True)
def small_products_have_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described_blocks, "LOWERING", replace(LOWERING, described_operations=0))


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


DESCRIBED = """
graph @f(x: bf16[20, 24], w: bf16[18, 24], s: f32[20, 18]) -> (y) {
  p: f32[20, 18] = contract [m < 20, n < 18 | k < 21] x[m, k] * w[n, k]
  y: f32[20, 18] = loop [m < 20, n < 18] add(p[m, n], s[m, n])
}"""
DESCRIBED_BATCH = """
graph @f(x: bf16[3, 21, 24], w: bf16[3, 21, 16]) -> (y) {
  p: f32[3, 20, 14] = contract [b < 3, m < 20, n < 14 | k < 21] x[b, k, m] * w[b, k, n + 1]
  y: f32[3, 20, 14] = loop [b < 3, m < 20, n < 14] relu(p[b, m, n])
}"""
BEHIND = DESCRIBED.replace("x: bf16[20, 24]", "x: bf16[20, 32]").replace("x[m, k]", "x[m, k + 8]")
GATED = DESCRIBED.replace(
    "  y:", "  q: f32[20, 18] = contract [m < 20, n < 18 | k < 21] x[m, k] * w[n, k + 1]\n  y:"
).replace("p[m, n], s", "mul(p[m, n], q[m, n]), s")


def blocks_of(text: str) -> dict[str, str]:
    """Returns the lines that make descriptors in the kernel of a graph, by their names."""
    source = emit_kernel(schedule(parse_graph(text), policy=TILES).kernels[0]).source
    lines = (line.strip().split(" = ") for line in source.splitlines() if "make_tensor_descriptor" in line)
    return {name: made.removeprefix("tl.make_tensor_descriptor") for name, made in lines}


def test_descriptors_say_where_factors_lie() -> None:
    left, right = "(in0, [20, 21], [24, 1], [YBLOCK, RBLOCK])", "(in1, [18, 21], [24, 1], [XBLOCK, RBLOCK])"
    assert blocks_of(DESCRIBED) == {"in0_blocks": left, "in1_blocks": right}
    batch = "(in0, [3, 21, 20], [504, 24, 1], [1, RBLOCK, YBLOCK])"
    assert blocks_of(DESCRIBED_BATCH) == {"in0_blocks": batch}  # the other factor begins 2 bytes behind a unit
    assert blocks_of(BEHIND)["in0_blocks"] == left.replace("in0", "in0 + 8").replace("[24", "[32")
    assert len(blocks_of(GATED)) == 2


@pytest.mark.parametrize(
    "text",
    [
        PRODUCT,
        UPDATE,
        DESCRIBED.replace("24]", "21]"),
        DESCRIBED.replace("bf16[20, 24]", "bf16[s, 24]")
        .replace("20", "s")
        .replace(") {", ") where s: size >= 1 ~ 20 {"),
    ],
    ids=["rows of 18 bytes", "an update of them", "rows of 42 bytes", "a symbolic size"],
)
def test_what_no_descriptor_describes_is_loaded_by_pointers(text: str) -> None:
    assert not blocks_of(text)
    spec = emit_kernel(schedule(parse_graph(text), policy=TILES).kernels[0])
    assert "l" not in [axis["name"] for axis in spec.axes]
    assert not any(param.get("access") == "scratch" for param in spec.params)


def test_a_small_product_is_loaded_by_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described_blocks, "LOWERING", replace(LOWERING, described_operations=2 * 20 * 18 * 21 + 1))
    assert not blocks_of(DESCRIBED)
    monkeypatch.setattr(described_blocks, "LOWERING", replace(LOWERING, described_operations=2 * 20 * 18 * 21))
    assert blocks_of(DESCRIBED)


def test_a_kernel_with_descriptors_is_given_memory_for_them() -> None:
    program = emit_program(schedule(parse_graph(DESCRIBED), policy=TILES))
    (spec,) = program.kernels
    assert isinstance(spec, KernelSpec)
    assert spec.axes[0] == {
        "name": "l", "kind": "descriptors", "size": 1, "hint": 1, "block": "LBLOCK", "max_block": 2,
    }  # fmt: skip
    assert spec.params[-1] == {
        "name": "scratch", "role": "tensor", "dtype": "i64", "access": "scratch", "align": 128, "elements": 1024 * 32,
        "each": 32,
    }  # fmt: skip
    steps = [step for step in program.steps if "scratch" in str(step.get("args", step.get("names", step.get("name"))))]
    assert [step["do"] for step in steps] == ["alloc", "launch", "free"]
    assert steps[0]["shape"] == [1024 * 32]


@pytest.mark.parametrize("blocks", [2, 4, 16])
@pytest.mark.parametrize("descriptors", [1, 2], ids=["pointers", "descriptors"])
@pytest.mark.parametrize("text", [DESCRIBED, DESCRIBED_BATCH, BEHIND, GATED])
@pytest.mark.parametrize("run", [run_program, run_in_numpy], ids=["evaluated", "numpy"])
def test_blocks_are_the_same_by_descriptors(text: str, descriptors: int, blocks: int, run: Callable[..., None]) -> None:
    check_product(text, blocks, run=run, descriptors=descriptors)


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
    check_product(text, blocks)


def check_product(text: str, blocks: int, **how: Any) -> None:
    graph, generator = parse_graph(text), random.Random(0)
    memory: dict[str, list[Any]] = {
        value.name: draw(generator, int(value.type.storage_size), value.type.dtype) for value in graph.inputs
    }
    inputs = [nested(iter(memory[value.name]), value.type.shape) for value in graph.inputs]
    (output,) = graph.outputs
    memory[output.name] = [None] * int(graph.values[output.name].type.storage_size)
    run_kernel(schedule(graph, policy=TILES), memory, blocks, **how)
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
    assert line.count("fmath.to_tf32(") == (2 if "tf32" in precision else 0)
    facts = spec.facts.to_mapping()
    assert facts["factor_bytes"] == {"bf16": 2, "f32": 4}.get(dtype, 1)
    assert facts.get("partial_sums", False) == (dtype == "f8e5m2")


@pytest.mark.parametrize(
    ("points", "turned", "elements"), [(9, False, (1, 1)), (9, True, (1, None)), (8, False, (None, None))]
)
def test_factors_whose_rows_begin_anywhere_are_loaded_element_by_element(
    points: int, elements: tuple[int | None, int | None], *, turned: bool
) -> None:
    text = PRODUCT.replace("9]", f"{points}]").replace("k < 9", f"k < {points}")
    text = text.replace("18, 9]", "9, 18]").replace("w[n, k]", "w[k, n]") if turned else text
    (kernel,) = schedule(parse_graph(text), policy=TILES).kernels
    facts = emit_kernel(kernel).facts.to_mapping()
    assert (facts.get("left_elements"), facts.get("right_elements")) == elements


def test_what_updates_memory_takes_each_tile_once() -> None:
    kernel = schedule(parse_graph(UPDATE), policy=TILES).kernels[0]
    assert len(kernel.body) == 2
    assert "t" not in [axis["name"] for axis in emit_kernel(kernel).axes]
