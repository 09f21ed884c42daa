"""Sizes: Python integers, or polynomials over symbolic sizes (see `size_polynomials`).

Three questions are kept apart. *Prove*: `is_provably_at_most`, `quotient`, and the comparison operators, which raise
`Undecided` where there is no one answer. *Hint*: `hint` is the value that a size had when the program was captured, for
costs and thresholds alone; no result may depend on it. *Guard*: ``int(size)`` raises `Undecided`; only who
captured the program can fix a size, and records why.

This module is the only caller of SymPy (to factor sums), and imports it on the first such size, so that a static graph
never pays for it. Integer arguments take a path of plain integer arithmetic.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from . import size_polynomials
from .size_extremes import extreme
from .size_generators import Extreme, Floor, Generator, Monomial, Symbol, symbols_in
from .size_polynomials import Symbolic, Undecided
from .size_reduction import greatest_product, reduced

__all__ = [
    "ASSUMED",
    "Size",
    "Symbolic",
    "Undecided",
    "add",
    "bounds",
    "ceildiv",
    "evaluate",
    "factors",
    "floordiv",
    "hint",
    "is_provably_at_most",
    "is_static",
    "maximum",
    "minimum",
    "mul",
    "parse_size",
    "product",
    "quotient",
    "substitute",
    "symbol",
    "symbols_of",
    "text",
]

# An int, or a Symbolic; typed as Any because most code treats the two alike.
Size: TypeAlias = Any

ASSUMED = 8192
"""The hint of a symbol that has none, and no range: data-dependent sizes are mostly large."""

symbol = size_polynomials.symbol
bounds = size_polynomials.bounds


def parse_size(text: str) -> Size:
    """Returns the size written as ``text``: an integer, a name, or sums, products and floor divisions of these.

    Names are symbols that are at least 1.

    Raises:
        ValueError: the text is not such an expression.
    """
    if text.isdigit():
        return int(text)
    return _from_ast(ast.parse(text, mode="eval").body, text)


def _from_ast(node: Any, text: str) -> Size:  # noqa: PLR0911 - one line for each operator
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return symbol(name)
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _from_ast(left, text), _from_ast(right, text)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return floordiv(a, b)
                case ast.Pow() if type(b) is int and b >= 0:
                    return product([a] * b)
                case ast.Mod():
                    return a - b * floordiv(a, b)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_from_ast(operand, text)
        case ast.Call(func=ast.Name(id="min" | "max" as function), args=args):
            return extreme(function, *(_from_ast(argument, text) for argument in args))
    raise ValueError(f"not a size expression: {text!r}; write integers, names, + - * // % ** min max")


def is_static(size: Size) -> bool:
    """Returns whether the size is a plain integer."""
    return type(size) is int


def add(a: Size, b: Size) -> Size:
    """Returns ``a + b``."""
    return a + b


def mul(a: Size, b: Size) -> Size:
    """Returns ``a * b``, expanded."""
    return a * b


def product(sizes: Iterable[Size]) -> Size:
    """Returns the product of the sizes, 1 for none."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def floordiv(a: Size, b: Size) -> Size:
    """Returns ``floor(a / b)``, as an integer where it is one; the divisor is never 0."""
    return size_polynomials.floor_quotient(a, b)


def ceildiv(a: Size, b: Size) -> Size:
    """Returns ``ceil(a / b)``, written as a floor; the divisor is never 0."""
    return floordiv(a + (b - 1), b) if is_provably_at_most(1, b) else -floordiv(-a, b)


def quotient(a: Size, b: Size) -> Size | None:
    """Returns ``a / b`` if ``b`` provably divides ``a``, else None."""
    return size_polynomials.exact_quotient(a, b)


def maximum(*sizes: Size) -> Size:
    """Returns the greatest of the sizes."""
    return extreme("max", *sizes)


def minimum(*sizes: Size) -> Size:
    """Returns the least of the sizes."""
    return extreme("min", *sizes)


def is_provably_at_most(a: Size, b: Size) -> bool:
    """Returns whether ``a <= b`` for every value of the symbols (False when unknown)."""
    return size_polynomials.is_at_most(a, b)


def symbols_of(size: Size) -> frozenset[str]:
    """Returns the names of the symbols in a size."""
    return frozenset() if type(size) is int else frozenset(found.name for found in symbols_in(size))


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """Returns the integer that a size has when its symbols have these values.

    Raises:
        KeyError: a symbol has no value.
    """
    if type(size) is int:
        return size
    return int(_replaced(size, lambda found: values[found.name]))


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """Returns a size with some of its symbols replaced."""
    return size if type(size) is int else _replaced(size, lambda found: values.get(found.name, found.size))


def hint(size: Size) -> int:
    """Returns the value that a size had when the program was captured: for heuristics, never for what is right."""
    return size if type(size) is int else _hint(size)


@lru_cache(maxsize=16384)
def _hint(size: Symbolic) -> int:
    found = _value_at(size, lambda symbol: _assumed(symbol) if symbol.hint is None else symbol.hint)
    if found is not None and found >= 0:
        return found
    # What is left of an extent, say, when as much is taken away as is assumed.
    values = (found, _value_at(size, _least))
    return max((value for value in values if value is not None), default=0)


def _value_at(size: Symbolic, value_of: Callable[[Symbol], int]) -> int | None:
    """Returns what a size is for values of its symbols; None where it would be divided by 0, as no program divides."""
    try:
        return int(_replaced(size, value_of))
    except ZeroDivisionError:
        return None


def _assumed(found: Symbol) -> int:
    """Returns what is assumed of a symbol that has no hint: no more than the middle of its range, if it has one."""
    least = 0 if found.low is None else found.low
    return max(least, ASSUMED if found.high is None else min(ASSUMED, (least + found.high + 1) // 2))


def with_numbers(size: Size, numbers: Mapping[Generator, int]) -> Size:
    """Returns a size in which some floor quotients, minima or maxima are the numbers that they are known to be."""
    return size if type(size) is int or not numbers else _replaced(size, lambda found: found.size, numbers)


def known_number(difference: Size) -> tuple[Generator, int] | None:
    """Returns the one floor quotient, minimum or maximum of a size and what it is where the size is zero, or None."""
    if type(difference) is int or not 1 <= len(difference.terms) <= 2:
        return None
    constants = sum(coefficient for monomial, coefficient in difference.terms if not monomial)
    variable = [(monomial, coefficient) for monomial, coefficient in difference.terms if monomial]
    if len(variable) != 1:
        return None
    (monomial, coefficient) = variable[0]
    (generator, power), *others = monomial
    if others or power != 1 or isinstance(generator, Symbol) or constants % coefficient:
        return None
    return generator, -constants // coefficient


def with_zeros(size: Size, zeros: Iterable[Size]) -> Size:
    """Returns the number that a size is where some sizes are zero, such as ``n - n // 2 - 3``, or the size itself.

    Of one term it stays: a symbol is told by the extent of an input, for all sizes that it is in.
    """
    if type(size) is int or sum(1 for monomial, _ in size.terms if monomial) < 2:
        return size
    for zero in zeros:
        for found in (size - zero, size + zero):
            if type(found) is int:
                return found
    return size


def known_product(difference: Size, known: AbstractSet[str]) -> tuple[Monomial, Size] | None:
    """Returns a product in a size and what it equals, in ``known`` symbols alone, where the size is zero.

    ``a*b - c*d`` tells that ``c*d`` is ``a*b``, wherever both are numbers of rows. None if nothing of the kind is told.
    """
    greatest = greatest_product(difference, known)
    if greatest is None or greatest[1] not in (1, -1):
        return None
    monomial, factor = greatest
    equal = (difference - size_polynomials.polynomial({monomial: factor})) * -factor
    return (monomial, equal) if symbols_of(equal) <= known else None


def with_products(size: Size, products: Mapping[Monomial, Size]) -> Size:
    """Returns a size in which some products are what they are known to equal, or itself where that has more terms."""
    if type(size) is int or not products:
        return size
    found = reduced(size, products)
    return found if isinstance(found, int) or len(found.terms) <= len(size.terms) else size


def _replaced(size: Symbolic, value_of: Any, numbers: Mapping[Generator, int] = MappingProxyType({})) -> Size:
    total: Size = 0
    for monomial, coefficient in size.terms:
        part: Size = coefficient
        for generator, power in monomial:
            part = part * _generator_value(generator, value_of, numbers) ** power
        total = total + part
    return total


def _generator_value(generator: Generator, value_of: Any, numbers: Mapping[Generator, int]) -> Size:
    """Returns what a generator becomes; sizes nest as deeply as users write them by hand."""

    def inner(size: Size) -> Size:
        return size if type(size) is int else _replaced(size, value_of, numbers)

    if generator in numbers:
        return numbers[generator]
    match generator:
        case Symbol():
            return value_of(generator)
        case Floor(numerator=numerator, divisor=divisor):
            return floordiv(inner(numerator), inner(divisor))
        case Extreme(function=function, operands=operands):
            return extreme(function, *map(inner, operands))
    raise TypeError(f"not a generator: {generator!r}")


@lru_cache(maxsize=16384)
def factors(size: Symbolic) -> tuple[int, tuple[tuple[Symbolic, int], ...]]:
    """Returns ``(number, ((factor, power), …))``: a size as a number times powers of irreducible polynomials.

    Floor quotients, minima and maxima count as indeterminates. The factorisation is unique but for the order, and for
    signs: factors are not negative at their hint, and where it depends on data, the number is not. Sums are factored by
    SymPy.
    """
    parts: list[tuple[Any, int]]
    if len(size.terms) == 1:
        monomial, number = size.terms[0]
        parts = [(generator.size, power) for generator, power in monomial]
        if all(isinstance(each, Symbol) and each.low is not None and each.low >= 0 for each, _ in monomial):
            return number, tuple(parts)
    else:
        number, parts = _factored_sum(size)
    # A factor of an extent has the sign of an extent: a floor quotient need not, as in -((-s0)//64) for rounding up.
    for position, (part, power) in enumerate(parts):
        if _is_mostly_negative(part):
            parts[position] = (-part, power)
            number *= (-1) ** power
    for position, (part, power) in enumerate(parts):
        if number < 0 and power % 2 and not _is_oriented(part):
            parts[position] = (-part, power)
            number = -number
    return number, tuple(sorted(parts, key=lambda item: str(item[0])))


def _factored_sum(size: Symbolic) -> tuple[int, list[tuple[Any, int]]]:
    """Returns the factors of a sum, of which SymPy leaves the signs to chance."""
    import sympy

    generators = {generator: None for monomial, _ in size.terms for generator, _ in monomial}
    names = {generator: sympy.Symbol(f"g{position}") for position, generator in enumerate(generators)}
    back = {str(name): generator for generator, name in names.items()}
    total = sympy.Add(
        *(
            coefficient * sympy.Mul(*(names[generator] ** power for generator, power in monomial))
            for monomial, coefficient in size.terms
        )
    )
    number, found = sympy.factor_list(total)
    return int(number), [(_from_sympy(part, back), power) for part, power in found]


def _is_oriented(size: Symbolic) -> bool:
    """Returns whether it is known which sign a factor has: by its range, or because no symbol lacks a hint."""
    low, high = bounds(size)
    if (low is not None and low >= 0) or (high is not None and high <= 0):
        return True
    return all(symbol.hint is not None for symbol in symbols_in(size))


def _is_mostly_negative(size: Symbolic) -> bool:
    """Returns whether a factor is not positive, or, where that differs from run to run, mostly negative.

    Extents are what is left when something is taken away, mostly something that is learned later: ``s0-u0``, ``u0-u1``.
    """
    low, high = bounds(size)
    if low is not None and low >= 0:
        return False
    if high is not None and high <= 0:
        return True
    if _is_oriented(size):
        return hint(size) < 0
    least = _value_at(size, _least)
    if least:
        return least < 0
    ranks = {symbol: position for position, symbol in enumerate(sorted(symbols_in(size), key=_age))}
    ranked = _value_at(size, lambda symbol: _least(symbol) + len(ranks) - ranks[symbol])
    return ranked is not None and ranked < 0


def _age(found: Symbol) -> tuple[int, str]:
    return len(found.name), found.name


def _least(found: Symbol) -> int:
    """Returns the hint of a symbol, the least extent that it can be if it has none."""
    return max(found.low or 0, 0) if found.hint is None else found.hint


def _from_sympy(part: Any, back: dict[str, Generator]) -> Any:
    poly = part.as_poly()
    order = [back[str(generator)] for generator in poly.gens]
    total: Size = 0
    for powers, coefficient in poly.terms():
        term: Size = int(coefficient)
        for generator, power in zip(order, powers, strict=True):
            term = term * generator.size**power
        total = total + term
    return total


def text(size: Size) -> str:
    """Returns the text form of a size, without spaces around signs; `parse_size` reads it back as the same size."""
    return str(size)
