"""Graphs whose kernels, and tile programs which, are run in more than one way: in the tile evaluator, as NumPy."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from ferrite_ir import evaluate, parse_graph
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.scalar import Number
from hand_written import schedule_text
from tile_kernels import draw, flat, run_kernel

SEGMENTS = """by (where(gt(right1[], f32(0.75)), right0[], add(left0[], right0[])), maximum(left1[], right1[]))
  [d0 < 3, r0 < 70] along r0 (x[d0, r0], x[d0, r0])"""

GRAPHS = {
    "pointwise": ("pointwise", "y: f32[3, 70] = loop [d0 < 3, d1 < 70] relu(sub(x[d0, d1], f32(0.25)))"),
    "bits": (
        "pointwise",
        "y: f32[3, 70] = loop [d0 < 3, d1 < 70] where(lt(x[d0, d1], f32(0.0)), neg(x[d0, d1]), f32(2.0))",
    ),
    "transposed": ("pointwise", "y: f32[70, 3] = loop [d0 < 70, d1 < 3] add(x[d1, d0], f32(1.0))"),
    "halves": ("pointwise", "y: f32[3, 70] = loop [d0 < 3, d1 < 70] cast.f32(rounded.f16(div(x[d0, d1], f32(3.0))))"),
    "sum": ("persistent", "y: f32[3] = reduce sum [d0 < 3 | r0 < 70] x[d0, r0]"),
    "column sum": ("persistent", "y: f32[70] = reduce sum [d0 < 70 | r0 < 3] x[r0, d0]"),
    "looped maximum": ("looped", "y: f32[3] = reduce max [d0 < 3 | r0 < 70] x[d0, r0]"),
    "looped argmax": (
        "looped",
        "v: f32[3], y: i64[3] = reduce argmax [d0 < 3 | r0 < 70] (x[d0, r0], index.i64(r0))",
    ),
    "normalised": (
        "persistent",
        """m: f32[3] = reduce max [d0 < 3 | r0 < 70] x[d0, r0]
  y: f32[3, 70] = loop [d0 < 3, r0 < 70] sub(x[d0, r0], m[d0])""",
    ),
    "two loops": (
        "looped",
        """m: f32[3] = reduce sum [d0 < 3 | r0 < 70] x[d0, r0]
  y: f32[3, 70] = loop [d0 < 3, r0 < 70] mul(x[d0, r0], m[d0])""",
    ),
    "scan": ("scan", "y: f32[3, 70] = scan sum [d0 < 3, r0 < 70] along r0 x[d0, r0]"),
    "scan from the end": ("scan", "y: f32[3, 70] = scan reverse sum [d0 < 3, r0 < 70] along r0 x[d0, r0]"),
    "user's scan": ("scan", f"y: f32[3, 70], p: f32[3, 70] = scan {SEGMENTS}"),
    "user's scan in blocks": ("looped", f"y: f32[3, 70], p: f32[3, 70] = scan {SEGMENTS}"),
    "user's scan in blocks from the end": ("looped", f"y: f32[3, 70], p: f32[3, 70] = scan reverse {SEGMENTS}"),
    "user's scan from the end": ("scan", f"y: f32[3, 70], p: f32[3, 70] = scan reverse {SEGMENTS}"),
    "user's scan of flags": (
        "looped",
        """b: bool[3, 70] = scan reverse by (logical_not(bitxor(left0[], right0[])))
    [d0 < 3, r0 < 70] along r0 lt(x[d0, r0], f32(0.0))
  y: f32[3, 70] = loop [d0 < 3, r0 < 70] where(b[d0, r0], f32(1.0), f32(2.0))""",
    ),
    "bfloat16": ("pointwise", "y: bf16[3, 70] = loop [d0 < 3, d1 < 70] cast.bf16(div(x[d0, d1], f32(3.0)))"),
    "integers": ("pointwise", "y: i8[3, 70] = loop [d0 < 3, d1 < 70] cast.i8(mul(x[d0, d1], f32(100.0)))"),
    "looped product": ("looped", "y: f32[3] = reduce prod [d0 < 3 | r0 < 70] x[d0, r0]"),
    "softmax": (
        "persistent",
        """m: f32[3] = reduce max [d0 < 3 | r0 < 70] x[d0, r0]
  e: f32[3, 70] = loop [d0 < 3, r0 < 70] exp(sub(x[d0, r0], m[d0]))
  s: f32[3] = reduce sum [d0 < 3 | r0 < 70] e[d0, r0]
  y: f32[3, 70] = loop [d0 < 3, r0 < 70] div(e[d0, r0], s[d0])""",
    ),
    "online softmax": (
        "looped",
        """m: f32[3], s: f32[3] = reduce online_softmax [d0 < 3 | r0 < 70] (x[d0, r0])
  y: f32[3, 70] = loop [d0 < 3, r0 < 70] div(exp(sub(x[d0, r0], m[d0])), s[d0])""",
    ),
    "moments": (
        "looped",
        """m: f32[3], q: f32[3], w: f32[3] = reduce welford [d0 < 3 | r0 < 70] (x[d0, r0])
  y: f32[3, 70] = loop [d0 < 3, r0 < 70] mul(sub(x[d0, r0], m[d0]), rsqrt(q[d0]))""",
    ),
    "sort": ("sort", "v: f32[3, 70], y: i64[3, 70] = sort [d0 < 3, r0 < 70] along r0 x[d0, r0]"),
    "largest five": ("sort", "y: f32[3, 5], i: i64[3, 5] = sort descending top 5 [d0 < 3, r0 < 70] along r0 x[d0, r0]"),
}

CALLING = {"online softmax", "sort", "largest five"}
"""Graphs whose kernels call device functions, which mean nothing to the tile evaluator."""

TOLERANT = {"softmax": 1e-6, "online softmax": 1e-6, "moments": 2e-6}
"""Relative to 1: float32 sums in another order and functions in float32, beside float64 throughout."""


def graph_text(body: str) -> str:
    """Returns a graph of an input ``x``, of these definitions."""
    return f"graph @f(x: f32[3, 70]) -> (y) {{\n  {body}\n}}"


EXAMPLES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], list[Number]]] = {
    "what a loop carries is replaced at once": (
        """tile @fibonacci(out0: *i64, n: i32) {
  for round: i32 = i32(0), n, i32(1) {
    carry a: i64 = i64(0)
    carry b: i64 = i64(1)
    next a = b
    next b = add(a, b)
  }
  store(out0, a)
}""",
        {"out0": [0], "n": 10},
        (1,),
        [55],
    ),
    "instances of a grid add to one element": (
        """tile @count(out0: *i32) {
  atomic(out0, add(program_id(axis=0), mul(program_id(axis=1), num_programs(axis=0))), mode=add)
}""",
        {"out0": [0]},
        (3, 2),
        [15],
    ),
    "instances find their range of several": (
        """tile @ranges(out0: *i32, n: i32) {
  id: i32 = program_id(axis=0)
  place: i32, target: *i32, sign: i32 = dispatch(id, i32(2), out0, i32(1), n, offset(out0, i32(2)), i32(-1), i32(1), offset(out0, add(n, i32(2))), i32(10), columns=2)
  store(offset(target, place), mul(add(id, i32(1)), sign))
}""",  # noqa: E501 - a statement is a line
        {"out0": [0] * 7, "n": 3},
        (7,),
        [1, 2, -3, -4, -5, 60, 70],
    ),
    "a block reaches past the end of rows and columns": (
        """tile @edge(in0: *bf16, out0: *bf16) {
  matrix: descriptor bf16[2, 4] = describe(offset(in0, i32(1)), i32(2), i32(3), i32(5), i32(1), shape=[2, 4])
  block: bf16[2, 4] = load_block(matrix, i32(1), sub(program_id(axis=0), i32(1)))
  place: i32[2, 4] = add(expand(mul(lanes(extent=2), i32(4)), axes=[1]), expand(lanes(extent=4), axes=[0]))
  store(offset(out0, place), block)
}""",
        {"in0": [float(number) for number in range(10)], "out0": [9.0] * 8},
        (1,),
        [0.0, 6.0, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0],
    ),
}
"""Programs, what they are given, their grid, and what is in ``out0`` afterwards."""

ASSERTING = """tile @f(in0: *i64) [XBLOCK] {
  x: i32[XBLOCK] = lanes(extent=XBLOCK)
  a: i64[XBLOCK] = load(offset(in0, x), mask=lt(x, i32(3)), other=i64(99))
  assert(lt(a, i64(5)), message="index out of bounds of 5 elements", mask=lt(x, i32(3)))
}"""
"""Refuses elements that are no less than 5."""


def check_graph(name: str, blocks: int, run: Callable[..., None]) -> None:
    """Runs the kernel of one of `GRAPHS`, and compares with what the graph computes; ``run`` as in `run_kernel`."""
    form, body = GRAPHS[name]
    text = graph_text(body)
    values = draw(random.Random(0), 210, F32)
    if name == "looped product":
        values = [1.0 if value == 0 else math.copysign(1.0, value) for value in values]
    (expected,) = evaluate(parse_graph(text), [[values[70 * row : 70 * row + 70] for row in range(3)]])
    found: list[Any] = [0] * len(flat(expected))
    run_kernel(schedule_text(text, form), {"x": list(values), "y": found}, blocks, run)
    assert found == pytest.approx(flat(expected), rel=TOLERANT.get(name, 0), abs=TOLERANT.get(name, 0))
