"""What tile programs compute, beside what the graphs compute that they were made of."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from ferrite_ir import evaluate, parse_graph
from ferrite_triton.tile import EvaluationError, parse_tile, run_program
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
}


def graph_text(body: str) -> str:
    return f"graph @f(x: f32[3, 70]) -> (y) {{\n  {body}\n}}"


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("blocks", [1, 4, 16])
def test_a_program_computes_what_its_graph_does(name: str, blocks: int) -> None:
    form, body = GRAPHS[name]
    values = draw(random.Random(0), 210, parse_graph(graph_text(body)).inputs[0].type.dtype)
    rows: Any = [values[70 * row : 70 * row + 70] for row in range(3)]
    (expected,) = evaluate(parse_graph(graph_text(body)), [rows])
    schedule = schedule_text(graph_text(body), form)
    found: list[Any] = [math.nan] * len(flat(expected))
    run_kernel(schedule, {"x": list(values), "y": found}, blocks)
    assert found == flat(expected)


LOADING = """tile @f(in0: *f32, out0: *f32) [XBLOCK] {
  x: i32[XBLOCK] = lanes(extent=XBLOCK)
  a: f32[XBLOCK] = load(offset(in0, x), mask=lt(x, i32(3))OTHER)
  store(offset(out0, x), aMASK)
}"""


def run_loading(other: str, mask: str, out: list[Any]) -> list[Any]:
    program = parse_tile(LOADING.replace("OTHER", other).replace("MASK", mask))
    run_program(program, {"in0": [1.0, 2.0, 3.0], "out0": out}, {"XBLOCK": 4}, (1,))
    return out


def test_a_masked_load_gives_what_it_is_told_or_nothing_that_may_be_used() -> None:
    assert run_loading(", other=f32(9.0)", "", [0.0] * 4) == [1.0, 2.0, 3.0, 9.0]
    assert run_loading("", ", mask=lt(x, i32(3))", [0.0] * 4) == [1.0, 2.0, 3.0, 0.0]
    with pytest.raises(EvaluationError, match="what is stored is UNDEFINED"):
        run_loading("", "", [0.0] * 4)


def test_an_access_outside_of_memory_is_refused() -> None:
    with pytest.raises(EvaluationError, match="element 3 of out0, which has 3"):
        run_loading(", other=f32(9.0)", "", [0.0] * 3)


def test_what_a_loop_carries_is_replaced_at_once() -> None:
    program = parse_tile("""tile @fibonacci(out0: *i64, n: i32) {
      for round: i32 = i32(0), n, i32(1) {
        carry a: i64 = i64(0)
        carry b: i64 = i64(1)
        next a = b
        next b = add(a, b)
      }
      store(out0, a)
    }""")
    out: list[Any] = [0]
    run_program(program, {"out0": out, "n": 10}, {}, (1,))
    assert out == [55]


def test_instances_of_a_grid_add_to_one_element() -> None:
    program = parse_tile("""tile @count(out0: *i32) {
      atomic(out0, add(program_id(axis=0), mul(program_id(axis=1), num_programs(axis=0))), mode=add)
    }""")
    out: list[Any] = [0]
    run_program(program, {"out0": out}, {}, (3, 2))
    assert out == [15]


def test_an_assertion_stops_and_names_its_message() -> None:
    program = parse_tile("""tile @f(in0: *i64) [XBLOCK] {
      x: i32[XBLOCK] = lanes(extent=XBLOCK)
      a: i64[XBLOCK] = load(offset(in0, x), mask=lt(x, i32(3)), other=i64(99))
      assert(lt(a, i64(5)), message="index out of bounds of 5 elements", mask=lt(x, i32(3)))
    }""")
    run_program(program, {"in0": [4, 4, 4]}, {"XBLOCK": 4}, (1,))
    with pytest.raises(EvaluationError, match="index out of bounds of 5 elements"):
        run_program(program, {"in0": [4, 5, 4]}, {"XBLOCK": 4}, (1,))
