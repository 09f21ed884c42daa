"""Tensors of the reference evaluator: Python numbers in a flat list, seen through a shape, strides and an offset."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.scalar import Number

from .rounding import round_to

Nested: TypeAlias = Any
"""Lists of lists of numbers, or a number for a tensor without dims."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A strided view of a storage; several tensors may share one storage.

    Attributes:
        dtype: element type.
        shape, strides: extents, and steps in elements.
        offset: position of the first element in the storage.
        storage: the elements; None where nothing was written yet.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: list[Number | None]

    def position(self, point: Sequence[int]) -> int:
        """Returns the position of an element in the storage."""
        return self.offset + sum(i * stride for i, stride in zip(point, self.strides, strict=True))

    def contains(self, point: Sequence[int]) -> bool:
        """Returns whether a point lies within the shape."""
        return len(point) == len(self.shape) and all(0 <= i < size for i, size in zip(point, self.shape, strict=True))

    def read(self, point: Sequence[int]) -> Number | None:
        """Returns an element, None where nothing was written yet."""
        return self.storage[self.position(point)]

    def write(self, point: Sequence[int], value: Number) -> None:
        """Stores an element."""
        self.storage[self.position(point)] = value

    def points(self) -> Iterator[tuple[int, ...]]:
        """Yields every point, the last dim fastest."""
        return itertools.product(*map(range, self.shape))

    def view(self, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
        """Returns another view of the storage; ``offset`` counts from this tensor's first element.

        Raises:
            ValueError: the type has another width (the elements are numbers, not bytes).
        """
        if dtype.bits != self.dtype.bits:
            raise ValueError(
                f"a view of {self.dtype} elements as {dtype} is not supported by the evaluator; their widths differ"
            )
        return Tensor(dtype, shape, strides, self.offset + offset, self.storage)

    def nested(self) -> Nested:
        """Returns the elements as nested lists (a number for no dims)."""
        return self._nested(())

    def _nested(self, point: tuple[int, ...]) -> Nested:
        if len(point) == len(self.shape):
            return self.read(point)
        return [self._nested((*point, i)) for i in range(self.shape[len(point)])]


def empty(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """Returns a tensor without contents, in a storage of its own."""
    extent = 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return Tensor(dtype, shape, strides, 0, [None] * extent)


def filled(values: Nested, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """Returns a tensor with these elements, rounded to the type.

    Raises:
        ValueError: the nested lists do not have this shape.
    """
    tensor = empty(dtype, shape, strides)
    for point in tensor.points():
        item = values
        for i in point:
            item = item[i]
        if isinstance(item, (list, tuple)):
            raise ValueError(f"nested lists are deeper than the shape {shape}")  # noqa: TRY004 - the value is wrong
        tensor.write(point, round_to(item, dtype))
    return tensor


def shape_of(values: Nested) -> tuple[int, ...]:
    """Returns the shape of nested lists.

    Raises:
        ValueError: the lists of one level have different lengths.
    """
    if not isinstance(values, (list, tuple)):
        return ()
    shapes = {shape_of(item) for item in values}
    if len(shapes) > 1:
        raise ValueError("nested lists of one level have different lengths")
    return (len(values), *(shapes.pop() if shapes else ()))
