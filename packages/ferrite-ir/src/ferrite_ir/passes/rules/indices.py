"""Rules that turn arithmetic on index values into index expressions, and decide comparisons by the bounds of dims."""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language import index as ix
from ferrite_ir.language import sizes
from ferrite_ir.language.dtypes import BOOL, I64, DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar, const, index_value
from ferrite_ir.language.sizes import Size

from .casts import keeps_values
from .rule import Book

BOOK = Book()


LARGEST_FACTOR = 2**32
"""Factors of symbolic extents in an index that i64 is taken to hold: no tensor has as many elements along an axis."""


def fits(index: Index, dtype: DType) -> bool:
    """Returns whether every value of an index provably is one of the type.

    Where bounds are not known, i64 is taken to hold what has no large numbers in it: positions in tensors.
    """
    if dtype is I64 and not (isinstance(index.lo, int) and isinstance(index.hi, int)):
        numbers = (index.const, *(factor for _, factor in index.terms))
        return all(not isinstance(number, int) or abs(number) <= LARGEST_FACTOR for number in numbers)
    if not dtype.is_integer or index.lo is None or index.hi is None:
        return False
    low, high = int(dtype.lowest), int(dtype.highest)
    return sizes.is_provably_at_most(low, index.lo) and sizes.is_provably_at_most(index.hi, high)


def as_index(node: Scalar) -> Index | None:
    """Returns the index expression that an ``index`` form or an integer constant stands for."""
    if node.op == "index":
        return node.args[0]  # type: ignore[no-any-return]
    return ix.constant(node.value) if node.op == "const" and node.dtype.is_integer else None


def _pair(node: Scalar) -> tuple[Index, Index] | None:
    left, right = as_index(node.args[0]), as_index(node.args[1])
    if left is None or right is None or (left.is_constant and right.is_constant):
        return None
    return left, right


@BOOK.rule("add sub", "add(index.i64(i), i64(3)) => index.i64(i + 3)", first="index const")
def _add_indices(node: Scalar) -> Scalar | None:
    pair = _pair(node)
    if pair is None or not node.dtype.is_integer:
        return None
    total = pair[0] + pair[1] if node.op == "add" else pair[0] - pair[1]
    return index_value(total, node.dtype) if fits(total, node.dtype) else None


@BOOK.rule("neg", "neg(index.i64(i)) => index.i64(-i)", first="index")
def _negate_index(node: Scalar) -> Scalar | None:
    negated = -node.args[0].args[0]
    return index_value(negated, node.dtype) if node.dtype.is_integer and fits(negated, node.dtype) else None


@BOOK.rule("mul", "mul(index.i64(i), i64(3)) => index.i64(i*3)", first="index const")
def _scale_index(node: Scalar) -> Scalar | None:
    pair = _pair(node)
    if pair is None or not node.dtype.is_integer or not (pair[0].is_constant or pair[1].is_constant):
        return None
    scaled = pair[0] * pair[1]
    return index_value(scaled, node.dtype) if fits(scaled, node.dtype) else None


@BOOK.rule("floordiv mod truncdiv fmod", "floordiv(index.i64(i), i64(3)) => index.i64((i // 3))", first="index")
def _divide_index(node: Scalar) -> Scalar | None:
    """Divides by a positive constant; the forms that round towards zero only where the index is not negative."""
    index, divisor = node.args[0].args[0], node.args[1]
    if divisor.op != "const" or divisor.value <= 0 or not node.dtype.is_integer:
        return None
    if node.op in ("truncdiv", "fmod") and not _is_nonnegative(index):
        return None
    divide = ix.floordiv if node.op in ("floordiv", "truncdiv") else ix.mod
    return index_value(divide(index, divisor.value), node.dtype)


@BOOK.rule("abs relu", "abs(index.i64(i)) => index.i64(i)", first="index")
def _nonnegative_index(node: Scalar) -> Scalar | None:
    return node.args[0] if _is_nonnegative(node.args[0].args[0]) else None


@BOOK.rule("cast", "cast.i32(index.i64(i)) => index.i32(i)", first="index")
def _cast_index(node: Scalar) -> Scalar | None:
    index = node.args[0].args[0]
    if not node.args[0].dtype.is_integer or not node.dtype.is_integer or not fits(index, node.dtype):
        return None
    return index_value(index, node.dtype)


@BOOK.rule("eq ne lt le gt ge", "lt(index.i64(i), i64(8)) => true", first="index const")
def _compare_indices(node: Scalar) -> Scalar | None:
    pair = _pair(node)
    if pair is None:
        return None
    difference = pair[0] - pair[1]
    verdict = _DECIDE[node.op](difference.lo, difference.hi)
    return None if verdict is None else const(verdict, BOOL)


@BOOK.rule("minimum maximum", "minimum(index.i64(i), i64(7)) => index.i64(i)", first="index const")
def _bound_index(node: Scalar) -> Scalar | None:
    pair = _pair(node)
    if pair is None:
        return None
    difference = pair[0] - pair[1]
    smaller, larger = (0, 1) if node.op == "minimum" else (1, 0)
    if difference.hi is not None and sizes.is_provably_at_most(difference.hi, 0):
        return node.args[smaller]  # type: ignore[no-any-return]
    if difference.lo is not None and sizes.is_provably_at_most(0, difference.lo):
        return node.args[larger]  # type: ignore[no-any-return]
    return None


def _decide_less(lo: Size | None, hi: Size | None) -> bool | None:
    if hi is not None and sizes.is_provably_at_most(hi, -1):
        return True
    return False if lo is not None and sizes.is_provably_at_most(0, lo) else None


def _decide_at_most(lo: Size | None, hi: Size | None) -> bool | None:
    if hi is not None and sizes.is_provably_at_most(hi, 0):
        return True
    return False if lo is not None and sizes.is_provably_at_most(1, lo) else None


def _decide_equal(lo: Size | None, hi: Size | None) -> bool | None:
    if lo is not None and hi is not None and lo == hi == 0:
        return True
    outside = (hi is not None and sizes.is_provably_at_most(hi, -1)) or (
        lo is not None and sizes.is_provably_at_most(1, lo)
    )
    return False if outside else None


def _opposite(verdict: bool | None) -> bool | None:  # noqa: FBT001 - the value itself
    return None if verdict is None else not verdict


_DECIDE: dict[str, Callable[[Size | None, Size | None], bool | None]] = {
    "lt": _decide_less,
    "le": _decide_at_most,
    "eq": _decide_equal,
    "ne": lambda lo, hi: _opposite(_decide_equal(lo, hi)),
    "ge": lambda lo, hi: _opposite(_decide_less(lo, hi)),
    "gt": lambda lo, hi: _opposite(_decide_at_most(lo, hi)),
}


def _is_nonnegative(index: Index) -> bool:
    return index.lo is not None and sizes.is_provably_at_most(0, index.lo)


def settled_indirect(value: Scalar, size: Size, *, wraps: bool) -> Index:
    """Returns an indirect index in its simplest form.

    An index expression that provably lies in ``[0, size)`` needs no promise, casts to wider integers are dropped, and
    a wrap that is spelled out (``where(v < 0, v + size, v)``) becomes a wrapping index.
    """
    if value.op == "cast" and value.args[0].dtype.is_integer and keeps_values(value.args[0].dtype, value.dtype):
        return settled_indirect(value.args[0], size, wraps=wraps)
    index = as_index(value)
    if index is not None and (direct := _direct(index, size, wraps=wraps)) is not None:
        return direct
    if not wraps and (inner := _unwrapped(value, size)) is not None:
        return settled_indirect(inner, size, wraps=True)
    return ix.indirect(value, size, wraps)


def _direct(index: Index, size: Size, *, wraps: bool) -> Index | None:
    if index.lo is None or index.hi is None:
        return None
    if sizes.is_provably_at_most(0, index.lo):
        return index if sizes.is_provably_at_most(sizes.add(index.hi, 1), size) else None
    is_negative = (
        wraps and sizes.is_provably_at_most(index.hi, -1) and sizes.is_provably_at_most(sizes.mul(-1, size), index.lo)
    )
    return index + size if is_negative else None


def _unwrapped(value: Scalar, size: Size) -> Scalar | None:
    if value.op != "where":
        return None
    condition, wrapped, plain = value.args
    is_wrap = (
        condition.op == "lt"
        and condition.args[0] is plain
        and condition.args[1].op == "const"
        and condition.args[1].value == 0
        and wrapped.op == "add"
        and wrapped.args[0] is plain
        and as_index(wrapped.args[1]) is ix.constant(size)
    )
    return plain if is_wrap else None
