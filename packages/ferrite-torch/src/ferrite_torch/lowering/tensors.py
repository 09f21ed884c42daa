"""Tensors as lowerings see them: a logical shape over a value of the graph, viewed lazily.

A view op never becomes a definition. It composes index expressions, and they end up in the loads of whoever reads the
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.graph import TensorType, Value, View, row_major
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.index_substitution import substitute
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, hint

Shape = tuple[Size, ...]
Point = tuple[Index, ...]


@lru_cache(maxsize=8192)
def grid_dims(shape: Shape) -> tuple[Dim, ...]:
    """Returns the canonical dims ``d0, d1, …`` of a shape."""
    return tuple(Dim(f"d{axis}", size) for axis, size in enumerate(shape))


@lru_cache(maxsize=4096)
def reduction_dims(shape: Shape) -> tuple[Dim, ...]:
    """Returns the canonical dims ``r0, r1, …`` of a reduced shape."""
    return tuple(Dim(f"r{axis}", size) for axis, size in enumerate(shape))


@lru_cache(maxsize=8192)
def grid_point(shape: Shape) -> Point:
    """Returns the general point of a shape: its canonical dims as indices."""
    return tuple(dim.index for dim in grid_dims(shape))


def flat_position(point: Point, shape: Sequence[Size]) -> Index:
    """Returns the position of a point among all elements in logical order."""
    return ix.linearize(point, row_major(tuple(shape)))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A lazily viewed value.

    Attributes:
        value: the value of the graph that the elements lie in.
        shape: the logical shape.
        indices: element ``(d0, …)`` of the tensor is element ``indices`` of the value, over the canonical dims of
            ``shape``.
    """

    value: Value
    shape: Shape
    indices: tuple[Index, ...]

    @property
    def dtype(self) -> DType:
        """Returns the element type."""
        return self.value.type.dtype

    @property
    def ndim(self) -> int:
        """Returns the number of dims."""
        return len(self.shape)

    @property
    def numel(self) -> Size:
        """Returns the number of elements."""
        total: Size = 1
        for size in self.shape:
            total = total * size
        return total

    @property
    def device(self) -> str:
        """Returns ``""`` for the device of the graph, else the device type, such as ``"cpu"``."""
        return self.value.type.device

    @property
    def is_whole(self) -> bool:
        """Returns whether this is the value itself, not a view of it."""
        return self.shape == self.value.type.shape and self.indices == self.value_point

    @property
    def value_point(self) -> Point:
        """Returns the general point of the value if the tensor has its shape, else ``()``, which no view equals."""
        return grid_point(self.shape) if self.shape == self.value.type.shape else ()

    def at(self, point: Sequence[Index]) -> Scalar:
        """Returns the element at a point, in its own type; one of a half type may have excess precision."""
        point = tuple(point)
        if len(point) != len(self.shape):
            raise ValueError(f"a point of {len(point)} indices into a tensor of shape {self.shape}")
        return sc.load(self.value.name, self._map(point), self.dtype)

    def stored_at(self, point: Sequence[Index]) -> Scalar:
        """Returns the element at a point as it lies, or would lie, in memory: without excess precision."""
        element = self.at(point)
        return sc.rounded(element, self.dtype) if self.dtype.is_half else element

    def value_at(self, point: Sequence[Index]) -> Scalar:
        """Returns the element at a point in the type it is computed with: f32 for narrower floats."""
        return sc.cast(self.at(point), self.dtype.compute)

    def viewed(self, shape: Sequence[int], to_old: Callable[[Point], Sequence[Index]]) -> Tensor:
        """Returns a view: ``to_old`` maps the general point of the new shape to a point of this tensor."""
        shape = tuple(shape)
        return Tensor(self.value, shape, self._map(tuple(to_old(grid_point(shape)))))

    def _map(self, point: Point) -> tuple[Index, ...]:
        own = grid_dims(self.shape)
        if all(dim.index is index for dim, index in zip(own, point, strict=True)):
            return self.indices
        mapping = dict(zip(own, point, strict=True))
        return tuple(substitute(index, mapping) for index in self.indices)

    def strided(self) -> View | None:
        """Returns the tensor as a strided view of the value's storage, or None if its map is not one.

        The map must be affine with non-negative strides. A dim of size 1 that the map does not mention gets the stride
        that a tensor packed over the dims behind it would have.
        """
        kind = self.value.type
        if self.is_whole:
            return View(self.value.name, kind.dtype, self.shape, kind.strides, 0)
        if self.numel == 0:
            return None
        offset = ix.linearize(self.indices, kind.strides)
        strides = _affine_strides(offset, self.shape)
        if strides is None:
            return None
        return View(self.value.name, kind.dtype, self.shape, strides, offset.const)


def _affine_strides(offset: Index, shape: Shape) -> tuple[Size, ...] | None:
    own = dict(zip(grid_dims(shape), range(len(shape)), strict=True))
    strides: list[Size | None] = [None if size == 1 else 0 for size in shape]
    for atom, coefficient in offset.terms:
        axis = own.get(atom) if isinstance(atom, Dim) else None
        if axis is None or coefficient < 0:
            return None
        strides[axis] = coefficient
    packed: Size = 1
    for axis in reversed(range(len(shape))):
        stride = strides[axis]
        if stride is None:
            stride = strides[axis] = packed
        packed = max(packed, stride * shape[axis], key=hint)
    return tuple(strides)


def whole_tensor(value: Value) -> Tensor:
    """Returns a value as a tensor."""
    return Tensor(value, value.type.shape, grid_point(value.type.shape))


def is_dense(kind: TensorType) -> bool:
    """Returns whether the layout is a permutation of a packed array: no gaps, no overlaps."""
    return _is_dense(kind.shape, kind.strides)


@lru_cache(maxsize=4096)
def _is_dense(shape: Shape, strides: tuple[Size, ...]) -> bool:
    if 0 in shape:
        return True
    expected: Size = 1
    pairs = ((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1)
    for stride, size in sorted(pairs, key=lambda pair: (hint(pair[0]), hint(pair[1]))):
        if stride != expected:
            return False
        expected = expected * size
    return True


def same_layout(shape: Shape, left: Sequence[Size], right: Sequence[Size]) -> bool:
    """Returns whether two strides address the same elements for this shape."""
    return (
        left == right or 0 in shape or all(a == b for size, a, b in zip(shape, left, right, strict=True) if size != 1)
    )
