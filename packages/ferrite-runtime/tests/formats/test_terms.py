"""Sums of products of names: the value stays, and equal sums are found equal."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_runtime.formats.expression_sums import (
    bound_of,
    expr_of,
    grows,
    is_number,
    is_same,
    is_within,
    terms_of,
    times,
    total_of,
)
from ferrite_runtime.formats.expressions import evaluate

NAMES = ("a", "b", "c")
LENGTHS = frozenset(NAMES)


def operands(inner):
    several = st.tuples(st.sampled_from(["add", "mul"]), inner, inner, inner)
    two = st.tuples(st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner)
    divided = st.tuples(st.sampled_from(["floordiv", "ceildiv", "mod"]), inner, st.integers(1, 5))
    return several | two | divided


expressions = st.recursive(st.integers(-4, 9) | st.sampled_from(NAMES), operands, max_leaves=8)
values = st.fixed_dictionaries({name: st.integers(0, 6) for name in NAMES})


@settings(deadline=None)
@given(expressions, values)
def test_the_value_stays(expr, at) -> None:
    assert evaluate(expr_of(terms_of(expr)), at) == evaluate(expr, at)


@settings(deadline=None)
@given(expressions, expressions, values)
def test_the_same_is_equal(left, right, at) -> None:
    if is_same(left, right):
        assert evaluate(left, at) == evaluate(right, at)
    assert is_same(("mul", left, right), ("mul", right, left))
    assert is_same(("sub", ("add", left, right), right), left)


@settings(deadline=None)
@given(expressions, expressions, values)
def test_sums_products_and_bounds(left, right, at) -> None:
    one, other = evaluate(left, at), evaluate(right, at)
    assert evaluate(times(left, right), at) == one * other
    assert evaluate(expr_of(total_of((terms_of(left), terms_of(right)))), at) == one + other
    both = terms_of(left), terms_of(right)
    if all(grows(terms, LENGTHS) for terms in both):
        assert evaluate(expr_of(bound_of(both)), at) >= max(one, other) >= 0
        assert not is_within(*both) or one <= other


@settings(deadline=None)
@given(expressions, values, values)
def test_what_grows_does(expr, less, more) -> None:
    terms = terms_of(expr)
    if grows(terms, LENGTHS):
        at = {name: less[name] + more[name] for name in NAMES}
        assert 0 <= evaluate(expr, less) <= evaluate(expr, at)


def test_what_grows_and_what_may_not() -> None:
    assert grows(terms_of(("add", ("mul", "a", ("floordiv", "b", 2)), 3)), LENGTHS)
    assert not grows(terms_of(("sub", "a", 1)), LENGTHS)
    assert not grows(terms_of("u"), LENGTHS)
    assert not grows(terms_of(("floordiv", ("sub", "a", 1), 2)), LENGTHS)
    assert not grows(terms_of(("floordiv", 9, "a")), LENGTHS)


def test_numbers_are_told_from_sums() -> None:
    assert is_number(terms_of(0))
    assert is_number(terms_of(("sub", ("add", "a", 3), "a")))
    assert not is_number(terms_of(("add", "a", 3)))
    assert times() == 1
    assert times(2, 3) == 6
    assert times("b", "a", 2) == times(2, "a", "b")
