"""What symbolic sizes are polynomials of: generators, monomials and their text.

A *generator* is a symbol with what is known of it, or a floor quotient, minimum or maximum of sizes. A monomial is a
product of powers of generators, in the order of their texts.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Size: TypeAlias = Any
"""An ``int``, or a `size_polynomials.Symbolic`, which is not named here, since it is made of generators."""


class Generator:
    """What polynomials are made of; interned, ordered by ``order``.

    Attributes:
        low, high: least and greatest value, None where there is no bound.
        order: its text, which identifies it.
    """

    __slots__ = ("high", "low", "order", "size")

    low: int | None
    high: int | None
    order: str
    size: Size


class Symbol(Generator):
    """A named integer, with the value that it had when the program was captured, for heuristics alone."""

    __slots__ = ("hint", "name")

    name: str
    hint: int | None


class Floor(Generator):
    """``floor(numerator / divisor)``, the divisor at least 1."""

    __slots__ = ("divisor", "numerator")

    numerator: Size
    divisor: Size


class Extreme(Generator):
    """The least (``min``) or greatest (``max``) of some sizes."""

    __slots__ = ("function", "operands")

    function: str
    operands: tuple[Size, ...]


Monomial: TypeAlias = tuple[tuple[Generator, int], ...]
Terms: TypeAlias = dict[Monomial, int]

GENERATORS: dict[Any, Generator] = {}
"""All that this process has made, by their kind and what identifies them within it."""

_LAST = ("\U0010ffff", 0)


def monomial_order(monomial: Monomial) -> tuple[Any, ...]:
    """Returns what terms are sorted by: lexicographic order, by generators and then by falling powers."""
    return (*((generator.order, -power) for generator, power in monomial), _LAST)


def monomial_product(a: Monomial, b: Monomial) -> Monomial:
    """Returns the product of two monomials."""
    if not a or not b:
        return a or b
    powers = dict(a)
    for generator, power in b:
        powers[generator] = powers.get(generator, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: item[0].order))


def monomial_quotient(a: Monomial, b: Monomial) -> Monomial | None:
    """Returns the quotient of two monomials, None if the second does not divide the first."""
    powers = dict(a)
    for generator, power in b:
        left = powers.get(generator, 0) - power
        if left < 0:
            return None
        powers[generator] = left
    return tuple((generator, power) for generator, power in powers.items() if power)


def terms_text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    """Returns the text of a sum of multiples of monomials, which `sizes.parse_size` reads."""
    parts = [_term_text(monomial, coefficient) for monomial, coefficient in terms]
    return parts[0] + "".join(part if part.startswith("-") else f"+{part}" for part in parts[1:])


def _term_text(monomial: Monomial, coefficient: int) -> str:
    if not monomial:
        return str(coefficient)
    factors = [generator.order if power == 1 else f"{generator.order}**{power}" for generator, power in monomial]
    if abs(coefficient) != 1:
        factors.insert(0, str(abs(coefficient)))
    return f"{'-' if coefficient < 0 else ''}{'*'.join(factors)}"


def generators_in(size: Size) -> dict[Generator, None]:
    """Returns the generators of a size, in order, those inside of others not included."""
    terms = () if type(size) is int else size.terms
    return {generator: None for monomial, _ in terms for generator, _ in monomial}


def symbols_in(size: Size) -> dict[Symbol, None]:
    """Returns the symbols that a size depends on, in order."""
    found: dict[Symbol, None] = {}
    pending = list(reversed(generators_in(size)))
    while pending:
        match pending.pop():
            case Symbol() as generator:
                found[generator] = None
            case Floor(numerator=numerator, divisor=divisor):
                pending.extend(reversed([*generators_in(numerator), *generators_in(divisor)]))
            case Extreme(operands=operands):
                pending.extend(reversed([generator for operand in operands for generator in generators_in(operand)]))
    return found
