"""Binary searches in sorted sequences, unrolled: one load for each halving."""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir import index as ix
from ferrite_ir import scalar as sc
from ferrite_ir.dtypes import BOOL, I64
from ferrite_ir.scalar import Scalar
from ferrite_ir.sizes import Size, bounds
from ferrite_torch.builder import Builder
from ferrite_torch.dtypes import dtype_of
from ferrite_torch.lowering.elementwise import Element, element_at, promoted_type, refuse_opaque
from ferrite_torch.lowering.expressions import add, call, choose, ge, gt, guarded, inverted, lifted, lt, sub
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.symbols import sizes_of
from ferrite_torch.tensors import Point, Tensor

Read = Callable[[Scalar], Scalar]
"""The element of a sorted sequence, by its place (i64)."""


MOST_HALVINGS = 40
"""As many as a sequence in any memory needs: where a size is symbolic nothing else bounds it."""


def insertion_place(read: Read, size: Size, value: Scalar, *, right: bool) -> Scalar:
    """Returns where in a sorted sequence a value belongs (i64): before what is equal to it, or behind.

    Halves as torch does, so that sequences that are not sorted, or hold NaN, give its results as well.
    """
    before = gt if right else ge
    low, high = sc.const(0, I64), lifted(size, I64)
    for _ in range(_halvings(size)):
        open_ = lt(low, high)
        middle = add(low, call("shr", sub(high, low), 1))
        is_before = guarded(open_, inverted(before(read(middle), value)), sc.const(False, BOOL))
        low = choose(is_before, add(middle, 1), low)
        high = choose(is_before, high, choose(open_, middle, high))
    return low


def _halvings(size: Size) -> int:
    """Returns how many halvings leave one place of a sequence; what is searched to the end is not read again."""
    most = bounds(size)[1]
    return MOST_HALVINGS if most is None else min(MOST_HALVINGS, most.bit_length())


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

        return insertion_place(read, size, element_at(values, shape, point, dtype), right=right)

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
