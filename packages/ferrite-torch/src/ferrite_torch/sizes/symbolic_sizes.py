"""Torch's symbolic integers as sizes of the language.

Dynamo names each size that may change (``s77``) and knows a range and the present value of it. Both are taken over when
a symbol is first seen in a frame. What of them decides anything is told apart in `ferrite_ir.language.sizes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import torch

from ferrite_ir.language import sizes
from ferrite_ir.language.size_generators import Generator, Monomial
from ferrite_ir.language.sizes import Size, Symbolic
from ferrite_torch.sizes.size_names import written
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbol_tables import KnownProducts, symbol_of, table_of
from ferrite_torch.torch_private.symbolic_shapes import (
    count_guards,
    decided_equalities,
    symbolic_value,
    without_least_extents,
)


def size_of(value: int | torch.SymInt | Symbolic) -> Size:
    """Returns a torch integer as a size of the language.

    Raises:
        NeedsNumber: it is computed by a function that sizes do not have.
    """
    if isinstance(value, int | Symbolic):
        return value
    return size_of_expression(*symbolic_value(value))


def sizes_of(values: Iterable[Any]) -> tuple[Size, ...]:
    """Returns torch integers as sizes of the language: integers, or symbolic ones, not asked for a number."""
    return tuple(map(size_of, values))


def size_of_expression(expression: Any, environment: Any) -> Size:
    """Returns a SymPy expression of torch's as a size.

    Raises:
        NeedsNumber: it is computed by a function that sizes do not have.
    """
    size = translated_size(expression, environment)
    if type(size) is int:
        return size
    known = _known_by_guards(environment)
    size = sizes.with_zeros(sizes.with_numbers(size, known.numbers), known.zeros)
    return sizes.with_products(size, known.products)


def _known_by_guards(environment: Any) -> KnownProducts:
    count, table = count_guards(environment), table_of(environment)
    if table.known is not None and table.known.guards == count:
        return table.known
    numbers: dict[Generator, int] = {}
    products: dict[Monomial, Size] = {}
    zeros: list[Size] = []
    for one, other in decided_equalities(environment):
        try:
            difference = translated_size(one, environment) - translated_size(other, environment)
        except NeedsNumber:  # of a form that no size has
            continue
        number = sizes.known_number(difference)
        product = sizes.known_product(difference, table.inputs) if number is None else None
        if number is not None:
            numbers[number[0]] = number[1]
        elif product is not None:
            products.setdefault(*product)
        else:
            zeros.append(difference)
    table.known = KnownProducts(count, numbers, products, tuple(zeros))
    return table.known


def steps_of(tensor: torch.Tensor) -> tuple[Size, ...]:
    """Returns the strides of a fake tensor.

    Torch counts a data-dependent extent as at least 1 in strides: ``max(1, u0)``. What is laid out by them has
    no elements where that makes a difference, so here they are products of extents, as all strides are.
    """
    return tuple(_step(stride) for stride in tensor.stride())


def _step(stride: int | torch.SymInt) -> Size:
    if isinstance(stride, int):
        return stride
    expression, environment = symbolic_value(stride)
    return size_of_expression(without_least_extents(expression, environment), environment)


def translated_size(expression: Any, environment: Any) -> Size:
    """Returns a SymPy expression of torch's as a size, without what guards tell of it.

    Expressions nest as deeply as users write them.

    Raises:
        NeedsNumber: it is computed by a function that sizes do not have.
    """
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return symbol_of(expression, environment)
    name = type(expression).__name__
    if name in _ROUNDED:
        return _rounded(expression, environment)
    if name == "Piecewise":
        return _chosen(expression, environment)
    rule = _RULES.get(name)
    if rule is None:
        raise _needs_number(expression, environment)
    operands = [translated_size(operand, environment) for operand in expression.args]
    if rule is _power and type(operands[1]) is not int:
        raise _needs_number(expression, environment)
    return rule(*operands)


def _needs_number(expression: Any, environment: Any) -> NeedsNumber:
    symbols = sorted(expression.free_symbols, key=str)
    return NeedsNumber("", f"the size {written(expression)}", [symbol_of(symbol, environment) for symbol in symbols])


_ROUNDED = {"TruncToInt", "FloorToInt", "CeilToInt"}
"""How torch writes a quotient of sizes, or a size times a scale, without its fraction."""


def _rounded(expression: Any, environment: Any) -> Size:
    """Returns a quotient, or the product of a size and a short number, rounded to an integer.

    Raises:
        NeedsNumber: it is another expression, or a product that floats would round.
    """
    (inner,) = expression.args
    name = type(expression).__name__
    if type(inner).__name__ == "IntTrueDiv":
        # A quotient of numbers below 2**53 lies on the right side of the next integer in float64 as well.
        above, below = (translated_size(operand, environment) for operand in inner.args)
        is_known = name != "TruncToInt" or _sign(above) != 0
        if isinstance(below, int) and below > 0 and is_known:
            rounds_up = name == "CeilToInt" or (name == "TruncToInt" and _sign(above) < 0)
            return sizes.ceildiv(above, below) if rounds_up else sizes.floordiv(above, below)
    factors = {type(factor).__name__: factor for factor in inner.args}
    number, size = factors.get("Float"), factors.get("ToFloat")
    if len(inner.args) == 2 and number is not None and size is not None and name != "CeilToInt":
        scaled = translated_size(size.args[0], environment)
        found = scaled_size(scaled, float(number)) if _sign(scaled) > 0 else None
        if found is not None:
            return found
    raise _needs_number(expression, environment)


def _sign(size: Size) -> int:
    """Returns 1 for a size that is not negative, -1 for one that is not positive, 0 where that is not known."""
    if sizes.is_provably_at_most(0, size):
        return 1
    return -1 if sizes.is_provably_at_most(size, 0) else 0


MOST_PARTS = 1 << 12
"""Greatest numerator and denominator of the fractions that scales are taken for."""


def scaled_size(size: Size, scale: float) -> Size | None:
    """Returns ``floor(size * scale)`` as torch computes it in float64; None where that rounds a symbolic size."""
    if isinstance(size, int):
        return int(size * scale)
    fraction = Fraction(scale).limit_denominator(MOST_PARTS)
    up, down = fraction.as_integer_ratio()
    return sizes.floordiv(size * up, down) if 0 < up <= MOST_PARTS and _is_scaled_alike(fraction, scale) else None


def _is_scaled_alike(fraction: Fraction, scale: float) -> bool:
    """Returns whether a size times a float, rounded to a float, has the same floor as the size times the fraction.

    Let the float be ``p/q * (1 + e)``, the size ``n``, and ``n*p/q = k + r/q`` with integers ``k`` and ``0 <= r < q``.
    Rounding keeps order and keeps integers, so the product, rounded, is at least ``k`` if it is not less before, or so
    little less that it is rounded up: by at most half of the distance to the float below, which is at least
    ``k * 2**-54``. That is the condition on a negative ``e``, wanted for ``r = 0``; for others ``r/q`` is far greater
    than ``n*p/q * |e|``. It stays below ``k + 1`` as ``n*p/q * 2**-52`` is less than ``1/q``: sizes are below 2**40.
    """
    error = Fraction(scale) / fraction - 1
    return Fraction(-1, 1 << 54) <= error <= Fraction(1, 1 << 53)


def _chosen(expression: Any, environment: Any) -> Size:
    """Returns one of two numbers, chosen by a truth that is read as 0 or 1, as ``b + (a - b)*u0``.

    Raises:
        NeedsNumber: it is another choice.
    """
    (first, condition), *others = ((pair.expr, pair.cond) for pair in expression.args)
    is_of_two = [type(other).__name__ for _, other in others] == ["BooleanTrue"]
    truth = _truth(condition, environment) if is_of_two else None
    if truth is None:
        raise _needs_number(expression, environment)
    a, b = translated_size(first, environment), translated_size(others[0][0], environment)
    return b + (a - b) * truth


def _truth(condition: Any, environment: Any) -> Size | None:
    """Returns 1 where a condition on sizes holds, else 0; None for one that is of neither comparisons nor these."""
    name = type(condition).__name__
    if name in ("And", "Or", "Not"):
        parts = [_truth(part, environment) for part in condition.args]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if name == "And":
            return sizes.product(known)
        return 1 - sizes.product([1 - part for part in known] if name == "Or" else known)
    rule = _COMPARISONS.get(name)
    if rule is None:
        return None
    a, b = (translated_size(side, environment) for side in condition.args)
    if name == "Equality" and 1 in (a, b) and (0, 1) in map(sizes.bounds, (a, b)):
        return a * b
    return rule(a, b)


def _is_less(a: Size, b: Size) -> Size:
    return sizes.minimum(sizes.maximum(b - a, 0), 1)


def _is_equal(a: Size, b: Size) -> Size:
    return (1 - _is_less(a, b)) * (1 - _is_less(b, a))


_COMPARISONS: dict[str, Callable[[Size, Size], Size]] = {
    "Equality": _is_equal,
    "Unequality": lambda a, b: 1 - _is_equal(a, b),
    "StrictLessThan": _is_less,
    "LessThan": lambda a, b: 1 - _is_less(b, a),
    "StrictGreaterThan": lambda a, b: _is_less(b, a),
    "GreaterThan": lambda a, b: 1 - _is_less(a, b),
}
"""Comparisons, by the name of their class, as sizes that are 1 or 0."""


def _power(base: Size, exponent: Size) -> Size:
    return sizes.product([base] * exponent)


def _modulo(a: Size, b: Size) -> Size:
    return a - b * sizes.floordiv(a, b)


_RULES: dict[str, Callable[..., Size]] = {
    "Add": lambda *operands: sum(operands[1:], operands[0]),
    "Mul": lambda *operands: sizes.product(operands),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": sizes.floordiv,
    "CleanDiv": sizes.floordiv,
    "Mod": _modulo,
    "PythonMod": _modulo,
    "ModularIndexing": lambda a, b, c: _modulo(sizes.floordiv(a, b), c),
    "Max": sizes.maximum,
    "Min": sizes.minimum,
}
"""Torch's functions of sizes, by the name of their class."""
