"""Values: what definitions make, their types, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from . import sizes
from .dtypes import DType
from .sizes import Size


def row_major(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Returns the strides of a contiguous array of this shape, in elements (extent 0 counts as 1, as torch does)."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = sizes.mul(step, 1 if size == 0 else size)
    return tuple(reversed(strides))


def overlaps(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Returns whether two points of a strided array provably share a position; False where not all is known.

    Sorted by stride, a dim runs into the next one. Numbers that are no ``int`` are not known, and asked nothing: an
    answer of torch's own symbolic ones would be a guard, or an error.
    """
    steps = [(stride, size) for size, stride in zip(shape, strides, strict=True) if type(size) is not int or size != 1]
    if not all(type(stride) is int and type(size) is int for stride, size in steps) or any(
        size == 0 for _, size in steps
    ):
        return False
    reach = 0
    for stride, size in sorted(steps):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type, logical shape, strides in elements, and device if it differs from the graph's.

    ``strides=None`` at construction means row-major. ``device`` is ``""`` for the device of the graph, else a name
    such as ``"cpu"``.
    """

    dtype: DType
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] = None  # type: ignore[assignment]
    device: str = ""

    def __post_init__(self) -> None:
        if self.strides is None:
            object.__setattr__(self, "strides", row_major(self.shape))

    @property
    def numel(self) -> Size:
        """Returns the number of elements."""
        return sizes.product(self.shape)

    @property
    def storage_size(self) -> Size:
        """Returns the number of elements from the first to the last addressed one, both included.

        0 if there are none.
        """
        if any(size == 0 for size in self.shape):
            return 0
        extent: Size = 1
        for size, stride in zip(self.shape, self.strides, strict=True):
            extent = sizes.add(extent, sizes.mul(sizes.add(size, -1), stride))
        return extent


@dataclass(frozen=True, slots=True)
class Value:
    """A name and its type."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a definition came from: the torch op, the module path and the source line ("" where unknown).

    ``line`` names a file without its folder, as ``model.py:12``, so that what is written down with a program does not
    depend on where the program lay; ``path`` is the whole path of that file, for messages.
    """

    op: str = ""
    module: str = ""
    line: str = ""
    path: str = ""

    def __str__(self) -> str:
        return f"{self.op} ({self.line})" if self.line else self.op

    @property
    def location(self) -> str:
        """The source line as an editor opens it: ``/project/model.py:12``."""
        return f"{self.path}:{self.line.rpartition(':')[2]}" if self.path and self.line else self.line

    @property
    def description(self) -> str:
        """The op and its place, for messages."""
        return f"{self.op} ({self.location})" if self.line else self.op


Origins: TypeAlias = tuple[Origin, ...]
