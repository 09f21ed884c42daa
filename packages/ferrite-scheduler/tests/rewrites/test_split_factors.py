"""Products of float32 that may not be rounded have right factors in two parts of TF32."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Contract, Loop, Reduction
from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.model.contractions import right_parts
from ferrite_scheduler.rewrites.split_factors import split_factors

POLICY = Policy(tile_products=True, product_rows=1, wide_product_rows=1, split_points=256)


def graph_of(right: str = "w[n, k]", weights: str = "18, 256", points: int = 256, suffix: str = "") -> str:
    return f"""graph @f(x: f32[20, {points}], w: f32[{weights}]) -> (p) {{
      p: f32[20, 18] = contract{suffix} [m < 20, n < 18 | k < {points}] x[m, k] * {right}
    }}"""


def parts_of(text: str) -> list[str]:
    """Returns the names of what is made before the products."""
    graph = split_factors(parse_graph(text), POLICY)
    return [result.name for d in graph.definitions if isinstance(d, Loop) for result in d.results if result is not None]


def test_a_factor_that_lies_along_sums_is_its_own_first_part() -> None:
    assert parts_of(graph_of()) == ["p_low"]
    (product,) = (d for d in split_factors(parse_graph(graph_of()), POLICY).definitions if isinstance(d, Contract))
    first, second = right_parts(product) or (None, None)
    assert (first.source, second.source) == ("w", "p_low")
    check(graph_of(), policy=POLICY)


@pytest.mark.parametrize(
    ("right", "weights"), [("w[k, n]", "256, 18"), ("exp(w[n, k])", "18, 256"), ("w[n, 2*k]", "18, 512")]
)
def test_parts_of_others_are_copied(right: str, weights: str) -> None:
    assert parts_of(graph_of(right, weights)) == ["p_high", "p_low"]
    check(graph_of(right, weights), policy=POLICY)


def test_parts_of_a_factor_of_several_products_are_made_once() -> None:
    text = """graph @f(x: f32[20, 256], w: f32[18, 256]) -> (p, q) {
      p: f32[20, 18] = contract [m < 20, n < 18 | k < 256] x[m, k] * w[n, k]
      q: f32[20, 18] = contract [m < 20, n < 18 | k < 256] exp(x[m, k]) * w[n, k]
    }"""
    assert parts_of(text) == ["p_low"]
    check(text, policy=POLICY)


@pytest.mark.parametrize("text", [graph_of(suffix=" fast"), graph_of(points=255, weights="18, 255")])
def test_others_are_whole(text: str) -> None:
    """What may be rounded, and short sums, for which what is left out of a product counts."""
    graph = parse_graph(text)
    assert split_factors(graph, POLICY) is graph


def test_short_sums_are_reductions() -> None:
    found = check(graph_of(points=255, weights="18, 255"), policy=POLICY)
    assert [type(d) for d in found.graph.definitions] == [Reduction]


@pytest.mark.parametrize(("points", "shape"), [(8192, (2, 20, 18)), (8208, (20, 18))])
def test_sums_are_cut_where_their_parts_are_even(points: int, shape: tuple[int, ...]) -> None:
    text = graph_of(points=points, weights=f"18, {points}")
    found = schedule(parse_graph(text), Target(), replace(POLICY, product_part_step=4096, product_parts=2))
    products = [d for d in found.graph.definitions if isinstance(d, Contract)]
    assert all(right_parts(product) is not None for product in products)
    assert products[0].result.type.shape == shape


def test_products_of_few_columns_are_reductions() -> None:
    text = graph_of(weights="18, 256").replace("18", "15")
    assert [type(d) for d in schedule(parse_graph(text), Target(), POLICY).graph.definitions] == [Reduction]


def test_a_factor_that_a_call_has_changed_has_parts_of_its_own() -> None:
    text = """graph @f(x: f32[20, 256], w: f32[18, 256]) -> (p, q) {
      t: f32[18, 256] = loop [n < 18, k < 256] w[n, k]
      p: f32[20, 18] = contract [m < 20, n < 18 | k < 256] x[m, k] * t[n, k]
      extern lib.scale_.default(t, x) mutates (t) effects
      q: f32[20, 18] = contract [m < 20, n < 18 | k < 256] x[m, k] * t[n, k]
    }"""
    assert parts_of(text) == ["t", "p_low", "q_low"]
