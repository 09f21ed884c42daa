"""Ops that move elements into a new tensor: joining, repeating, padding, and writing into a part of a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import (
    both,
    choose,
    eq,
    ge,
    guarded,
    is_between,
    le,
    number_of,
)
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.creation import made
from ferrite_torch.lowering.shapes.views import axis_of, from_front, replaced, slice_start, without
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import size_of
from ferrite_torch.thresholds import JOINING


def moved(b: Builder, x: Tensor, to_old: Callable[[Point], Sequence[Index]]) -> Tensor:
    """Returns a new tensor like the fake result whose element at a point is that of ``x`` at ``to_old(point)``."""
    refuse_opaque(x.dtype)
    return made(b, lambda point: x.at(to_old(point)))


@lowers("aten.flip.default", "prims.rev.default")
def flip(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {axis_of(dim, x.ndim) for dim in dims}
    return moved(
        b, x, lambda point: [-index + (x.shape[k] - 1) if k in turned else index for k, index in enumerate(point)]
    )


@lowers("aten.roll.default")
def roll(b: Builder, x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    amounts = [size_of(shift) for shift in (shifts if isinstance(shifts, (list, tuple)) else [shifts])]
    axes = [axis_of(dim, x.ndim) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
    if x.numel == 0:
        return moved(b, x, lambda point: point)
    if not axes:
        return _rolled_flat(b, x, amounts[0])
    total = dict.fromkeys(axes, 0)
    for axis, amount in zip(axes, amounts, strict=True):
        total[axis] += amount

    def to_old(point: Point) -> list[Index]:
        return [_turned(index, x.shape[k], total[k]) if k in total else index for k, index in enumerate(point)]

    return moved(b, x, to_old)


def _turned(index: Index, size: int, shift: int) -> Index:
    return ix.mod(index + (-shift) % size, size)


def _rolled_flat(b: Builder, x: Tensor, shift: int) -> Tensor:
    strides = [1]
    for size in reversed(x.shape[1:]):
        strides.insert(0, strides[0] * size)
    return moved(
        b,
        x,
        lambda point: ix.delinearize(_turned(ix.linearize(point, tuple(strides[: x.ndim])), x.numel, shift), x.shape),
    )


@lowers("aten.repeat.default", "aten.tile.default")
def repeat(b: Builder, x: Tensor, repeats: Sequence[int]) -> Tensor:
    def to_old(point: Point) -> list[Index]:
        own = point[len(point) - x.ndim :]
        return [ix.mod(index, size) if size != 0 else index for index, size in zip(own, x.shape, strict=True)]

    return moved(b, x, to_old)


@lowers("aten.cat.default", "prims.cat.default", "aten.concat.default")
def cat(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    fake = b.fake
    ndim, result = fake.dim(), dtype_of(fake.dtype)
    parts = [x for x in tensors if x.ndim == ndim and x.numel != 0]  # a 1-d tensor without elements joins anything
    if len(parts) > JOINING.tensors:
        raise Unlowered(f"cat of more than {JOINING.tensors} tensors")
    refuse_opaque(result, *(x.dtype for x in parts))
    axis = axis_of(dim, ndim)
    if parts and all(x.shape[axis] == 1 for x in parts):
        return _by_turns(b, parts, axis, lambda x, point: x.at(replaced(point, axis, ix.constant(0))))
    ends: list[int] = []
    for x in parts:
        ends.append(x.shape[axis] + (ends[-1] if ends else 0))

    def body(point: Point) -> Scalar:
        joined: Scalar = sc.const(0, result.compute)
        for x, end in reversed(list(zip(parts, ends, strict=True))):
            start = end - x.shape[axis]
            value = sc.cast(x.at(replaced(point, axis, point[axis] - start)), result.compute)
            inside = is_between(point[axis], start, end)
            joined = guarded(inside, value, joined)
        return joined

    return made(b, body)


@lowers("aten.stack.default")
def stack(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    if len(tensors) > JOINING.tensors:
        raise Unlowered(f"stack of more than {JOINING.tensors} tensors")
    refuse_opaque(*(x.dtype for x in tensors))
    axis = axis_of(dim, b.fake.dim())
    return _by_turns(b, tensors, axis, lambda x, point: x.at(without(point, axis)))


def _by_turns(b: Builder, tensors: Sequence[Tensor], axis: int, element: Callable[[Tensor, Point], Scalar]) -> Tensor:
    """Returns a tensor that has the elements of others by turns along an axis.

    Neighbours along the last axis are read together, whichever is chosen: the elements of a few tensors are loaded
    without conditions, and what several of them are made of is loaded once.
    """
    result, has_few = dtype_of(b.fake.dtype), len(tensors) <= JOINING.interleaved
    pick = choose if has_few and axis == b.fake.dim() - 1 else guarded

    def body(point: Point) -> Scalar:
        values = [sc.cast(element(x, point), result.compute) for x in tensors]
        joined = values[-1]
        for position in reversed(range(len(values) - 1)):
            joined = pick(eq(number_of(point[axis]), position), values[position], joined)
        return joined

    return made(b, body)


@lowers("aten.triu.default")
def triu(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
    return _kept(b, x, lambda point: ge(number_of(point[-1] - point[-2]), int(diagonal)))


@lowers("aten.tril.default")
def tril(b: Builder, x: Tensor, diagonal: int = 0) -> Tensor:
    return _kept(b, x, lambda point: le(number_of(point[-1] - point[-2]), int(diagonal)))


def _kept(b: Builder, x: Tensor, stays: Callable[[Point], Scalar]) -> Tensor:
    refuse_opaque(x.dtype)
    return made(b, lambda point: choose(stays(point), x.value_at(point), 0))


@lowers("aten.slice_scatter.default")
def slice_scatter(
    b: Builder, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    axis = axis_of(dim, x.ndim)
    first, stop = slice_start(start, x.shape[axis]), x.shape[axis] if end is None else slice_start(end, x.shape[axis])
    return _overwritten(b, x, source, lambda point: _on_slice(point, axis, first, stop, int(step)))


@lowers("aten.slice_backward.default")
def slice_backward(b: Builder, grad: Tensor, sizes: Any, dim: int, start: Any, end: Any, step: int) -> Tensor:
    axis = axis_of(dim, grad.ndim)
    size = size_of(sizes[axis])
    first, stop = slice_start(start, size), slice_start(end, size)
    return _overwritten(b, None, grad, lambda point: _on_slice(point, axis, first, stop, int(step)))


def _on_slice(point: Point, axis: int, start: int, stop: int, step: int) -> tuple[Scalar, Point]:
    index = point[axis] - start
    inside = is_between(point[axis], start, stop)
    if step != 1:
        inside = both(inside, eq(number_of(ix.mod(index, step)), 0))
    return inside, replaced(point, axis, ix.floordiv(index, step))


@lowers("aten.select_scatter.default")
def select_scatter(b: Builder, x: Tensor, source: Tensor, dim: int, index: Any) -> Tensor:
    axis = axis_of(dim, x.ndim)
    chosen = number_of(ix.constant(from_front(index, x.shape[axis])))
    return _overwritten(b, x, source, lambda point: (eq(number_of(point[axis]), chosen), without(point, axis)))


@lowers("aten.select_backward.default")
def select_backward(b: Builder, grad: Tensor, sizes: Any, dim: int, index: Any) -> Tensor:
    axis = axis_of(dim, len(sizes))
    chosen = number_of(ix.constant(from_front(index, size_of(sizes[axis]))))
    return _overwritten(b, None, grad, lambda point: (eq(number_of(point[axis]), chosen), without(point, axis)))


@lowers("aten.diagonal_scatter.default")
def diagonal_scatter(b: Builder, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return _overwritten(b, x, source, lambda point: _on_diagonal(point, offset, dim1, dim2))


@lowers("aten.diagonal_backward.default")
def diagonal_backward(b: Builder, grad: Tensor, sizes: Any, offset: int, dim1: int, dim2: int) -> Tensor:
    return _overwritten(b, None, grad, lambda point: _on_diagonal(point, offset, dim1, dim2))


def _on_diagonal(point: Point, offset: int, dim1: int, dim2: int) -> tuple[Scalar, Point]:
    first, second = axis_of(dim1, len(point)), axis_of(dim2, len(point))
    rest = [index for axis, index in enumerate(point) if axis not in (first, second)]
    position = point[first] if offset >= 0 else point[second]
    return eq(number_of(point[second] - point[first]), offset), (*rest, position)


def _overwritten(
    b: Builder, x: Tensor | None, source: Tensor, position: Callable[[Point], tuple[Scalar, Point]]
) -> Tensor:
    """Returns ``x`` (zeros for None) with elements of ``source`` in some places.

    ``position`` gives for a point whether it is one of them, and the point of the source.
    """
    refuse_opaque(source.dtype, *([] if x is None else [x.dtype]))
    compute = dtype_of(b.fake.dtype).compute

    def body(point: Point) -> Scalar:
        inside, at = position(point)
        if len(at) != source.ndim:
            raise Unlowered("a source of another rank than the place it is written to")
        value = sc.cast(source.at(_broadcast(source, at)), compute)
        kept = sc.const(0, compute) if x is None else sc.cast(x.at(point), compute)
        return guarded(inside, value, kept)

    return made(b, body)


def _broadcast(source: Tensor, point: Point) -> Point:
    zero = ix.constant(0)
    return tuple(zero if size == 1 else index for size, index in zip(source.shape, point, strict=True))


@lowers("aten.pixel_shuffle.default")
def pixel_shuffle(b: Builder, x: Tensor, factor: int) -> Tensor:
    """Returns blocks of ``factor²`` channels spread over squares of pixels."""

    def to_old(point: Point) -> Point:
        *batch, channel, row, column = point
        inner = ix.mod(row, factor) * factor + ix.mod(column, factor)
        return (*batch, channel * (factor * factor) + inner, row // factor, column // factor)

    return moved(b, x, to_old)


@lowers("aten.pixel_unshuffle.default")
def pixel_unshuffle(b: Builder, x: Tensor, factor: int) -> Tensor:
    def to_old(point: Point) -> Point:
        *batch, channel, row, column = point
        inner = ix.mod(channel, factor * factor)
        return (*batch, channel // (factor * factor), row * factor + inner // factor, column * factor + inner % factor)

    return moved(b, x, to_old)


@lowers("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def channel_shuffle(b: Builder, x: Tensor, groups: int) -> Tensor:
    size = x.shape[1] // int(groups)
    return moved(
        b, x, lambda point: (point[0], ix.mod(point[1], int(groups)) * size + point[1] // int(groups), *point[2:])
    )
