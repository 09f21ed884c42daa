"""Histograms, repetitions and the positions in triangles of a matrix: where the k-th thing of something is."""

from __future__ import annotations

import math
from typing import Any

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import I32, I64
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import plain_number, refuse_opaque
from ferrite_torch.lowering.expressions import (
    Operand,
    absolute,
    add,
    both,
    call,
    choose,
    div,
    eq,
    ge,
    larger,
    le,
    lt,
    mul,
    number_of,
    smaller,
    sub,
)
from ferrite_torch.lowering.indexing.searching import insertion_position
from ferrite_torch.lowering.reductions.reductions import axes_of, extreme
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.requirements import required
from ferrite_torch.lowering.shapes.creation import made
from ferrite_torch.lowering.shapes.views import reshaped
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of


@lowers("aten.histc.default")
def histc(b: Builder, x: Tensor, bins: int = 100, min: Operand = 0, max: Operand = 0) -> Tensor:  # noqa: A002
    """Returns how many elements lie in each of equal bins, the last of which holds its upper end as well.

    Equal limits stand for the extremes of the elements; if those are equal, too, for one more and one less.
    """
    refuse_opaque(x.dtype)
    bins, low, high = int(bins), plain_number(min), plain_number(max)
    if not x.dtype.is_float or x.numel == 0:
        raise Unlowered(f"a histogram of {x.numel} elements of {x.dtype}")
    flat = reshaped(x, (x.numel,))
    extremes = [extreme(b, name, flat, axes_of(flat, None)) for name in ("min", "max")] if low == high else []
    compute = x.dtype.compute

    def value_at(point: Point) -> Scalar:
        return sc.cast(flat.stored_at(point), compute)

    def limits() -> tuple[Scalar, Scalar]:
        if not extremes:
            return sc.const(float(low), compute), sc.const(float(high), compute)
        first, last = (sc.cast(found.at(()), compute) for found in extremes)
        are_finite = both(lt(absolute(first), math.inf), lt(absolute(last), math.inf))
        first, last = (required("finite_range", are_finite, end) for end in (first, last))
        widened = eq(first, last)
        return choose(widened, sub(first, 1.0), first), choose(widened, add(last, 1.0), last)

    def where(point: Point) -> tuple[Index]:
        first, last = limits()
        found = div(mul(sub(value_at(point), first), float(bins)), sub(last, first))
        return (ix.indirect(smaller(sc.cast(found, I64), bins - 1), bins),)

    def counts(point: Point) -> Scalar:
        first, last = limits()
        value = value_at(point)
        return both(ge(value, first), le(value, last))

    start = b.loop((bins,), I32, lambda _: sc.const(0, I32))
    total = b.update(start, "add", flat.shape, where, lambda _: sc.const(1, I32), counts)
    return made(b, lambda point: sc.cast(total.at(point), compute))


@lowers("aten.repeat_interleave.Tensor")
def repeat_interleave(b: Builder, repeats: Tensor, *, output_size: Any = None) -> Tensor:
    """Returns each position as often as ``repeats`` says: place k holds the first whose end lies behind k."""
    size = repeats.shape[0]
    if size == 0:
        raise Unlowered("repetitions of nothing")

    def repetitions(point: Point) -> tuple[Scalar]:
        count = sc.cast(repeats.at(point), I64)
        return (required("repeats", ge(count, 0), count),)

    (ends,) = b.scan("sum", (size,), 0, repetitions)
    (total,) = sizes_of(b.fake.shape)

    def body(point: Point) -> Scalar:
        position = insertion_position(
            lambda position: ends.at((ix.indirect(position, size),)), size, number_of(point[0]), right=True
        )
        return required("total", eq(ends.at((ix.constant(size - 1),)), total), position)

    return made(b, body)


def _triangle(row: Scalar, columns: int) -> Scalar:
    """Returns how many elements rows 1, 2, … hold up to ``row`` if row n holds n, but no more than ``columns``."""
    full = larger(row, 0)
    grown = smaller(full, columns)
    return add(call("shr", mul(grown, add(grown, 1)), 1), mul(sub(full, grown), columns))


def _position(b: Builder, rows: int, columns: int, offset: int, *, upper: bool) -> Tensor:
    """Returns the rows and the columns of a triangle's elements in row-major order, as a tensor of two rows."""
    if rows == 0 or columns == 0 or 0 in sizes_of(b.fake.shape):
        return made(b, lambda _: sc.const(0, I64))
    shift = offset - 1 if upper else offset
    start = _triangle(sc.const(shift, I64), columns)

    def before(row: Scalar) -> Scalar:
        lower = sub(_triangle(add(row, shift), columns), start)
        return sub(mul(row, columns), lower) if upper else lower

    def body(point: Point) -> Scalar:
        position = number_of(point[1])
        row = insertion_position(lambda row: before(add(row, 1)), rows, position, right=True)
        column = sub(position, before(row))
        if upper:
            column = add(column, larger(add(row, offset), 0))
        return choose(eq(number_of(point[0]), 0), row, column)

    return made(b, body)


@lowers("aten.tril_indices.default")
def tril_indices(b: Builder, row: int, col: int, offset: int = 0, **_: Any) -> Tensor:
    return _position(b, int(row), int(col), int(offset), upper=False)


@lowers("aten.triu_indices.default")
def triu_indices(b: Builder, row: int, col: int, offset: int = 0, **_: Any) -> Tensor:
    return _position(b, int(row), int(col), int(offset), upper=True)
