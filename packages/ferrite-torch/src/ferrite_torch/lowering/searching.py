"""Binary searches in sorted sequences, unrolled: one load for each halving."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrite_ir import index as ix
from ferrite_ir import scalar as sc
from ferrite_ir.dtypes import BOOL, I32, I64, DType
from ferrite_ir.scalar import Scalar
from ferrite_torch.builder import Builder
from ferrite_torch.dtypes import dtype_of
from ferrite_torch.lowering.elementwise import Element, element_at, promoted_type, refuse_opaque
from ferrite_torch.lowering.expressions import add, call, choose, ge, gt, guarded, inverted, sub
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.symbols import sizes_of
from ferrite_torch.tensors import Point, Tensor

Read = Callable[[Scalar], Scalar]
"""The element of a sorted sequence, by its place."""


MOST_NARROW = 1 << 31
"""Fewest elements whose places need 64 bits."""
PRELOADED = 3
"""Halvings whose places are known beforehand: their seven elements are loaded once, and selected from."""
PRELOADED_SIZE = 64
"""Shortest sequence for which that pays."""


def insertion_place(
    read: Read, size: int, value: Scalar, *, right: bool, shared: bool = False, integer: DType = I64
) -> Scalar:
    """Returns where in a sorted sequence a value belongs: before what is equal to it, or behind.

    Looks at the places that torch looks at, so that sequences that are not sorted, or hold NaN, give its results as
    well: of an open range of ``n`` elements at the one with ``n // 2`` before it, which leaves ``n // 2`` of them or,
    behind it, ``(n - 1) // 2``. ``shared`` says that all values are searched for in the same sequence; ``integer`` is
    the type of places.
    """
    before = gt if right else ge
    preloaded = PRELOADED if shared and size >= PRELOADED_SIZE else 0
    low, open_ = sc.const(0, integer), sc.const(size, integer)
    least = most = size
    ranges = [(0, size)]  # where each way down has come to
    turns: list[Scalar] = []
    for level in range(size.bit_length()):
        half = call("shr", open_, 1) if least != most else sc.const(most >> 1, integer)
        middle = add(low, half)
        if level < preloaded:
            pivot = _selected(turns, [read(sc.const(start + (count >> 1), integer)) for start, count in ranges])
            ranges = [part for start, count in ranges for part in _parts(start, count)]
        else:
            pivot = read(middle)
        is_behind = inverted(before(pivot, value))
        if least == 0:
            is_behind = guarded(gt(open_, 0), is_behind, sc.const(False, BOOL))
        low = choose(is_behind, add(middle, 1), low)
        least, most = max(0, least - 1) >> 1, most >> 1
        open_ = call("shr", sub(open_, sc.cast(is_behind, integer)), 1) if least != most else sc.const(most, integer)
        turns.append(is_behind)
    return low


def _parts(start: int, count: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns what may be left of a range: its part before the middle, and the one behind it."""
    return (start, count >> 1), (start + (count >> 1) + 1, (count - 1) >> 1)


def _selected(turns: Sequence[Scalar], elements: Sequence[Scalar]) -> Scalar:
    """Returns one of two to the power of ``len(turns)`` elements, by decisions of which the first halves them."""
    if not turns:
        return elements[0]
    half = len(elements) // 2
    rest = turns[1:]
    return choose(turns[0], _selected(rest, elements[half:]), _selected(rest, elements[:half]))


def _searched(b: Builder, sequence: Tensor, values: Element, sorter: Tensor | None, *, right: bool) -> Tensor:
    """Returns the place of each value in its row of the sequence, or in the one row that there is."""
    fake = b.fake
    size = sequence.shape[-1]
    dtype = dtype_of(promoted_type([sequence, values])).compute
    refuse_opaque(sequence.dtype, dtype)
    shape = sizes_of(fake.shape)
    is_shared = sequence.ndim == 1

    def body(point: Point) -> Scalar:
        row = () if is_shared else point[:-1]

        def read(place: Scalar) -> Scalar:
            if sorter is not None:
                place = sc.cast(sorter.at((*row, ix.indirect(place, size))), I64)
            return sc.cast(sequence.at((*row, ix.indirect(place, size))), dtype)

        value = element_at(values, shape, point, dtype)
        integer = I32 if size < MOST_NARROW else I64
        place = insertion_place(read, size, value, right=right, shared=is_shared, integer=integer)
        return sc.cast(place, dtype_of(fake.dtype))

    return b.loop(shape, dtype_of(fake.dtype), body)


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    b: Builder,
    sequence: Tensor,
    values: Element,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    return _searched(b, sequence, values, sorter, right=right or side == "right")


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    b: Builder, values: Element, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return _searched(b, boundaries, values, None, right=right)
