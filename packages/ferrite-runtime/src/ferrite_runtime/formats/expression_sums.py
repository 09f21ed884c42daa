"""Integer expressions as sums of products of names: what tells equal sizes from others, and adds up bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ferrite_runtime.formats.expressions import Expr

Factors: TypeAlias = "tuple[Expr, ...]"
"""The factors of a term, sorted: names, and expressions that are no sums or products; none for a number."""

Terms: TypeAlias = "Mapping[Factors, int]"
"""A sum: the coefficient of each product of factors, none of them 0."""

Names: TypeAlias = "frozenset[str]"


MAX_TERMS = 4096
"""Terms that a product is multiplied out to; one of more is a factor of its own."""


def terms_of(expr: Expr) -> dict[Factors, int]:
    """Returns an expression, multiplied out, as a sum of terms; equal sums are equal expressions."""
    if isinstance(expr, int):
        return {(): expr} if expr else {}
    if isinstance(expr, tuple) and expr[0] in ("add", "sub", "mul"):
        operator, first, *rest = expr
        result = terms_of(first)
        for operand in rest:
            other = terms_of(operand)
            if operator == "mul" and len(result) * len(other) > MAX_TERMS:
                return {(expr,): 1}
            result = (
                _product(result, other) if operator == "mul" else _sum(result, other, 1 if operator == "add" else -1)
            )
        return result
    return {(expr,): 1}


def expr_of(terms: Terms) -> Expr:
    """Returns a sum of terms as an expression."""
    parts: list[Expr] = []
    for factors, coefficient in sorted(terms.items(), key=repr):
        operands = (*factors, coefficient) if coefficient != 1 or not factors else factors
        parts.append(operands[0] if len(operands) == 1 else ("mul", *operands))
    if len(parts) < 2:
        return parts[0] if parts else 0
    return ("add", *parts)


def times(*exprs: Expr) -> Expr:
    """Returns a product of integers, multiplied out."""
    numbers = [expr for expr in exprs if isinstance(expr, int)]
    if len(numbers) == len(exprs):
        return math.prod(numbers)
    return expr_of(terms_of(("mul", 1, *exprs)))


def is_same(left: Expr, right: Expr) -> bool:
    """Tells whether two integers are surely equal."""
    return left == right or terms_of(left) == terms_of(right)


def is_number(terms: Terms) -> bool:
    """Tells whether a sum has no factors."""
    return not terms or set(terms) == {()}


def without_number(terms: Terms) -> Terms:
    """Returns a sum without the term that has no factors."""
    return {factors: coefficient for factors, coefficient in terms.items() if factors}


def bound_of(sums: Iterable[Terms]) -> dict[Factors, int]:
    """Returns a sum that is no less than any of these where no factor is negative: the largest of each coefficient."""
    result: dict[Factors, int] = {}
    for terms in sums:
        for factors, coefficient in terms.items():
            result[factors] = max(result.get(factors, 0), coefficient)
    return result


def is_within(terms: Terms, bound: Terms) -> bool:
    """Tells whether a sum is surely at most another one where no factor is negative."""
    return all(coefficient <= bound.get(factors, 0) for factors, coefficient in terms.items())


def total_of(sums: Iterable[Terms]) -> dict[Factors, int]:
    """Returns the sum of sums."""
    result: dict[Factors, int] = {}
    for terms in sums:
        result = _sum(result, terms, 1)
    return result


def grows(terms: Terms, lengths: Names) -> bool:
    """Tells whether a sum is surely neither negative nor smaller for larger lengths: names of what is not negative."""
    return all(
        coefficient > 0 and all(_grows(factor, lengths) for factor in factors) for factors, coefficient in terms.items()
    )


def _grows(factor: Expr, lengths: Names) -> bool:
    if isinstance(factor, tuple):
        operator, dividend, divisor = factor if len(factor) == 3 else ("", 0, 0)
        is_positive = isinstance(divisor, int) and divisor > 0
        return operator in ("floordiv", "ceildiv") and is_positive and grows(terms_of(dividend), lengths)
    return factor in lengths


def _sum(left: Terms, right: Terms, sign: int) -> dict[Factors, int]:
    result = dict(left)
    for factors, coefficient in right.items():
        result[factors] = result.get(factors, 0) + sign * coefficient
    return {factors: coefficient for factors, coefficient in result.items() if coefficient}


def _product(left: Terms, right: Terms) -> dict[Factors, int]:
    result: dict[Factors, int] = {}
    for one, a in left.items():
        for other, b in right.items():
            factors = tuple(sorted((*one, *other), key=repr))
            result[factors] = result.get(factors, 0) + a * b
    return {factors: coefficient for factors, coefficient in result.items() if coefficient}
