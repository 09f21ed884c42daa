"""Symbolic sizes: as params and text of a kernel, and in the integer mini-language of the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ferrite_ir.language import sizes
from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.size_generators import Extreme, Floor, Generator, Symbol
from ferrite_ir.language.sizes import Size, Symbolic
from ferrite_triton.tile.build import add, apply, mul, quotient
from ferrite_triton.tile.language import Expression, Literal, Name, TileType

Expr = Any
"""An integer, a name, or ``[operator, operand, …]``: see docs/kernel-spec.md."""


@dataclass(slots=True)
class SizeParams:
    """The size params of one kernel: one for each irreducible factor of its sizes, named as they are first needed.

    A factor is a param, not a symbol, because what a compiler wants to know of a size is what divides it; and equal
    layers at different symbols are one kernel.
    """

    names: dict[Symbolic, str] = field(default_factory=dict)

    def typed(self, dtype: DType) -> Mapping[str, TileType]:
        """Returns the types of the params named so far, and of those that are named later."""
        return _Sizes(self, TileType(dtype))

    def text(self, size: Size) -> str:
        """Returns a size for people: a number, a name or a product."""
        return " * ".join(map(str, self._parts(size))) if isinstance(size, Symbolic) else str(size)

    def value(self, size: Size, dtype: DType) -> Expression:
        """Returns a size as a number of the type of the address arithmetic, a param or a product."""
        if not isinstance(size, Symbolic):
            return Literal(int(size), dtype)
        parts = [Name(part) if isinstance(part, str) else Literal(part, dtype) for part in self._parts(size)]
        return mul(*parts)

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


class _Sizes(Mapping[str, TileType]):
    """One type for all size params of a kernel."""

    def __init__(self, params: SizeParams, type_: TileType) -> None:
        self._params, self._type = params, type_

    def __getitem__(self, name: str) -> TileType:
        if name not in self._params.names.values():
            raise KeyError(name)
        return self._type

    def __iter__(self) -> Iterator[str]:
        return iter(self._params.names.values())

    def __len__(self) -> int:
        return len(self._params.names)


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


def size_value(size: Size, dtype: DType) -> Expression:
    """Returns a size as a number of a type, over variables that are called as its symbols are."""
    if not isinstance(size, Symbolic):
        return Literal(int(size), dtype)
    total: Expression | None = None
    for monomial, coefficient in size.terms:
        factors = [_generator_value(generator, dtype) for generator, power in monomial for _ in range(power)]
        if coefficient != 1 or not factors:
            factors.append(Literal(coefficient, dtype))
        total = mul(*factors) if total is None else add(total, mul(*factors))
    assert total is not None, "a symbolic size has terms"
    return total


def _generator_value(generator: Generator, dtype: DType) -> Expression:
    match generator:
        case Symbol(name=name):
            return Name(name)
        case Floor(numerator=numerator, divisor=divisor):
            return quotient(size_value(numerator, dtype), size_value(divisor, dtype))
        case Extreme(function=function, operands=operands):
            first, *rest = (size_value(operand, dtype) for operand in operands)
            for each in rest:
                first = apply({"min": "minimum", "max": "maximum"}[function], first, each)
            return first
    raise TypeError(f"not a generator: {generator!r}")


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
