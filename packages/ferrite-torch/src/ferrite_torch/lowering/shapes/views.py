"""View ops: maps from a point of the new tensor to a point of the old one. Nothing is computed and nothing is copied.

The shape of a view is that of the fake result, so sizes of -1, defaults and clamped bounds are torch's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.graph import TensorType, row_major
from ferrite_ir.language.index import Index
from ferrite_ir.language.sizes import Size, hint, is_provably_at_most, maximum, minimum, quotient
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import broadcast_point, refuse_opaque
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.casts import copy_of
from ferrite_torch.lowering.tensors import Point, Shape, Tensor, is_dense, same_layout
from ferrite_torch.sizes.symbolic_sizes import size_of, sizes_of, steps_of


def axis_of(dim: Any, ndim: int) -> int:
    """Returns a dim counted from the front; 0-d tensors have one dim for this purpose."""
    return int(dim) % max(ndim, 1)


def replaced(point: Point, axis: int, index: Index) -> Point:
    """Returns the point with another index at one axis."""
    return (*point[:axis], index, *point[axis + 1 :])


def inserted(point: Point, axis: int, index: Index) -> Point:
    """Returns the point with one more index, before what was at ``axis``."""
    return (*point[:axis], index, *point[axis:])


def without(point: Point, axis: int) -> Point:
    """Returns the point without the index at one axis."""
    return (*point[:axis], *point[axis + 1 :])


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns the elements in row-major order under another shape with as many elements."""
    new = tuple(shape)
    if new == x.shape:
        return x
    if x.numel == 0:
        nowhere = new.index(0)
        return x.viewed(new, lambda point: [ix.constant(0) if size else point[nowhere] for size in x.shape])
    groups = list(_matching_groups(x.shape, new))

    def to_old(point: Point) -> Point:
        old = [ix.constant(0)] * x.ndim
        for old_axes, new_axes in groups:
            flat = ix.linearize(tuple(point[a] for a in new_axes), row_major(tuple(new[a] for a in new_axes)))
            indices = ix.delinearize(flat, tuple(x.shape[a] for a in old_axes))
            for axis, index in zip(old_axes, indices, strict=True):
                old[axis] = index
        return tuple(old)

    return x.viewed(new, to_old)


def _matching_groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yields the smallest runs of axes (those of size 1 left out) of the two shapes that hold equally many elements.

    Where that cannot be seen of symbolic sizes, as in ``view(6, -1)``, what is left of both is one run.
    """
    left, right = ([axis for axis, size in enumerate(shape) if size != 1] for shape in (old, new))
    i = j = 0
    while i < len(left):
        start_i, start_j = i, j
        a, b = old[left[i]], new[right[j]]
        i, j = i + 1, j + 1
        while a != b:
            if i == len(left) and j == len(right):
                break
            if j == len(right) or (i < len(left) and _comes_first(a, b)):
                a, i = a * old[left[i]], i + 1
            else:
                b, j = b * new[right[j]], j + 1
        yield left[start_i:i], right[start_j:j]


def _comes_first(a: Size, b: Size) -> bool:
    """Returns whether the first of two products of extents is to be multiplied on, so that they come to be equal.

    Of symbolic ones that is the one that divides the other; where neither does, either will do.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return quotient(b, a) is not None or (quotient(a, b) is None and hint(a) <= hint(b))


def permuted(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Returns the tensor whose axis ``k`` is axis ``dims[k]`` of ``x``."""
    order = [axis_of(dim, x.ndim) for dim in dims]
    position = {axis: k for k, axis in enumerate(order)}
    return x.viewed([x.shape[axis] for axis in order], lambda point: [point[position[axis]] for axis in range(x.ndim)])


def expanded(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns the tensor broadcast to a shape."""
    return x.viewed(shape, lambda point: broadcast_point(x.shape, shape, point))


def sliced(x: Tensor, axis: int, start: int, length: int, step: int = 1) -> Tensor:
    """Returns ``length`` elements along an axis, from ``start`` on, ``step`` apart."""
    shape = [*x.shape[:axis], length, *x.shape[axis + 1 :]]
    return x.viewed(shape, lambda point: replaced(point, axis, point[axis] * step + start))


def from_front(index: Any, size: Size) -> Size:
    """Returns a position in an axis, counted from the front; torch has seen to it that it lies inside."""
    return _counted_from_front(size_of(index), size)


def _counted_from_front(position: Size, size: Size) -> Size:
    """Returns ``place + size`` where a position is negative, else the position, also where data decide which."""
    if is_provably_at_most(0, position):
        return position
    if is_provably_at_most(position, -1):
        return position + size
    return position + size * minimum(maximum(-position, 0), 1)


def selected(x: Tensor, axis: int, index: Index | int) -> Tensor:
    """Returns the tensor at one index of an axis, without that axis."""
    fixed = index if isinstance(index, Index) else ix.constant(index)
    return x.viewed([*x.shape[:axis], *x.shape[axis + 1 :]], lambda point: inserted(point, axis, fixed))


_TO_THE_END = 1 << 62


def slice_start(start: Any, size: Size) -> Size:
    """Returns where a slice begins, counted from the front and held inside the axis."""
    first = 0 if start is None else size_of(start)
    if isinstance(first, int) and first >= _TO_THE_END:
        return size
    return minimum(maximum(_counted_from_front(first, size), 0), size)


def _fake_shape(b: Builder) -> Shape:
    return sizes_of(b.fake.shape)


def same(b: Builder, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def view(b: Builder, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return reshaped(x, _fake_shape(b))


def expand(b: Builder, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return expanded(x, _fake_shape(b))


def permute(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    return permuted(x, dims)


def transpose(b: Builder, x: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(x.ndim))
    if order:
        first, second = axis_of(dim0, x.ndim), axis_of(dim1, x.ndim)
        order[first], order[second] = order[second], order[first]
    return permuted(x, order)


def t(b: Builder, x: Tensor) -> Tensor:
    return permuted(x, tuple(reversed(range(x.ndim))))


def movedim(b: Builder, x: Tensor, source: Any, destination: Any) -> Tensor:
    sources, targets = (
        [axis_of(dim, x.ndim) for dim in ([dims] if isinstance(dims, int) else dims)] for dims in (source, destination)
    )
    rest = iter([axis for axis in range(x.ndim) if axis not in sources])
    moved = dict(zip(targets, sources, strict=True))
    return permuted(x, [moved[axis] if axis in moved else next(rest) for axis in range(x.ndim)])


def slice_(b: Builder, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    axis = axis_of(dim, x.ndim)
    return sliced(x, axis, slice_start(start, x.shape[axis]), _fake_shape(b)[axis], int(step))


def narrow(b: Builder, x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    if isinstance(start, Tensor):
        raise Unlowered("a start that is only known at run time")
    axis = axis_of(dim, x.ndim)
    return sliced(x, axis, slice_start(start, x.shape[axis]), size_of(length))


def select(b: Builder, x: Tensor, dim: int, index: Any) -> Tensor:
    axis = axis_of(dim, x.ndim)
    return selected(x, axis, from_front(index, x.shape[axis]))


def split(b: Builder, x: Tensor, sizes: Any, dim: int = 0) -> list[Tensor]:
    axis = axis_of(dim, x.ndim)
    pieces: list[Tensor] = []
    start: Size = 0
    for fake in b.fake:
        length = size_of(fake.shape[axis])
        pieces.append(sliced(x, axis, start, length))
        start = start + length
    return pieces


def unbind(b: Builder, x: Tensor, dim: int = 0) -> list[Tensor]:
    axis = axis_of(dim, x.ndim)
    return [selected(x, axis, index) for index in range(x.shape[axis])]


def diagonal(b: Builder, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Returns the diagonal as the last axis, behind the axes that are left."""
    first, second = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)

    def to_old(point: Point) -> Point:
        rest = iter(point[:-1])
        at = {first: point[-1] + max(-offset, 0), second: point[-1] + max(offset, 0)}
        return tuple(at[axis] if axis in at else next(rest) for axis in range(x.ndim))

    return x.viewed(_fake_shape(b), to_old)


def unfold(b: Builder, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Returns windows along an axis: the axis counts windows, a new last axis the places in a window."""
    if x.ndim == 0:
        return x.viewed(_fake_shape(b), lambda point: ())
    axis = axis_of(dimension, x.ndim)
    return x.viewed(_fake_shape(b), lambda point: replaced(point[:-1], axis, point[axis] * int(step) + point[-1]))


def as_strided(b: Builder, x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: Any = None) -> Tensor:
    """Returns a view given by strides over the storage of ``x``, where the map back to points of the value exists.

    Raises:
        Unlowered: the value's layout has gaps, or ``x`` is itself no strided view of it, or another than in eager mode.
    """
    shape, strides = sizes_of(size), sizes_of(stride)
    own = x.strided()
    kind = x.value.type
    fake = b.node.args[0].meta["val"]
    eager = steps_of(fake)
    if own is not None and not same_layout(x.shape, own.strides, eager):
        if not x.is_whole:
            raise Unlowered("as_strided of a view that lies otherwise than in eager mode")
        kind = TensorType(kind.dtype, kind.shape, eager)
    if own is None or not is_dense(kind):
        raise Unlowered("as_strided of a tensor that is not packed in memory")
    # Torch counts the offset from the start of the storage, we from the first element of the value.
    origin = size_of(fake.storage_offset()) - own.offset
    start = own.offset if storage_offset is None else size_of(storage_offset) - origin
    # Of a length of 0 there is no element to reach, so that nothing need be known about lengths.
    reach = start + sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
    if start < 0 or not is_provably_at_most(reach + 1, max(kind.numel, 1)):
        raise Unlowered("as_strided beyond the elements of its operand")

    def to_value(point: Point) -> Sequence[Index]:
        return point_at(ix.linearize(point, strides) + start, kind)

    whole = Tensor(x.value, kind.shape, tuple(ix.Dim(f"d{k}", extent).index for k, extent in enumerate(kind.shape)))
    return whole.viewed(shape, to_value)


def point_at(position: Index, kind: TensorType) -> Point:
    """Returns the point of a packed layout that lies at a position, counted in elements."""
    order = sorted(
        (axis for axis, size in enumerate(kind.shape) if size != 1), key=lambda axis: -hint(kind.strides[axis])
    )
    indices = ix.delinearize(position, tuple(kind.shape[axis] for axis in order)) if order else ()
    found = dict(zip(order, indices, strict=True))
    return tuple(found.get(axis, ix.constant(0)) for axis in range(len(kind.shape)))


def rotated(b: Builder, x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Returns the tensor turned by ``k`` right angles in the plane of two dims, from the first towards the second."""
    first, second = (axis_of(dim, x.ndim) for dim in dims)
    last_first, last_second = x.shape[first] - 1, x.shape[second] - 1

    def to_old(point: Point) -> Point:
        here, there = point[first], point[second]
        turned = {
            0: (here, there),
            1: (there, -here + last_second),
            2: (-here + last_first, -there + last_second),
            3: (-there + last_first, here),
        }[int(k) % 4]
        return replaced(replaced(point, first, turned[0]), second, turned[1])

    return x.viewed(_fake_shape(b), to_old)


def real_view(b: Builder, x: Tensor) -> Tensor:
    refuse_opaque(x.dtype)
    return x


def conjugated(b: Builder, x: Tensor | complex) -> Tensor:
    """Returns the conjugate in memory of its own: a bit on a tensor would be lost where its storage is viewed.

    Raises:
        Unlowered: the operand is a number, as in the derivative of a product with one.
    """
    if not isinstance(x, Tensor):
        raise Unlowered(f"an operand of type {type(x).__name__}")
    if x.dtype.kind != "opaque":
        return x
    made: Tensor = b.extern("aten._conj_physical.default", (x,), fakes=b.fake)
    return made


def negated(b: Builder, x: Tensor) -> Tensor:
    """Returns the negative, computed: kernels read memory, and know no bit that says to negate it."""
    if x.dtype.kind != "opaque":
        return b.loop(x.shape, x.dtype, lambda point: sc.cast(sc.apply("neg", x.value_at(point)), x.dtype))
    made: Tensor = b.extern("aten.neg.default", (x,), fakes=b.fake)
    return made


def broadcast_in_dim(b: Builder, x: Tensor, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Tensor:
    zero = ix.constant(0)
    placed = list(zip(x.shape, broadcast_dimensions, strict=True))
    return x.viewed(sizes_of(shape), lambda point: [zero if size == 1 else point[dim] for size, dim in placed])


VIEWS: dict[str, Callable[..., Any]] = {
    "aten.alias.default": same,
    "aten.detach.default": same,
    "aten.lift_fresh.default": same,
    "aten.lift.default": same,
    "aten.real.default": real_view,
    "aten.view.default": view,
    "aten.reshape.default": view,
    "aten._unsafe_view.default": view,
    "aten._reshape_alias.default": view,
    "aten.view_as.default": view,
    "aten.flatten.using_ints": view,
    "aten.unflatten.int": view,
    "aten.squeeze.default": view,
    "aten.squeeze.dim": view,
    "aten.squeeze.dims": view,
    "aten.unsqueeze.default": view,
    "aten.expand.default": expand,
    "aten.expand_as.default": expand,
    "aten.broadcast_to.default": expand,
    "aten.permute.default": permute,
    "aten.transpose.int": transpose,
    "aten.swapaxes.default": transpose,
    "aten.t.default": t,
    "aten.movedim.int": movedim,
    "aten.movedim.intlist": movedim,
    "aten.slice.Tensor": slice_,
    "aten.narrow.default": narrow,
    "aten.select.int": select,
    "aten.split.Tensor": split,
    "aten.split.sizes": split,
    "aten.split_with_sizes.default": split,
    "aten.chunk.default": split,
    "aten.unbind.int": unbind,
    "aten.diagonal.default": diagonal,
    "aten.unfold.default": unfold,
    "aten.as_strided.default": as_strided,
    "prims.view_of.default": same,
    "prims.squeeze.default": view,
    "prims.split_dim.default": view,
    "prims.collapse_view.default": view,
    "prims.transpose.default": permute,
    "prims.broadcast_in_dim.default": broadcast_in_dim,
}
"""View ops by qualified name."""

COPIES: dict[str, Callable[..., Any]] = {
    "aten.view_copy.default": view,
    "aten.squeeze_copy.default": view,
    "aten.squeeze_copy.dim": view,
    "aten.squeeze_copy.dims": view,
    "aten.unsqueeze_copy.default": view,
    "aten.expand_copy.default": expand,
    "aten.permute_copy.default": permute,
    "aten.transpose_copy.int": transpose,
    "aten.t_copy.default": t,
    "aten.slice_copy.Tensor": slice_,
    "aten.narrow_copy.default": narrow,
    "aten.select_copy.int": select,
    "aten.split_copy.Tensor": split,
    "aten.split_with_sizes_copy.default": split,
    "aten.unsafe_split.Tensor": split,
    "aten.unsafe_split_with_sizes.default": split,
    "aten.unbind_copy.int": unbind,
    "aten.diagonal_copy.default": diagonal,
    "aten.unfold_copy.default": unfold,
    "aten.as_strided_copy.default": as_strided,
    "aten.rot90.default": rotated,
    "prims.reshape.default": view,
}
"""Ops that promise a copy of a view, by qualified name."""


def _copied(function: Callable[..., Any], b: Builder, *args: Any, **kwargs: Any) -> Tensor | list[Tensor]:
    seen = function(b, *args, **kwargs)
    fakes: Any = b.fake
    if isinstance(fakes, torch.Tensor):
        return copy_of(b, seen, fakes)
    return [copy_of(b, tensor, fake) for tensor, fake in zip(seen, fakes, strict=True)]


lowers("aten._conj.default")(conjugated)
lowers("aten._neg_view.default")(negated)
for _name, _function in VIEWS.items():
    lowers(_name)(_function)
for _name, _function in COPIES.items():
    lowers(_name)(partial(_copied, _function))
