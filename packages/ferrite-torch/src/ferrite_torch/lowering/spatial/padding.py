"""Padding with a number, with what is nearest or with a reflection, and windows laid out as columns.

A gradient sums what was read from each element: an element looks at the positions that it was copied to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.graph import row_major
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.elementwise import Element, plain_number, refuse_opaque
from ferrite_torch.lowering.expressions import (
    absolute,
    add,
    both,
    choose,
    eq,
    ge,
    guarded,
    is_between,
    larger,
    le,
    number_of,
    smaller,
    sub,
)
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.creation import made
from ferrite_torch.lowering.shapes.rearrangement import moved
from ferrite_torch.lowering.spatial.pooling import Windows, per_axis
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of


@lowers("aten.constant_pad_nd.default")
def constant_pad(b: Builder, x: Tensor, pad: Sequence[int], value: Element = 0) -> Tensor:
    refuse_opaque(x.dtype)
    before = _before(x, pad)
    fill = b.constant(plain_number(value), x.dtype.compute)

    def body(point: Point) -> Scalar:
        old = [index - start for index, start in zip(point, before, strict=True)]
        inside = both(*(is_between(i, 0, size) for i, size in zip(old, x.shape, strict=True) if not _covers(i, size)))
        return guarded(inside, x.value_at(old), fill)

    return made(b, body)


def _covers(index: Index, size: int) -> bool:
    return sc.is_constant(is_between(index, 0, size), True)


def _before(x: Tensor, pad: Sequence[int]) -> list[int]:
    """Returns how many elements are put before each axis; ``pad`` starts with the last axis."""
    before = [0] * x.ndim
    for k, amount in enumerate(sizes_of(pad)[::2]):
        before[x.ndim - 1 - k] = amount
    return before


@lowers("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def reflection_pad(b: Builder, x: Tensor, padding: Sequence[int]) -> Tensor:
    def mirrored(index: Index, size: int) -> Scalar:
        last = size - 1
        return sub(last, absolute(sub(last, absolute(number_of(index)))))

    return _padded(b, x, padding, mirrored)


@lowers("aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def replication_pad(b: Builder, x: Tensor, padding: Sequence[int]) -> Tensor:
    return _padded(b, x, padding, lambda index, size: smaller(larger(number_of(index), 0), size - 1))


def _padded(b: Builder, x: Tensor, padding: Sequence[int], nearest: Callable[[Index, int], Scalar]) -> Tensor:
    before = _before(x, padding)

    def to_old(point: Point) -> list[Index]:
        shifted = [index - start for index, start in zip(point, before, strict=True)]
        return [
            index if _covers(index, size) else ix.indirect(nearest(index, size), size)
            for index, size in zip(shifted, x.shape, strict=True)
        ]

    return moved(b, x, to_old)


@lowers(
    "aten.reflection_pad1d_backward.default",
    "aten.reflection_pad2d_backward.default",
    "aten.reflection_pad3d_backward.default",
)
def reflection_pad_backward(b: Builder, grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """Returns the gradients of an element and of its reflections in both borders, added up."""
    refuse_opaque(x.dtype)
    rank = len(padding) // 2
    before = _before(x, padding)[-rank:]

    def copies(axis: int, index: Index) -> list[tuple[Index, Scalar]]:
        """Returns where an element along an axis was copied to, and whether it was."""
        size, outputs, start = x.shape[axis - rank], grad.shape[axis - rank], before[axis]
        found = [(index + start, is_between(index + start, 0, outputs))]
        if start > 0:
            found.append((-index + start, both(is_between(index, 1, None), is_between(-index + start, 0, outputs))))
        if outputs > size + start:
            mirrored = -index + (start + 2 * (size - 1))
            found.append((mirrored, both(is_between(index, None, size - 1), is_between(mirrored, 0, outputs))))
        return found

    def body(point: Point) -> Scalar:
        terms = []
        for copy in product(*(copies(axis, index) for axis, index in enumerate(point[-rank:]))):
            value = grad.value_at((*point[:-rank], *(at for at, _ in copy)))
            exists = both(*(test for _, test in copy))
            terms.append(guarded(exists, value, 0))
        return reduce(add, terms)

    return b.loop(x.shape, x.dtype, body)


@lowers(
    "aten.replication_pad1d_backward.default",
    "aten.replication_pad2d_backward.default",
    "aten.replication_pad3d_backward.default",
)
def replication_pad_backward(b: Builder, grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
    """Returns the gradients of all copies of an element, which lie side by side, added up."""
    refuse_opaque(x.dtype)
    rank = len(padding) // 2
    before = _before(x, padding)[-rank:]
    sizes, outputs = x.shape[-rank:], grad.shape[-rank:]
    after = [out - size - start for out, size, start in zip(outputs, sizes, before, strict=True)]

    def copies(axis: int, index: Index, step: Index) -> tuple[Index, Scalar]:
        """Returns the ``step``-th position that an element along an axis was copied to, and whether it is one."""
        start, position = before[axis], number_of(index)
        first = (
            choose(eq(position, 0), min(start, 0), number_of(index + start)) if start > 0 else number_of(index + start)
        )
        last = number_of(index + start)
        if after[axis] > 0:
            last = choose(eq(position, sizes[axis] - 1), outputs[axis] - 1, last)
        at = add(first, number_of(step))
        exists = both(ge(at, 0), le(at, smaller(last, outputs[axis] - 1)))
        return ix.indirect(at, outputs[axis]), exists

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        found = [copies(axis, index, reduced[axis]) for axis, index in enumerate(point[-rank:])]
        value = grad.value_at((*point[:-rank], *(at for at, _ in found)))
        return (guarded(both(*(exists for _, exists in found)), value, 0),)

    counts = [
        1 + (max(start, 0) + max(end, 0) if size == 1 else max(start, end, 0))
        for start, end, size in zip(before, after, sizes, strict=True)
    ]
    (total,) = b.reduce("sum", x.shape, counts, bodies)
    return b.loop(x.shape, x.dtype, total.at)


def _blocks(size: Any, dilation: Any, padding: Any, stride: Any, image: Sequence[int]) -> Windows:
    """Returns the windows that an image is cut into."""
    size, dilation, padding, stride = (per_axis(value, 2) for value in (size, dilation, padding, stride))
    counts = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(image, padding, dilation, size, stride, strict=True)
    )
    return Windows(size, stride, padding, dilation, tuple(image), counts)


@lowers("aten.im2col.default")
def im2col(b: Builder, x: Tensor, size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Returns each window as a column: the channels times the positions in a window, by the windows."""
    refuse_opaque(x.dtype)
    w = _blocks(size, dilation, padding, stride, x.shape[-2:])

    def body(point: Point) -> Scalar:
        channel, *step = ix.delinearize(point[-2], (x.shape[-3], *w.size))
        found = w.positions(ix.delinearize(point[-1], w.outputs), step)
        value = x.value_at((*point[:-2], channel, *found))
        inside = w.is_inside(found)
        return guarded(inside, value, 0)

    return made(b, body)


@lowers("aten.col2im.default")
def col2im(b: Builder, x: Tensor, output_size: Any, size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Returns the image in which each position holds the sum of what the windows have there."""
    refuse_opaque(x.dtype)
    shape = sizes_of(b.fake.shape)
    w = _blocks(size, dilation, padding, stride, sizes_of(output_size))

    steps = tuple(w.outputs[axis] if w.has_few(axis) else w.size[axis] for axis in range(w.rank))

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        windows, found, tests = zip(
            *(_met(w, axis, point[axis - 2], reduced[axis]) for axis in range(w.rank)), strict=True
        )
        row = ix.linearize((point[-3], *found), row_major((shape[-3], *w.size)))
        column = ix.linearize(windows, row_major(w.outputs))
        value = x.value_at((*point[:-3], row, column))
        return (guarded(both(*tests), value, 0),)

    (total,) = b.reduce("sum", shape, steps, bodies)
    return b.loop(shape, x.dtype, total.at)


def _met(w: Windows, axis: int, position: Index, step: Index) -> tuple[Index, Index, Scalar]:
    """Returns a window, the position in it where a position of the image is, and whether there is such a window.

    A step is a position in the window, or a window where there are fewer of these.
    """
    if w.has_few(axis):
        return step, w.away(axis, step, position) // w.dilation[axis], w.is_held(axis, step, position)
    away = position + w.padding[axis] - step * w.dilation[axis]
    window = away // w.stride[axis]
    exists = is_between(window, 0, w.outputs[axis])
    if w.stride[axis] > 1:
        exists = both(exists, eq(number_of(ix.mod(away, w.stride[axis])), 0))
    return window, step, exists
