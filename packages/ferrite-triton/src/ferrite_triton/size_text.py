"""Symbolic sizes: as params and text of a kernel, and in the integer mini-language of the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ferrite_ir import sizes
from ferrite_ir.polynomials import Extreme, Floor, Generator, Symbol
from ferrite_ir.sizes import Size, Symbolic

Expr = Any
"""An integer, a name, or ``[operator, operand, …]``: see docs/kernel-spec.md."""


@dataclass(slots=True)
class SizeParams:
    """The size params of one kernel: one for each irreducible factor of its sizes, named as they are first needed.

    A factor is a param, not a symbol, because what a compiler wants to know of a size is what divides it; and equal
    layers
    at different symbols are one kernel.
    """

    names: dict[Symbolic, str] = field(default_factory=dict)

    def text(self, size: Size) -> str:
        """Returns Triton text for a size: a number, a name or a product."""
        return " * ".join(map(str, self._parts(size))) if isinstance(size, Symbolic) else str(size)

    def operand(self, size: Size) -> str:
        """Returns the same, in parentheses where it is a product."""
        text = self.text(size)
        return f"({text})" if " " in text else text

    def expression(self, size: Size) -> Expr:
        """Returns a size in the mini-language, over the names of the params."""
        if not isinstance(size, Symbolic):
            return size
        parts = self._parts(size)
        return parts[0] if len(parts) == 1 else ["mul", *parts]

    def _parts(self, size: Symbolic) -> list[int | str]:
        number, factors = sizes.factors(size)
        parts: list[int | str] = [self._name(factor) for factor, power in factors for _ in range(power)]
        return parts if number == 1 else [*parts, number]

    def _name(self, factor: Symbolic) -> str:
        return self.names.setdefault(factor, f"n{len(self.names)}")


def host_expression(size: Size) -> Expr:
    """Returns a size in the mini-language, over the names of its symbols; sizes nest as deeply as users write them."""
    if not isinstance(size, Symbolic):
        return size
    terms: list[Expr] = []
    for monomial, coefficient in size.terms:
        factors: list[Expr] = [_generator(generator) for generator, power in monomial for _ in range(power)]
        if coefficient != 1 or not factors:
            factors.append(coefficient)
        terms.append(factors[0] if len(factors) == 1 else ["mul", *factors])
    return terms[0] if len(terms) == 1 else ["add", *terms]


def _generator(generator: Generator) -> Expr:
    match generator:
        case Symbol(name=name):
            return name
        case Floor(numerator=numerator, divisor=divisor):
            return ["floordiv", host_expression(numerator), host_expression(divisor)]
        case Extreme(function=function, operands=operands):
            return [function, *map(host_expression, operands)]
    raise TypeError(f"not a generator: {generator!r}")


def magnitude(size: Size) -> Size:
    """Returns a size that is at least as large as ``size`` and ``-size``."""
    if not isinstance(size, Symbolic):
        return abs(size)
    if sizes.is_provably_at_most(0, size):
        return size
    if sizes.is_provably_at_most(size, 0):
        return -size
    parts = [
        sizes.product([abs(coefficient), *(_reach(g) for g, p in m for _ in range(p))]) for m, coefficient in size.terms
    ]
    return sum(parts[1:], parts[0])


def _reach(generator: Generator) -> Size:
    if generator.low is not None and generator.low >= 0:
        return generator.size
    if isinstance(generator, Floor):
        return magnitude(generator.numerator) + 1
    if isinstance(generator, Extreme):
        return sizes.maximum(*map(magnitude, generator.operands))
    return sizes.maximum(generator.size, -generator.size)
