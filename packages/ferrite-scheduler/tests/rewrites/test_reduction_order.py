"""Reduction dims are put in the order of memory before anything is cut."""

from __future__ import annotations

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.rewrites.reductions.reduction_order import order_by_memory

POLICY = Policy(split_minimum=8)


def order_of(text: str, policy: Policy = POLICY) -> list[tuple[int, ...]]:
    graph = order_by_memory(parse_graph(text), policy)
    return [tuple(dim.size for dim in d.reduction_dims) for d in graph.definitions if hasattr(d, "reduction_dims")]


def graph_of(combine: str, strides: str, sizes: str = "c < 32, p < 10") -> str:
    operand = "x[n, c, p]"
    return f"""graph @f(x: f32[2, 32, 10]{strides}) -> (s) {{
      s: f32[2] = reduce {combine} [n < 2 | {sizes}] {operand}
    }}"""


@pytest.mark.parametrize("combine", ["sum", "max", "prod"])
def test_dims_are_sorted_by_memory(combine: str) -> None:
    assert order_of(graph_of(combine, "{320, 1, 32}")) == [(10, 32)]
    assert order_of(graph_of(combine, "{320, 10, 1}")) == [(32, 10)]
    check(graph_of(combine, "{320, 1, 32}"), policy=POLICY)


def test_short_axes_are_left_alone() -> None:
    assert order_of(graph_of("sum", "{320, 1, 32}"), Policy(split_minimum=321)) == [(32, 10)]


def test_positions_of_extrema_keep_their_order() -> None:
    text = """graph @f(x: f32[2, 32, 10]{320, 1, 32}) -> (v, i) {
      v: f32[2], i: i64[2] = reduce argmax [n < 2 | c < 32, p < 10] (x[n, c, p], index.i64(c * 10 + p))
    }"""
    assert order_of(text) == [(32, 10)]


def test_the_heaviest_operand_decides_for_all_reductions_over_equal_dims() -> None:
    text = """graph @f(x: f32[2, 32, 10]{320, 1, 32}, y: bf16[2, 32, 10]) -> (s, t) {
      t: f32[2] = reduce sum [n < 2 | c < 32, p < 10] cast.f32(y[n, c, p])
      s: f32[2] = reduce sum [n < 2 | c < 32, p < 10] x[n, c, p]
    }"""
    assert order_of(text) == [(10, 32), (10, 32)]


def test_operands_of_both_orders_leave_that_of_the_program() -> None:
    text = """graph @f(x: f32[2, 32, 10]{320, 1, 32}, y: f32[2, 32, 10]) -> (s) {
      s: f32[2] = reduce sum [n < 2 | c < 32, p < 10] mul(x[n, c, p], y[n, c, p])
    }"""
    assert order_of(text) == [(32, 10)]


def test_parts_of_groups_of_channels_last_images_are_whole_lines() -> None:
    text = """graph @f(x: f32[16, 128, 16384]{2097152, 1, 128}) -> (m) {
      m: f32[16, 4], q: f32[16, 4], w: f32[16, 4] = reduce welford [n < 16, g < 4 | c < 32, p < 16384] x[n, g*32 + c, p]
    }"""
    first = schedule(parse_graph(text), Target(), Policy()).graph.definitions[0]
    (load,) = first.bodies[0].loads
    assert str(load.indices[1]) == "g*32 + (r0 % 32)"
