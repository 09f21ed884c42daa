"""Ops that number the elements where a mask holds: a running count says which one each of them is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import I32, I64
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import is_provably_at_most, product
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.elementwise import broadcast_point, refuse_opaque
from ferrite_torch.lowering.expressions import both, choose, guarded, is_true, le, number_of, sub
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.creation import made
from ferrite_torch.lowering.shapes.views import reshaped
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of

Test = Callable[[Point], Scalar]
"""Whether a mask holds at a point."""


def ranks(b: Builder, shape: Sequence[int], holds: Test) -> Tensor:
    """Returns for each point, in row-major order, at how many up to it and with it a mask holds."""
    count = math.prod(shape)
    dtype = I32 if is_provably_at_most(count, (1 << 31) - 1) else I64

    def body(point: Point) -> tuple[Scalar, ...]:
        return (sc.cast(holds(ix.delinearize(point[0], tuple(shape)) if shape else ()), dtype),)

    (counted,) = b.scan("sum", (count,), 0, body)
    return reshaped(counted, shape)


def rank_at(counted: Tensor, point: Point) -> Scalar:
    """Returns the number, from 0, of the element at a point where the mask holds (i64)."""
    return sub(sc.cast(counted.at(point), I64), 1)


def _holds(mask: Tensor, shape: Sequence[int], point: Point) -> Scalar:
    """Returns whether a mask, broadcast to a shape, holds at a point."""
    return is_true(mask.value_at(broadcast_point(mask.shape, shape, point)))


@lowers("aten.masked_scatter.default")
def masked_scatter(b: Builder, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    refuse_opaque(x.dtype)
    shape = sizes_of(b.fake.shape)
    if 0 in shape or source.numel == 0:
        return made(b, lambda point: x.at(broadcast_point(x.shape, shape, point)))
    flat = reshaped(source, (source.numel,))

    holds = partial(_holds, mask, shape)
    counted = ranks(b, shape, holds)

    def body(point: Point) -> Scalar:
        taken = flat.at((ix.indirect(rank_at(counted, point), source.numel),))
        return guarded(holds(point), taken, x.at(broadcast_point(x.shape, shape, point)))

    return made(b, body)


@lowers("aten.masked_scatter_backward.default")
def masked_scatter_backward(b: Builder, grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """Returns the elements of the gradient where the mask holds, one after the other, then zeros."""
    fake, zero = b.fake, sc.const(0, grad.dtype.compute)
    size = product(sizes_of(fake.shape))
    start = b.loop((size,), grad.dtype, lambda _: zero)
    shape = grad.shape

    holds = partial(_holds, mask, shape)
    if grad.numel != 0 and size != 0:
        counted = ranks(b, shape, holds)

        def where(point: Point) -> Sequence[Index]:
            return (ix.indirect(rank_at(counted, point), size),)

        start = b.update(start, "set", shape, where, grad.value_at, holds)
    return reshaped(start, sizes_of(fake.shape))


@lowers("aten.nonzero_static.default")
def nonzero_static(b: Builder, x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Returns the first ``size`` points, in row-major order, that are not zero; rows past the last are filled."""
    refuse_opaque(x.dtype)
    size, shape = int(size), x.shape
    start = b.loop((size, x.ndim), I64, lambda _: sc.const(fill_value, I64))
    if x.numel == 0 or size == 0 or x.ndim == 0:
        return start

    def holds(point: Point) -> Scalar:
        return is_true(x.value_at(point))

    counted = ranks(b, shape, holds)

    def coordinate(point: Point) -> Scalar:
        found = number_of(point[-2])
        for axis in reversed(range(x.ndim - 1)):
            found = choose(le(number_of(point[-1]), axis), number_of(point[axis]), found)
        return found

    def is_kept(point: Point) -> Scalar:
        return both(holds(point[:-1]), le(sc.cast(counted.at(point[:-1]), I64), size))

    return b.update(
        start,
        "set",
        (*shape, x.ndim),
        lambda point: (ix.indirect(rank_at(counted, point[:-1]), size), point[-1]),
        coordinate,
        is_kept,
    )
