"""A maximum and its sum of exponentials become one reduction exactly where rows are walked in blocks."""

from __future__ import annotations

import math

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Reduction
from ferrite_scheduler import Policy, Target, schedule

LOOPED_COLUMNS = Policy(persistent_elements_outer=2, persistent_elements_again=2)
SHORT = Policy(persistent_elements=4, persistent_elements_outer=2, persistent_elements_again=2)
SAFE = "where(eq(abs({m}), f32(inf)), f32(0.0), {m})"
ROWS = """graph @f(x: f32[5, 9]) -> (m, s) {{
  m: f32[{shape}] = reduce max [{dims} | r < 9] x[i, r]
  s: f32[5] = reduce sum [i < 5 | k < 9] exp(sub(x[i, k], {shift}))
}}"""
PLAIN = ROWS.format(shape="5", dims="i < 5", shift="m[i]")
KEPT = ROWS.format(shape="5, 1", dims="i < 5, one < 1", shift="m[i, 0]")
GUARDED = ROWS.format(shape="5", dims="i < 5", shift=SAFE.format(m="m[i]"))
INPUTS = [
    [
        [0.5, -1.0, 2.0, 3.5, -2.0, 1.0, 0.0, 3.5, 1.5],
        [1.0, math.inf, 0.0, -1.0, -math.inf, 2.0, 3.0, 1.0, 0.5],
        [-math.inf] * 9,
        [-math.inf, -math.inf, -3.0, -2.5, *[-math.inf] * 4, -2.0],
        [1.0, math.nan, 0.0, -1.0, -math.inf, 2.0, 3.0, 1.0, 0.5],
    ]
]


def combines(graph) -> list[str]:
    return [definition.combine for definition in graph.definitions if isinstance(definition, Reduction)]


@pytest.mark.parametrize("text", [PLAIN, KEPT, GUARDED], ids=["plain", "kept dim", "guarded"])
def test_long_rows_take_one_reduction_with_the_same_results_also_for_infinite_rows(text):
    found = check(text, policy=SHORT, inputs=INPUTS)
    assert combines(found.graph) == ["online_softmax"]
    assert combines(schedule(parse_graph(text)).graph) == ["max", "sum"], "a tile holds nine elements"


def test_columns_have_their_own_limit():
    text = """graph @f(x: f32[9, 5]) -> (m, s) {
      m: f32[5] = reduce max [i < 5 | r < 9] x[r, i]
      s: f32[5] = reduce sum [i < 5 | r < 9] exp(sub(x[r, i], m[i]))
    }"""
    assert combines(check(text, policy=LOOPED_COLUMNS).graph) == ["online_softmax"]
    assert combines(schedule(parse_graph(text), policy=Policy(persistent_elements=2)).graph) == ["max", "sum"]


@pytest.mark.parametrize(
    ("top", "body"),
    [
        ("x[i, r]", "exp(sub(x[i, 8 - r], m[i]))"),
        ("x[i, r]", "exp(sub(x[i, r], m[4 - i]))"),
        ("neg(x[i, r])", "exp(sub(x[i, r], m[i]))"),
        ("x[i, r]", "exp2(sub(x[i, r], m[i]))"),
    ],
)
def test_what_is_no_softmax_stays(top, body):
    text = f"""graph @f(x: f32[5, 9]) -> (m, s) {{
      m: f32[5] = reduce max [i < 5 | r < 9] {top}
      s: f32[5] = reduce sum [i < 5 | r < 9] {body}
    }}"""
    assert combines(check(text, policy=SHORT).graph) == ["max", "sum"]


def test_a_second_sum_of_the_same_maximum_keeps_its_reduction():
    text = """graph @f(x: f32[5, 9]) -> (s, t) {
      m: f32[5] = reduce max [i < 5 | r < 9] x[i, r]
      s: f32[5] = reduce sum [i < 5 | r < 9] exp(sub(x[i, r], m[i]))
      t: f32[5] = reduce sum [i < 5 | k < 9] exp(sub(x[i, k], m[i]))
    }"""
    assert combines(check(text, policy=SHORT).graph) == ["online_softmax", "sum"]


def test_a_long_softmax_passes_over_its_rows_twice_and_is_split_where_programs_are_few():
    text = """graph @f(x: f32[{n}, 65536]) -> (y) {{
      m: f32[{n}] = reduce max [i < {n} | r < 65536] x[i, r]
      s: f32[{n}] = reduce sum [i < {n} | r < 65536] exp(sub(x[i, r], m[i]))
      y: f32[{n}, 65536] = loop [i < {n}, r < 65536] div(exp(sub(x[i, r], m[i])), s[i])
    }}"""
    many = schedule(parse_graph(text.format(n=4096)))
    assert len(many.kernels) == 1
    assert combines(many.graph) == ["online_softmax"]
    few = schedule(parse_graph(text.format(n=8)), Target(bandwidth=1e9))
    assert combines(few.graph) == ["online_softmax", "online_softmax"]
