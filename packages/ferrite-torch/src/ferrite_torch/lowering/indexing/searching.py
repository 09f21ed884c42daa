"""Binary searches in sorted sequences, unrolled: one load for each halving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL, I32, I64, DType
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, Symbolic, bounds, is_provably_at_most
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.elementwise import Element, element_at, promoted_type, refuse_opaque
from ferrite_torch.lowering.expressions import (
    add,
    both,
    call,
    choose,
    either,
    ge,
    gt,
    guarded,
    inverted,
    lifted,
    lt,
    sub,
)
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.requirements import inside, is_position, required
from ferrite_torch.lowering.tensors import Point, Tensor, grid_point
from ferrite_torch.sizes.symbolic_sizes import sizes_of
from ferrite_torch.thresholds import ORDER

Read = Callable[[Scalar], Scalar]
"""The element of a sorted sequence, by its position."""
Test = Callable[[Scalar, Scalar], Scalar]

MOST_NARROW = 1 << 31
"""Fewest elements whose positions need 64 bits."""
MOST_HALVINGS = 40
"""As many as a sequence in any memory needs: where a size is symbolic nothing else bounds it."""


def insertion_position(
    read: Read, size: Size, value: Scalar, *, right: bool, shared: bool = False, integer: DType = I64
) -> Scalar:
    """Returns where in a sorted sequence a value belongs: before what is equal to it, or behind.

    Looks at the positions that torch looks at, so that sequences that are not sorted, or hold NaN, give its results as
    well: of an open range of ``n`` elements at the one with ``n // 2`` before it, which leaves ``n // 2`` of them or,
    behind it, ``(n - 1) // 2``. ``shared`` says that all values are searched for in the same sequence; ``integer`` is
    the type of positions. Only reads of the sequence stand under conditions: the value is computed once, not at each
    step.
    """
    before = gt if right else ge
    if isinstance(size, Symbolic):
        return _position_in_any(read, size, value, before, integer)
    preloaded = ORDER.preloaded_halvings if shared and size >= ORDER.preloaded_size else 0
    low, rest = sc.const(0, integer), Range(size)
    ranges = [(0, size)]  # where each way down has come to
    turns: list[Scalar] = []
    for level in range(size.bit_length()):
        middle = add(low, rest.half(integer))
        if level < preloaded:
            pivot = _selected(turns, [read(sc.const(start + (count >> 1), integer)) for start, count in ranges])
            ranges = [part for start, count in ranges for part in _parts(start, count)]
        elif rest.least == 0:
            pivot = guarded(rest.is_longer, read(middle), sc.const(0, value.dtype))
        else:
            pivot = read(middle)
        is_behind = inverted(before(pivot, value))
        if rest.least == 0:
            is_behind = both(rest.is_longer, is_behind)
        low = choose(is_behind, add(middle, 1), low)
        rest = rest.left(is_behind)
        turns.append(is_behind)
    return low


def _position_in_any(read: Read, size: Symbolic, value: Scalar, before: Test, integer: DType) -> Scalar:
    """Returns what `insertion_position` does, for a sequence whose length is known only when the kernel runs."""
    most = bounds(size)[1]
    low, high = sc.const(0, integer), lifted(size, integer)
    for _ in range(MOST_HALVINGS if most is None else min(MOST_HALVINGS, most.bit_length())):
        is_open = lt(low, high)
        middle = add(low, call("shr", sub(high, low), 1))
        pivot = guarded(is_open, read(middle), sc.const(0, value.dtype))
        is_behind = both(is_open, inverted(before(pivot, value)))
        low = choose(is_behind, add(middle, 1), low)
        high = choose(is_behind, high, choose(is_open, middle, high))
    return low


@dataclass(frozen=True, slots=True)
class Range:
    """How many elements are left to search: a number that is known beforehand, or one more.

    Whichever way a search turns, what is left of ranges of two consecutive lengths has one of two consecutive lengths
    again. So a search need not carry a length: one bit says which.
    """

    least: int
    longer: Scalar | None = None

    @property
    def is_longer(self) -> Scalar:
        """Returns whether there is one more."""
        return sc.const(False, BOOL) if self.longer is None else self.longer

    def half(self, integer: DType) -> Scalar:
        """Returns half of the length, rounded down."""
        half = self.least >> 1
        if self.longer is None or self.least % 2 == 0:
            return sc.const(half, integer)
        return choose(self.longer, sc.const(half + 1, integer), half)

    def left(self, is_behind: Scalar) -> Range:
        """Returns what is left before the middle, or behind it: ``n // 2`` elements, or ``(n - 1) // 2``."""
        half, is_before = self.least >> 1, inverted(is_behind)
        if self.least % 2:
            return Range(half, None if self.longer is None else both(self.longer, is_before))
        if self.least == 0:
            return Range(0)
        return Range(half - 1, is_before if self.longer is None else either(self.longer, is_before))


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
    """Returns the position of each value in its row of the sequence, or in the one row that there is."""
    fake = b.fake
    size = sequence.shape[-1]
    dtype = dtype_of(promoted_type([sequence, values])).compute
    refuse_opaque(sequence.dtype, dtype)
    shape = sizes_of(fake.shape)
    is_shared = sequence.ndim == 1
    fits = None if sorter is None or 0 in shape else _all_inside(b, sorter, size)

    def body(point: Point) -> Scalar:
        row = () if is_shared else point[:-1]

        def read(position: Scalar) -> Scalar:
            if sorter is not None:
                position = sc.cast(sorter.at((*row, ix.indirect(position, size))), I64)
                if fits is not None:
                    position = required("sorter", inside(position, size, wraps=False), position)
            return sc.cast(sequence.stored_at((*row, ix.indirect(position, size))), dtype)

        value = element_at(values, shape, point, dtype, stored=True)
        integer = I32 if is_provably_at_most(size, MOST_NARROW - 1) else I64
        position = insertion_position(read, size, value, right=right, shared=is_shared, integer=integer)
        if fits is not None:
            position = required("sorter", fits.at(()), position)
        return sc.cast(position, dtype_of(fake.dtype))

    return b.loop(shape, dtype_of(fake.dtype), body)


def _all_inside(b: Builder, sorter: Tensor, size: Size) -> Tensor | None:
    """Returns whether all elements of a sorter are positions, those that no search reads, too; None if it is known."""

    def is_inside(point: Point) -> Scalar:
        return inside(sorter.at(point), size, wraps=False)

    if 0 in sorter.shape or is_position(b, sorter.at(grid_point(sorter.shape)), size, wraps=False):
        return None
    return b.reduce("all", (), sorter.shape, lambda _, point: (is_inside(point),))[0]


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
