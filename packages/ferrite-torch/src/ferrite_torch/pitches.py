"""Row pitches: what a strided layout becomes when its rows are moved apart, and which element of a value a view shows.

A *row* is a run of elements of a dense layout, counted from its start, whose length is the stride of one of its dims
(or the whole). Moving rows of ``row`` elements to every ``pitch`` elements changes strides and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ferrite_ir import index as ix
from ferrite_ir.graph import TensorType, View
from ferrite_ir.index import Index


@dataclass(frozen=True, slots=True)
class Pitch:
    """Rows of ``row`` elements that start every ``pitch`` elements."""

    row: int
    pitch: int

    def scaled(self, distance: int) -> int:
        """Returns what a distance of whole rows becomes; a distance within a row stays."""
        return distance // self.row * self.pitch if distance % self.row == 0 else distance


def with_pitch(kind: TensorType, pitch: Pitch) -> TensorType | None:
    """Returns a dense type with its rows moved apart; None if its dims do not fall into rows of that length."""
    extents = sorted((stride, size) for stride, size in zip(kind.strides, kind.shape, strict=True) if size != 1)
    reached = 1
    boundaries = set()
    for stride, size in extents:
        if stride != reached:
            return None
        reached *= size
        boundaries.add(reached)
    if pitch.row not in boundaries:
        return None
    return replace(kind, strides=tuple(pitch.scaled(stride) for stride in kind.strides))


def view_with_pitch(view: View, pitch: Pitch) -> View | None:
    """Returns the view of the same elements once rows are moved apart; None if it runs across the ends of rows."""
    column = view.offset % pitch.row
    inside = column + sum(
        (size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True) if stride % pitch.row
    )
    if inside >= pitch.row:
        return None
    offset = view.offset // pitch.row * pitch.pitch + column
    return replace(view, strides=tuple(pitch.scaled(stride) for stride in view.strides), offset=offset)


def memory_order(view: View) -> tuple[int, ...]:
    """Returns the axes along which a view moves in memory, the one with the largest stride first."""
    axes = [axis for axis, size in enumerate(view.shape) if size > 1 and view.strides[axis]]
    return tuple(sorted(axes, key=lambda axis: (-view.strides[axis], axis)))


def shown_element(view: View, kind: TensorType, point: Sequence[Index]) -> tuple[Index, ...] | None:
    """Returns the indices into a value of type ``kind`` of the element that a view of it shows at a point.

    None where dims of the value overlap, so that an address does not tell its indices, and between elements.
    """
    moving = [axis for axis, size in enumerate(view.shape) if size > 1]
    address = sum((point[axis] * view.strides[axis] for axis in moving), ix.constant(view.offset))
    axes = [axis for axis, size in enumerate(kind.shape) if size > 1 and kind.strides[axis]]
    axes.sort(key=lambda axis: -kind.strides[axis])
    reach = sum((kind.shape[axis] - 1) * kind.strides[axis] for axis in axes)
    found = [ix.constant(0)] * len(kind.shape)
    for axis in axes:
        stride = kind.strides[axis]
        reach -= (kind.shape[axis] - 1) * stride
        if reach >= stride:
            return None
        found[axis] = ix.floordiv(address, stride)
        address = ix.mod(address, stride)
    return tuple(found) if address is ix.constant(0) else None
