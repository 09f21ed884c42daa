"""Reads sizes, indices and scalar expressions of the text form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language import sizes
from ferrite_ir.language.dtypes import BOOL, DTYPES, DType
from ferrite_ir.language.graph import Value
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.ops import CONVERSIONS
from ferrite_ir.language.scalar import Scalar, ScalarTypeError
from ferrite_ir.language.sizes import Size

from .tokens import Token, Words

Item = TypeVar("Item")

MAX_NESTING = 200
"""Deeper expressions are refused; printed text binds names long before that."""


@dataclass(slots=True)
class Scope:
    """What names mean where an expression stands.

    Attributes:
        values: named values, by name: what loads read.
        symbols: symbolic sizes, by name.
        dims: loop variables, by name.
        locals: local bindings, by name.
        nesting: how deep the reader is.
    """

    values: Mapping[str, Value]
    symbols: Mapping[str, Size] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)
    locals: dict[str, Scalar] = field(default_factory=dict)
    nesting: int = 0


def read_size(words: Words, scope: Scope) -> Size:
    """Returns the size that stands next: an expression over integers and symbolic sizes.

    Raises:
        ParseError: no such expression, or a name that is no symbolic size.
    """
    token = words.next
    inner = Scope(scope.values, scope.symbols, {}, scope.locals, scope.nesting)
    found = read_index(words, inner)
    if not found.is_constant:
        raise words.error("expected a size, found an index that depends on values", token)
    return found.const


def read_index(words: Words, scope: Scope) -> Index:
    """Returns the index expression that stands next.

    Raises:
        ParseError: no such expression, an unknown name, or a product that is not quasi-affine.
    """
    negative = words.accept("-")
    total = _read_product(words, scope)
    if negative:
        total = -total
    while words.sees("+") or words.sees("-"):
        minus = words.take().text == "-"
        term = _read_product(words, scope)
        total = total - term if minus else total + term
    return total


def _read_product(words: Words, scope: Scope) -> Index:
    total = _read_power(words, scope)
    while words.next.text in ("*", "//", "%") and words.next.kind == "mark":
        operator = words.take()
        factor = _read_power(words, scope)
        try:
            total = _PRODUCTS[operator.text](total, factor)
        except ValueError as problem:
            raise words.error(str(problem), operator) from None
    return total


def _divide(left: Index, right: Index) -> Index:
    return ix.floordiv(left, _constant(right))


def _remainder(left: Index, right: Index) -> Index:
    return ix.mod(left, _constant(right))


def _constant(index: Index) -> Size:
    if not index.is_constant:
        raise ValueError(f"not quasi-affine: division by {index}, which is no size")
    return index.const


_TYPED_FORMS = ("index", "bitcast", *CONVERSIONS)
"""Forms with a type behind a dot."""

_PRODUCTS: dict[str, Callable[[Index, Index], Index]] = {
    "*": lambda left, right: left * right,
    "//": _divide,
    "%": _remainder,
}


def _read_extreme(words: Words, scope: Scope) -> Index:
    function = sizes.minimum if words.take().text == "min" else sizes.maximum
    words.expect("(")
    return ix.constant(function(*read_listed(words, ")", lambda: read_size(words, scope))))


def _read_power(words: Words, scope: Scope) -> Index:
    if words.accept("-"):
        return -_read_power(words, scope)
    base = _read_index_atom(words, scope)
    if not words.accept("**"):
        return base
    token = words.next
    exponent = read_integer(words)
    if not base.is_constant:
        raise words.error("only a size can be raised to a power", token)
    return ix.constant(sizes.product([base.const] * exponent))


def _read_index_atom(words: Words, scope: Scope) -> Index:
    token = words.next
    if token.kind == "number":
        return ix.constant(read_integer(words))
    if words.accept("("):
        with_depth(words, scope)
        inner = read_index(words, scope)
        scope.nesting -= 1
        words.expect(")")
        return inner
    if words.sees("(", 1) and token.text in ("at", "wrap"):
        return _read_indirect(words, scope)
    if words.sees("(", 1) and token.text in ("min", "max"):
        return _read_extreme(words, scope)
    if token.kind != "name":
        raise words.error(f"expected an index, found {words.describe()}")
    name = words.take().text.removeprefix("$")
    dim = scope.dims.get(name)
    if dim is not None:
        return dim.index
    if name in scope.symbols:
        return ix.constant(scope.symbols[name])
    known = ", ".join([*scope.dims, *sorted(scope.symbols)]) or "none"
    raise words.error(f"unknown dim or size {name!r}; known here: {known}", token)


def _read_indirect(words: Words, scope: Scope) -> Index:
    wraps = words.take().text == "wrap"
    words.expect("(")
    token = words.next
    value = read_scalar(words, scope)
    if not value.dtype.is_integer:
        raise words.error(f"an indirect index is an integer, not {value.dtype}", token)
    words.expect(",")
    size = read_size(words, scope)
    words.expect(")")
    return ix.indirect(value, size, wraps)


def with_depth(words: Words, scope: Scope) -> None:
    """Counts one level of nesting.

    Raises:
        ParseError: the expression is nested too deeply.
    """
    scope.nesting += 1
    if scope.nesting > MAX_NESTING:
        raise words.error(f"nested deeper than {MAX_NESTING}; give a part a name with 'let'")


def read_integer(words: Words) -> int:
    """Returns the nonnegative integer that stands next.

    Raises:
        ParseError: something else stands there.
    """
    token = words.next
    if token.kind != "number" or not token.text.isdigit():
        raise words.error(f"expected an integer, found {words.describe()}")
    return int(words.take().text)


def read_number(words: Words) -> int | float:
    """Returns the number that stands next: an integer or a float, with a sign, also ``nan`` and ``inf``.

    Raises:
        ParseError: something else stands there.
    """
    negative = words.accept("-")
    token = words.take()
    number: int | float
    if token.kind == "number":
        number = int(token.text) if token.text.isdigit() else float(token.text)
    elif token.text in ("nan", "inf"):
        number = math.nan if token.text == "nan" else math.inf  # one object: containers then find nan equal to itself
    else:
        raise words.error(f"expected a number, found {token.text or 'the end of the text'!r}", token)
    return -number if negative else number


def read_dtype(words: Words) -> DType:
    """Returns the element type that stands next.

    Raises:
        ParseError: no such type.
    """
    token = words.take()
    found = DTYPES.get(token.text)
    if found is None or token.kind != "name":
        raise words.error(f"unknown dtype {token.text!r}; known: {', '.join(DTYPES)}", token)
    return found


def read_bindings(words: Words, scope: Scope) -> None:
    """Reads ``let name = scalar`` as often as it stands next, into the scope.

    Raises:
        ParseError: a malformed binding, or a name bound twice.
    """
    while words.sees("let") and words.tokens[words.position + 1].kind == "name":
        words.take()
        token = words.next
        name = words.name("the name of a local binding")
        if name in scope.locals:
            raise words.error(f"{name!r} is bound twice", token)
        words.expect("=")
        scope.locals[name] = read_scalar(words, scope)


def read_scalar(words: Words, scope: Scope) -> Scalar:
    """Returns the scalar expression that stands next.

    Raises:
        ParseError: no such expression, an unknown name, or operands that do not fit.
    """
    with_depth(words, scope)
    token = words.next
    if token.kind != "name":
        raise words.error(f"expected a scalar expression, found {words.describe()}")
    if words.sees("[", 1):
        found = _read_load(words, scope)
    elif words.sees("(", 1) or (words.sees(".", 1) and token.text in _TYPED_FORMS):
        found = _read_form(words, scope)
    elif token.text in ("true", "false"):
        found = sc.const(words.take().text == "true", BOOL)
    else:
        name = words.name("a scalar expression")
        if name not in scope.locals:
            raise words.error(f"unknown local binding {name!r}; a value is read as {name}[...]", token)
        found = scope.locals[name]
    scope.nesting -= 1
    return found


def _read_load(words: Words, scope: Scope) -> Scalar:
    token = words.next
    name = words.name("a value")
    value = scope.values.get(name)
    if value is None:
        raise words.error(f"unknown value {name!r}; a value is defined before it is used", token)
    return sc.load(name, read_indices(words, scope), value.type.dtype)


def read_indices(words: Words, scope: Scope) -> list[Index]:
    """Returns the indices in brackets that stand next.

    Raises:
        ParseError: something else stands there.
    """
    words.expect("[")
    return read_listed(words, "]", lambda: read_index(words, scope))


def read_listed(words: Words, closing: str, read: Callable[[], Item]) -> list[Item]:
    """Returns items separated by commas up to the closing mark, which is taken too; a last comma is allowed.

    Raises:
        ParseError: neither a comma nor the closing mark follows an item.
    """
    items: list[Item] = []
    while not words.accept(closing):
        items.append(read())
        if not words.sees(closing):
            words.expect(",")
    return items


def _read_form(words: Words, scope: Scope) -> Scalar:
    token = words.take()
    name = token.text
    if name in _TYPED_FORMS:
        words.expect(".")
        dtype = read_dtype(words)
        words.expect("(")
        built = _special(name, dtype, words, scope, token)
    elif name in DTYPES:
        words.expect("(")
        number = read_number(words)
        built = _checked(words, token, lambda: sc.const(number, DTYPES[name]))
    else:
        words.expect("(")
        operands = read_listed(words, ")", lambda: read_scalar(words, scope))
        return _checked(words, token, lambda: sc.apply(name, *operands))
    words.expect(")")
    return built


def _special(name: str, dtype: DType, words: Words, scope: Scope, token: Token) -> Scalar:
    if name == "index":
        return sc.index_value(read_index(words, scope), dtype)
    operand = read_scalar(words, scope)
    if name in CONVERSIONS:
        return sc.cast(operand, dtype) if name == "cast" else sc.rounded(operand, dtype)
    return _checked(words, token, lambda: sc.bitcast(operand, dtype))


def _checked(words: Words, token: Token, build: Callable[[], Scalar]) -> Scalar:
    try:
        return build()
    except ScalarTypeError as problem:
        raise words.error(str(problem), token) from None


def parse_scalar(
    text: str, values: Iterable[Value] = (), dims: Iterable[Dim] = (), symbols: Iterable[str] = ()
) -> Scalar:
    """Returns the scalar expression written as ``text``.

    Args:
        text: the expression, local bindings in front.
        values: what its loads may read.
        dims: loop variables that it may use.
        symbols: names of symbolic sizes that it may use.

    Raises:
        ParseError: the text is no such expression; the message shows the place.
    """
    words = Words(text)
    known = {name: sizes.symbol(name) for name in symbols}
    scope = Scope({v.name: v for v in values}, known, {dim.name: dim for dim in dims})
    read_bindings(words, scope)
    found = read_scalar(words, scope)
    if words.next.kind != "end":
        raise words.error(f"expected the end of the expression, found {words.describe()}")
    return found


def parse_index(
    text: str, dims: Iterable[Dim] = (), symbols: Iterable[str] = (), values: Iterable[Value] = ()
) -> Index:
    """Returns the index expression written as ``text``; the arguments are those of `parse_scalar`.

    Raises:
        ParseError: the text is no such expression; the message shows the place.
    """
    words = Words(text)
    known = {name: sizes.symbol(name) for name in symbols}
    scope = Scope({v.name: v for v in values}, known, {dim.name: dim for dim in dims})
    found = read_index(words, scope)
    if words.next.kind != "end":
        raise words.error(f"expected the end of the index, found {words.describe()}")
    return found
