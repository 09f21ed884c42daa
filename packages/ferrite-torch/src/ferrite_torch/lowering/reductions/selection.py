"""The element of a rank in each row, without sorting: its bits are found one by one.

Elements are read as integers of the same order. From the highest bit on, a bit of the result is set if no more elements
than its rank are smaller than the result with that bit: as many rounds as there are bits, each a comparison and a sum
over the row, which its kernel holds (radix selection by single bits; Knuth, "The Art of Computer Programming", volume
3, 5.2.5, and 5.3.3 on selection).
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL, F32, I16, I32, I64, DType
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.expressions import add, call, choose, eq, is_nan, le, lt, number_of
from ferrite_torch.lowering.reductions.reductions import Axes, reduced
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.thresholds import ORDER

Rank = Callable[[Point], Scalar]
"""How many elements of a row come before the one that is asked for, by the point of the row."""


def is_selected(x: Tensor, axis: int) -> bool:
    """Returns whether elements of a rank along an axis are selected: of at most 32 bits, in rows that kernels hold."""
    if x.ndim == 0 or not isinstance(x.shape[axis], int) or not x.shape[axis]:
        return False
    view = x.strided()
    is_contiguous = view is not None and view.strides[axis] == 1
    longest = ORDER.longest_selected_row if is_contiguous else ORDER.longest_selected_column
    return x.shape[axis] <= longest and _bits(x.dtype) is not None


def selected(b: Builder, x: Tensor, axis: int, rank: Rank) -> tuple[Tensor, Tensor]:
    """Returns the elements of a rank along an axis, and the first place of each, in tensors without that axis.

    NaN is larger than all numbers.
    """
    axes = Axes(x.shape, (axis,))
    keys = b.loop(x.shape, I32, lambda point: _key(x.stored_at(point)))

    def place(point: Point) -> Scalar:
        is_it = eq(keys.at(point), found.at(axes.kept_point(point)))
        return choose(is_it, sc.cast(number_of(point[axis]), I32), x.shape[axis] - 1)

    found = _first_bit(b, axes, keys, x.dtype, rank)
    for bit in reversed(range(_bits(x.dtype) or 0)):
        found = _next_bit(b, axes, keys, found, 1 << bit, rank)
    places = reduced(b, "min", axes, place)
    values = b.loop(axes.kept_shape, x.dtype, lambda point: _element(found.at(point), x.dtype))
    return values, b.loop(axes.kept_shape, I64, lambda point: sc.cast(places.at(point), I64))


def _first_bit(b: Builder, axes: Axes, keys: Tensor, dtype: DType, rank: Rank) -> Tensor:
    """Returns the least key that a row's may be: zero, or of signed types the lowest if too many are below zero."""
    if dtype.lowest == 0:
        return b.loop(axes.kept_shape, I32, lambda _: sc.const(0, I32))
    below = reduced(b, "sum", axes, lambda point: sc.cast(lt(keys.at(point), 0), I32))
    lowest = -(1 << (_bits(dtype) or 0))
    return b.loop(axes.kept_shape, I32, lambda point: choose(_at_most(below, rank, point), sc.const(0, I32), lowest))


def _next_bit(b: Builder, axes: Axes, keys: Tensor, found: Tensor, bit: int, rank: Rank) -> Tensor:
    """Returns what is found of the keys with one bit more."""

    def is_smaller(point: Point) -> Scalar:
        return sc.cast(lt(keys.at(point), add(found.at(axes.kept_point(point)), bit)), I32)

    below = reduced(b, "sum", axes, is_smaller)

    def with_bit(point: Point) -> Scalar:
        known = found.at(point)
        return choose(_at_most(below, rank, point), add(known, bit), known)

    return b.loop(axes.kept_shape, I32, with_bit)


def _at_most(count: Tensor, rank: Rank, point: Point) -> Scalar:
    return le(count.at(point), sc.cast(rank(point), I32))


def _bits(dtype: DType) -> int | None:
    """Returns how many bits keys of a type have beside their sign, or None of types that have none of 32 bits."""
    if dtype is BOOL:
        return 1
    if dtype.is_float:
        return dtype.bits - 1 if dtype is F32 or dtype.is_half else None
    bits = dtype.bits - (dtype.lowest != 0)
    return bits if dtype.is_integer and bits < I32.bits else None


def _key(element: Scalar) -> Scalar:
    """Returns an integer that is smaller than that of another element if the element is, and NaN's the largest."""
    dtype = element.dtype
    if not dtype.is_float:
        return sc.cast(element, I32)
    largest = (1 << (dtype.bits - 1)) - 1
    return choose(is_nan(element), sc.const(largest, I32), _mirrored(_pattern(element), largest))


def _pattern(element: Scalar) -> Scalar:
    return sc.bitcast(element, I32) if element.dtype is F32 else sc.cast(sc.bitcast(element, I16), I32)


def _mirrored(pattern: Scalar, largest: int) -> Scalar:
    """Returns a pattern whose bits below the sign are inverted where that is set: of negative numbers, and back."""
    return call("bitxor", pattern, call("bitand", call("shr", pattern, 31), largest))


def _element(key: Scalar, dtype: DType) -> Scalar:
    if not dtype.is_float:
        return call("ne", key, 0) if dtype is BOOL else sc.cast(key, dtype)
    pattern = _mirrored(key, (1 << (dtype.bits - 1)) - 1)
    return sc.bitcast(pattern, F32) if dtype is F32 else sc.bitcast(sc.cast(pattern, I16), dtype)
