"""Distances between rows, by any norm of their difference, and their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F64, I64
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.elementwise import broadcast_point, refuse_opaque
from ferrite_torch.lowering.expressions import (
    absolute,
    add,
    call,
    choose,
    div,
    either,
    eq,
    guarded,
    larger,
    mul,
    ne,
    number_of,
    smaller,
    sqrt,
    sub,
)
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of


@dataclass(frozen=True, slots=True)
class Norm:
    """A p-norm of differences.

    Attributes:
        p: its order, not negative; 0 counts what differs, infinity takes the largest.
    """

    p: float

    @property
    def combine(self) -> str:
        """Returns how the terms of the elements become one."""
        return "max" if self.p == math.inf else "sum"

    def term(self, difference: Scalar) -> Scalar:
        """Returns what the difference of two elements adds."""
        match self.p:
            case 0.0:
                return sc.cast(ne(difference, 0), difference.dtype)
            case 2.0:
                return mul(difference, difference)
            case 1.0 | math.inf:
                return absolute(difference)
        return call("pow", absolute(difference), self.p)

    def finished(self, total: Scalar) -> Scalar:
        """Returns the distance, from all terms."""
        match self.p:
            case 0.0 | 1.0 | math.inf:
                return total
            case 2.0:
                return sqrt(total)
        return call("pow", total, 1 / self.p)

    def slope(self, grad: Scalar, difference: Scalar, distance: Scalar) -> Scalar:
        """Returns the gradient of a distance by the first of two elements."""
        size, sign = absolute(difference), call("sign", difference)
        match self.p:
            case 0.0:
                return sc.const(0, grad.dtype)
            case 1.0:
                return mul(grad, sign)
            case 2.0:
                return choose(eq(distance, 0), 0, div(mul(grad, difference), distance))
            case math.inf:
                return mul(mul(grad, sign), sc.cast(eq(size, distance), grad.dtype))
        p = self.p
        if p < 2:
            sloped = div(mul(mul(sign, call("pow", size, p - 1)), grad), call("pow", distance, p - 1))
            still = either(eq(distance, 0), eq(difference, 0)) if p < 1 else eq(distance, 0)
            return choose(still, 0, sloped)
        sloped = div(mul(mul(difference, call("pow", size, p - 2)), grad), call("pow", distance, p - 1))
        return choose(eq(distance, 0), 0, sloped)


@lowers("aten._cdist_forward.default")
def distances(b: Builder, x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """Returns the distance of each row of ``x`` ``[…, n, k]`` to each row of ``y`` ``[…, m, k]``, as ``[…, n, m]``."""
    refuse_opaque(x.dtype, y.dtype)
    shape, norm, width = sizes_of(b.fake.shape), Norm(float(p)), x.shape[-1]
    if width == 0:
        return b.loop(shape, x.dtype, lambda point: sc.const(0, x.dtype.compute))

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        *batch, row, column = point
        return (norm.term(sub(_row(x, shape, batch, row, reduced[0]), _row(y, shape, batch, column, reduced[0]))),)

    (total,) = b.reduce(norm.combine, shape, (width,), bodies)
    return b.loop(shape, x.dtype, lambda point: norm.finished(total.at(point)))


def _row(x: Tensor, shape: tuple[int, ...], batch: list[Index], row: Index, element: Index) -> Scalar:
    """Returns an element of a row of a batch that may be broadcast to that of ``shape``."""
    return x.value_at((*broadcast_point(x.shape[:-2], shape[:-2], tuple(batch)), row, element))


@lowers("aten._cdist_backward.default")
def distances_backward(b: Builder, grad: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    """Returns the gradient of the distances by ``x``."""
    refuse_opaque(x.dtype, y.dtype, grad.dtype)
    shape, norm, count = sizes_of(b.fake.shape), Norm(float(p)), y.shape[-2]
    if 0 in (count, x.numel, y.numel):  # then torch does not broadcast the batches either
        return b.loop(shape, x.dtype, lambda point: sc.const(0, x.dtype.compute))

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        *batch, row, element = point
        pair = broadcast_point(grad.shape[:-2], shape[:-2], tuple(batch))
        difference = sub(_row(x, shape, batch, row, element), _row(y, shape, batch, reduced[0], element))
        found = distance.value_at((*pair, row, reduced[0]))
        return (norm.slope(grad.value_at((*pair, row, reduced[0])), difference, found),)

    (total,) = b.reduce("sum", shape, (count,), bodies)
    return b.loop(shape, x.dtype, total.at)


@lowers("aten._pdist_forward.default")
def pair_distances(b: Builder, x: Tensor, p: float = 2.0) -> Tensor:
    """Returns the distances of all pairs of rows of ``x`` ``[n, k]``, the first row's first, as ``[n (n - 1) / 2]``."""
    refuse_opaque(x.dtype)
    rows, width = x.shape
    norm, shape = Norm(float(p)), sizes_of(b.fake.shape)
    if not width:
        return b.loop(shape, x.dtype, lambda point: sc.const(0, x.dtype.compute))

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        first, second = _pair_at(point[0], rows)
        return (norm.term(sub(x.value_at((first, reduced[0])), x.value_at((second, reduced[0])))),)

    (total,) = b.reduce(norm.combine, shape, (width,), bodies)
    return b.loop(shape, x.dtype, lambda point: norm.finished(total.at(point)))


def _pair_at(position: Index, rows: int) -> tuple[Index, Index]:
    """Returns the rows of the pair at a position: the root of the quadratic that counts the pairs before a row."""
    flat = number_of(position)
    half = rows - 0.5
    root = sqrt(sub(half * half - 1, mul(sc.cast(flat, F64), 2.0)))
    first = sc.cast(sub(half, root), I64)
    second = add(sub(flat, mul(first, rows)), add(add(call("shr", mul(first, add(first, 1)), 1), first), 1))
    return ix.indirect(first, rows), ix.indirect(second, rows)


@lowers("aten._pdist_backward.default")
def pair_distances_backward(b: Builder, grad: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    """Returns for each row the gradients of its pairs added up."""
    refuse_opaque(x.dtype, grad.dtype)
    rows, _ = x.shape
    norm = Norm(float(p))
    if grad.numel == 0:
        return b.loop(x.shape, x.dtype, lambda point: sc.const(0, x.dtype.compute))

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        mine, other = number_of(point[0]), number_of(reduced[0])
        first, second = smaller(mine, other), larger(mine, other)
        before = sub(mul(first, rows), call("shr", mul(first, add(first, 1)), 1))
        pair = ix.indirect(sub(add(before, sub(second, first)), 1), grad.shape[0])
        difference = sub(x.value_at(point), x.value_at((reduced[0], point[1])))
        slope = norm.slope(grad.value_at((pair,)), difference, distance.value_at((pair,)))
        return (guarded(ne(mine, other), slope, 0),)

    (total,) = b.reduce("sum", x.shape, (rows,), bodies)
    return b.loop(x.shape, x.dtype, total.at)
