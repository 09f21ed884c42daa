"""Multivariate reduction: products in sizes replaced by what they are known to equal.

Source: Cox, Little, O'Shea, "Ideals, Varieties, and Algorithms", chapter 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from .size_generators import Monomial, monomial_order, monomial_quotient, symbols_in
from .size_polynomials import Size, polynomial, terms_of


def greatest_product(size: Size, known: AbstractSet[str]) -> tuple[Monomial, int] | None:
    """Returns the greatest term that has several symbols, with its coefficient; None if there is none.

    A term is greater than another if more of its factors have symbols that are not ``known``, then if it is of a higher
    degree. What multiplies both does not change that: it is a monomial order, of the kind that eliminates symbols.
    """
    terms = [(monomial, factor) for monomial, factor in terms_of(size) if sum(power for _, power in monomial) > 1]
    return max(terms, key=lambda term: _rank(term[0], known), default=None)


def _rank(monomial: Monomial, known: AbstractSet[str]) -> tuple[int, int, tuple[Any, ...]]:
    unknown = [power for factor, power in monomial if any(found.name not in known for found in symbols_in(factor.size))]
    return sum(unknown), sum(power for _, power in monomial), monomial_order(monomial)


def reduced(size: Size, rules: Mapping[Monomial, Size]) -> Size:
    """Returns a size with products replaced by what they equal, whose terms are all less, until none of them is left.

    A term gives way to lesser ones each time, so it ends. It is a multivariate division.
    """
    while True:
        found = next(
            (
                (monomial, factor, rest, by)
                for monomial, factor in terms_of(size)
                for product, by in rules.items()
                if (rest := monomial_quotient(monomial, product)) is not None
            ),
            None,
        )
        if found is None:
            return size
        monomial, factor, rest, by = found
        size = size - polynomial({monomial: factor}) + polynomial({rest: factor}) * by
