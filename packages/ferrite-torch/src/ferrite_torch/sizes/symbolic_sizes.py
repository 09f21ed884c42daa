"""Torch's symbolic integers as sizes of the language, and the one place where such a size is fixed to its value.

Dynamo names each size that may change (``s77``) and knows a range and the present value of it. Both are taken over when
a symbol is first seen in a frame. What of them decides anything is told apart in `ferrite_ir.language.sizes`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language import sizes
from ferrite_ir.language.dtypes import F64, I64
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.size_generators import Generator, Monomial, symbols_in
from ferrite_ir.language.sizes import Size, Symbolic, Undecided
from ferrite_torch.diagnostics.statistics import record_specialisation
from ferrite_torch.errors import Unsupported
from ferrite_torch.sizes.size_names import input_name, named, written
from ferrite_torch.thresholds import SEARCHES
from ferrite_torch.torch_private.symbolic_shapes import (
    count_guards,
    current_symbol,
    decided_equalities,
    environments,
    is_unbacked,
    numbers_among,
    relax_dynamic_marks,
    specialise_symbol,
    symbol_facts,
    symbol_source,
    symbolic_value,
    unsimplified_value,
    without_least_extents,
)

log = logging.getLogger(__name__)

Made = TypeVar("Made")


_symbols: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""The torch symbols by name, for each of torch's environments of symbols."""
_taken: WeakKeyDictionary[Any, dict[str, Symbolic]] = WeakKeyDictionary()
_tellers: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
"""The ops, with their source lines, that tell symbols when the graph runs, by the symbols' names."""
_inputs: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()
"""The symbols that are numbers, extents or strides among the inputs of the graph read last, by their names."""
_known_products: WeakKeyDictionary[Any, _KnownProducts] = WeakKeyDictionary()
_noted: set[str] = set()


class NeedsNumber(Exception):
    """Some part of the compiler cannot go on with a symbolic size.

    Attributes:
        where: the op and the source line, or the stage; "" where the one who asks does not know it.
        reason: what it asked.
        sizes: the sizes to fix.
    """

    def __init__(self, where: str, reason: str, involved: Iterable[Size]) -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason, self.sizes = where, reason, tuple(involved)

    def at(self, where: str) -> NeedsNumber:
        """Returns the same, with a place if it has none."""
        return self if self.where else NeedsNumber(where, self.reason, self.sizes)


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
    size = _translated(expression, environment)
    if type(size) is int:
        return size
    known = _known_by_guards(environment)
    return sizes.with_products(sizes.with_numbers(size, known.numbers), known.products)


@dataclass(frozen=True, slots=True)
class _KnownProducts:
    """What guards tell of the sizes of a graph. Torch itself writes now one side of an equation, now the other.

    Attributes:
        guards: how many there were.
        numbers: quotients, minima and maxima that are numbers, such as an extent of one chunk.
        products: products that equal sizes in symbols of the inputs, such as rows of labels those of the logits.
    """

    guards: int
    numbers: Mapping[Generator, int]
    products: Mapping[Monomial, Size]


def _known_by_guards(environment: Any) -> _KnownProducts:
    count, found = count_guards(environment), _known_products.get(environment)
    if found is not None and found.guards == count:
        return found
    known = _inputs.get(environment, frozenset())
    numbers: dict[Generator, int] = {}
    products: dict[Monomial, Size] = {}
    for one, other in decided_equalities(environment):
        try:
            difference = _translated(one, environment) - _translated(other, environment)
        except NeedsNumber:  # of a form that no size has
            continue
        number = sizes.known_number(difference)
        product = sizes.known_product(difference, known) if number is None else None
        if number is not None:
            numbers[number[0]] = number[1]
        elif product is not None:
            products.setdefault(*product)
    found = _known_products[environment] = _KnownProducts(count, numbers, products)
    return found


def symbol_of(symbol: Any, environment: Any) -> Symbolic:
    """Returns a symbol of torch's as a size, whatever torch knows it to be equal to."""
    return _symbol(symbol, environment)


def note_teller(symbol: Symbolic, environment: Any, origin: str) -> None:
    """Remembers which op, at which line, tells a symbol when the graph runs."""
    _tellers.setdefault(environment, {})[str(symbol)] = origin


def note_inputs(fakes: Iterable[Any]) -> None:
    """Remembers in which symbols sizes are written until another graph is read: those that its inputs tell."""
    found: dict[Any, set[str]] = {}
    for number in numbers_among(fakes):
        expression, environment = symbolic_value(number)
        found.setdefault(environment, set()).update([str(expression)] if expression.is_Symbol else [])
    for environment, names in found.items():
        _inputs[environment] = frozenset(names)
        _known_products.pop(environment, None)


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


def input_names(environment: Any) -> dict[str, str]:
    """Returns what the user's program calls the symbols that are numbers of inputs: ``x.shape[0]``, by their names."""
    known = _symbols.get(environment, {}) if environment is not None else {}
    sources = {name: symbol_source(symbol, environment) for name, symbol in known.items()}
    return {name: input_name(source) for name, source in sources.items() if source}


def depends_on_data(involved: Iterable[Size], environment: Any) -> bool:
    """Returns whether some of these sizes depend on data."""
    known = _symbols.get(environment, {}) if environment is not None else {}
    names = {symbol.name for size in involved for symbol in symbols_in(size)}
    return any(is_unbacked(known[name], environment) for name in names if name in known)


def _translated(expression: Any, environment: Any) -> Size:
    """Returns a SymPy expression of torch's as a size; expressions nest as deeply as users write them."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return _symbol(expression, environment)
    name = type(expression).__name__
    if name in _ROUNDED:
        return _rounded(expression, environment)
    if name == "Piecewise":
        return _chosen(expression, environment)
    rule = _RULES.get(name)
    if rule is None:
        raise _needs_number(expression, environment)
    operands = [_translated(operand, environment) for operand in expression.args]
    if rule is _power and type(operands[1]) is not int:
        raise _needs_number(expression, environment)
    return rule(*operands)


def _needs_number(expression: Any, environment: Any) -> NeedsNumber:
    symbols = sorted(expression.free_symbols, key=str)
    return NeedsNumber("", f"the size {written(expression)}", [_symbol(symbol, environment) for symbol in symbols])


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
        above, below = (_translated(operand, environment) for operand in inner.args)
        is_known = name != "TruncToInt" or _sign(above) != 0
        if isinstance(below, int) and below > 0 and is_known:
            rounds_up = name == "CeilToInt" or (name == "TruncToInt" and _sign(above) < 0)
            return sizes.ceildiv(above, below) if rounds_up else sizes.floordiv(above, below)
    factors = {type(factor).__name__: factor for factor in inner.args}
    number, size = factors.get("Float"), factors.get("ToFloat")
    if len(inner.args) == 2 and number is not None and size is not None and name != "CeilToInt":
        scaled = _translated(size.args[0], environment)
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
    sides = condition.args if type(condition).__name__ == "Equality" else ()
    symbols = [side for side in sides if side.is_Symbol]
    truth = _translated(symbols[0], environment) if len(symbols) == 1 and 1 in sides else None
    is_of_two = [type(other).__name__ for _, other in others] == ["BooleanTrue"]
    if truth is None or sizes.bounds(truth) != (0, 1) or not is_of_two:
        raise _needs_number(expression, environment)
    a, b = _translated(first, environment), _translated(others[0][0], environment)
    return b + (a - b) * truth


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


def scalar_of(value: torch.SymFloat, known: Mapping[str, Scalar] = MappingProxyType({})) -> Scalar:
    """Returns a torch float that is computed from integers, and from ``known`` symbols, as an expression in f64.

    Raises:
        NeedsNumber: it is no such number, or computed by a function that the language does not have.
    """
    expression, environment = symbolic_value(value)
    return _scalar(expression, environment, known)


def truth_of(value: torch.SymBool, known: Mapping[str, Scalar]) -> tuple[Scalar, str]:
    """Returns a condition on floats, and sizes, as a truth that a program computes, and as people write it.

    Raises:
        NeedsNumber: as `scalar_of`.
    """
    expression, environment = unsimplified_value(value)
    return _truth(expression, environment, known), written(expression)


def _truth(expression: Any, environment: Any, known: Mapping[str, Scalar]) -> Scalar:
    name = type(expression).__name__
    if name in COMPARISONS:
        return sc.apply(COMPARISONS[name], *(_scalar(side, environment, known) for side in expression.args))
    if name not in _TRUTH_RULES:
        raise NeedsNumber("", f"{name} of floats", ())
    parts = [_truth(part, environment, known) for part in expression.args]
    return (
        functools.reduce(functools.partial(sc.apply, _TRUTH_RULES[name]), parts)
        if len(parts) > 1
        else sc.apply(_TRUTH_RULES[name], *parts)
    )


_TRUTH_RULES = {"And": "bitand", "Or": "bitor", "Not": "logical_not"}
COMPARISONS = {
    "LessThan": "le",
    "StrictLessThan": "lt",
    "GreaterThan": "ge",
    "StrictGreaterThan": "gt",
    "Equality": "eq",
    "Unequality": "ne",
}
"""Comparisons of torch's symbolic numbers, by the name of their class."""


def _scalar(expression: Any, environment: Any, known: Mapping[str, Scalar]) -> Scalar:
    if expression.is_Number:
        return sc.const(float(expression), F64)
    if expression.is_Symbol and str(expression) in known:
        return known[str(expression)]
    name = type(expression).__name__
    if name == "ToFloat":
        return sc.cast(sc.index_value(ix.constant(_translated(expression.args[0], environment)), I64), F64)
    if expression.is_integer and name not in _FLOAT_RULES:
        return sc.cast(sc.index_value(ix.constant(_translated(expression, environment)), I64), F64)
    if name not in _FLOAT_RULES:
        raise NeedsNumber("", f"{name} of sizes", ())
    operands = [_scalar(operand, environment, known) for operand in expression.args]
    return (
        functools.reduce(lambda a, b: sc.apply(_FLOAT_RULES[name], a, b), operands[1:], operands[0])
        if (len(operands) > 1)
        else sc.apply(_FLOAT_RULES[name], operands[0])
    )


_FLOAT_RULES = {
    "Add": "add",
    "Mul": "mul",
    "Pow": "pow",
    "FloatPow": "pow",
    "FloatTrueDiv": "div",
    "IntTrueDiv": "div",
    "Max": "maximum",
    "Min": "minimum",
    "Abs": "abs",
    **{f"OpaqueUnaryFn_{name}": name for name in ("sqrt", "exp", "log", "log2", "sin", "cos", "tan")},
    **{f"OpaqueUnaryFn_{name}": name for name in ("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh")},
}
"""Torch's functions of symbolic floats, by the name of their class, in the language."""


def _symbol(expression: Any, environment: Any) -> Symbolic:
    known = _taken.setdefault(environment, {})
    expression = current_symbol(expression, environment)
    name = str(expression)
    if name not in known:
        low, high, hint = symbol_facts(expression, environment)
        known[name] = sizes.symbol(name, low, high, hint)
        _symbols.setdefault(environment, {})[name] = expression
    return known[name]


def settled(make: Callable[[], Made], fakes: Callable[[], Iterable[Any]]) -> Made:
    """Returns what a function makes, fixing sizes to their values until it needs no number that it does not have.

    Each size that is fixed is logged with what needed it, counted, and guarded by dynamo. ``fakes`` gives the values
    that hold the symbols.

    Raises:
        Unsupported: a number is needed that depends on data.
    """
    for _ in range(SEARCHES.specialised_sizes):
        try:
            return make()
        except NeedsNumber as need:
            _specialise(need, fakes())
        except Undecided as need:
            _specialise(NeedsNumber("code generation", need.question, need.sizes), fakes())
    raise Unsupported(f"more than {SEARCHES.specialised_sizes} sizes of one graph would have to be fixed")


def _specialise(need: NeedsNumber, fakes: Iterable[Any]) -> None:
    environment = next(environments(fakes), None)
    symbols = dict.fromkeys(symbol for size in need.sizes for symbol in symbols_in(size))
    known = _symbols.get(environment, {}) if environment is not None else {}
    relax_dynamic_marks()
    fixed = 0
    for symbol in symbols:
        if symbol.name not in known:
            raise Unsupported(f"{need.where}: {need.reason}, which depends on data")
        if is_unbacked(known[symbol.name], environment):
            teller = _tellers.get(environment, {}).get(symbol.name, "")
            source = f" ({symbol.name} comes from {teller})" if teller else ""
            raise Unsupported(f"{need.where}: {need.reason}, a size that is known only when the graph runs{source}")
        value = specialise_symbol(known[symbol.name], environment)
        fixed += 1
        names = input_names(environment)
        where, reason, name = need.where or "a size", named(need.reason, names), names.get(symbol.name, symbol.name)
        record_specialisation(where, reason)
        _note(f"{where}: {name} is fixed to {value}, and other values compile anew: {reason}")
    if not fixed:
        raise Unsupported(f"{need.where}: {need.reason}")


def _note(text: str) -> None:
    if text not in _noted:
        _noted.add(text)
        log.warning("%s", text)
