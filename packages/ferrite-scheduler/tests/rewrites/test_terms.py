"""What depends on the outermost and the innermost dim of a large loop is computed once, and nothing else is moved."""

from __future__ import annotations

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Loop
from ferrite_scheduler import Policy, schedule

POLICY = Policy(small_kernel_bytes=0)
GRAPH = """graph @f(x: f32[2, 80, 3], s: f32[2, 3], w: f32[3]) -> (y) {{
  y: f32[2, 80, 3] = loop [n < 2, p < 80, c < 3] {body}
}}"""
SCALE = "mul(rsqrt(add(mul(s[n, c], s[n, c]), f32(1.0))), div(w[c], f32(3.0)))"


def loops_of(body: str, policy: Policy = POLICY) -> list[tuple[int, ...]]:
    """Returns the extents of the loops that a body becomes, after checking what they compute."""
    found = check(GRAPH.format(body=body), policy=policy)
    return [tuple(dim.size for dim in d.dims) for d in found.graph.definitions if isinstance(d, Loop)]


def test_a_factor_of_each_channel_of_each_image_is_computed_once() -> None:
    assert loops_of(f"mul(x[n, p, c], {SCALE})") == [(2, 3), (2, 80, 3)]


def test_two_factors_are_two_values() -> None:
    body = f"add(mul(x[n, p, c], {SCALE}), sub(f32(1.0), mul({SCALE}, f32(0.5))))"
    assert loops_of(body) == [(2, 3), (2, 3), (2, 80, 3)]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("mul(x[n, p, c], rsqrt(div(w[c], w[c])))", "one for each column is computed once for a tile of rows"),
        ("mul(x[n, p, c], rsqrt(div(exp(s[n, 0]), f32(2.0))))", "one for each row is computed once for the row"),
        ("mul(x[n, p, c], rsqrt(div(x[n, p, 0], x[0, p, c])))", "this one is another at each point"),
        ("mul(x[n, p, c], mul(s[n, c], w[c]))", "so little is computed as fast as it is read"),
        (f"masked(lt(x[n, p, c], f32(9.0)), mul(x[n, p, c], {SCALE}), f32(0.0))", "what is guarded may not be read"),
    ],
)
def test_other_values_stay(body: str, why: str) -> None:
    body = body.replace("rsqrt(div(x[n, p, 0], x[0, p, c]))", "exp(div(x[n, p, 0], f32(3.0)))")
    assert loops_of(body) == [(2, 80, 3)], why


def test_a_factor_of_each_group_is_read_through_a_value_of_each_channel() -> None:
    """Else each element divides its position, and loads a number of its own instead of a vector of neighbours."""
    text = """graph @f(x: f32[2, 80, 6], s: f32[2, 2]) -> (y) {
      y: f32[2, 80, 6] = loop [n < 2, p < 80, c < 6] mul(x[n, p, c], div(s[n, c // 3], f32(3.0)))
    }"""
    loops = [d for d in check(text, policy=POLICY).graph.definitions if isinstance(d, Loop)]
    assert [tuple(dim.size for dim in loop.dims) for loop in loops] == [(2, 6), (2, 80, 6)]


def test_what_is_read_through_a_divided_index_is_a_value_also_of_one_image() -> None:
    """Else the columns of a tile are cut where groups begin; one for each column is for a tile to compute once."""
    text = """graph @f(x: f32[1, 80, 6], s: f32[1, 2], w: f32[6]) -> (y) {
      y: f32[1, 80, 6] = loop [n < 1, p < 80, c < 6]
        add(mul(x[n, p, c], mul(rsqrt(add(s[n, c // 3], f32(1.0))), w[c])), w[c])
    }"""
    found = check(text, policy=POLICY)
    loops = [d for d in found.graph.definitions if isinstance(d, Loop)]
    assert [tuple(dim.size for dim in loop.dims) for loop in loops] == [(6,), (1, 80, 6)]


def test_small_results_stay() -> None:
    assert loops_of(f"mul(x[n, p, c], {SCALE})", Policy()) == [(2, 80, 3)]


@pytest.mark.parametrize(("operand", "count"), [("f32[2, 80, 3]{240, 1, 80}", 1), ("f32[2, 80, 3]", 2)])
def test_the_order_in_memory_says_what_is_outermost(operand: str, count: int) -> None:
    """In a result whose places lie innermost, each row has one factor; threads that transpose hold many rows each."""
    text = GRAPH.format(body=f"mul(x[n, p, c], {SCALE})").replace("y: f32[2, 80, 3]", "y: f32[2, 80, 3]{240, 1, 80}")
    graph = schedule(parse_graph(text.replace("x: f32[2, 80, 3]", f"x: {operand}", 1)), policy=POLICY).graph
    assert len([d for d in graph.definitions if isinstance(d, Loop)]) == count
