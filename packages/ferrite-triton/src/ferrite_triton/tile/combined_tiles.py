"""Reductions and scans of the tile evaluator: states along an axis, combined one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.scalar import Number
from ferrite_ir.reference.rounding import round_to

from .language import Reduce, Scan
from .tile_values import UNDEFINED, Element, Tile, Undefined, line_of, number_in, positions

_State: TypeAlias = "tuple[Element, ...]"
Merge: TypeAlias = "Callable[[tuple[Number, ...], tuple[Number, ...]], tuple[Number, ...]]"
"""What two states are combined by."""


def _combine(merging: Merge, dtypes: tuple[DType, ...], states: Iterator[tuple[Element, ...]]) -> Iterator[_State]:
    """Yields what the states up to each one combine to; something undefined makes all that follows so."""
    state: _State = next(states)
    yield state
    for each in states:
        if any(isinstance(element, Undefined) for element in (*state, *each)):
            state = (UNDEFINED,) * len(state)
        else:
            first, second = (tuple(number_in(element, "a state") for element in side) for side in (state, each))
            merged = merging(first, second)
            state = tuple(round_to(number, dtype) for number, dtype in zip(merged, dtypes, strict=True))
        yield state


def _states(part: Reduce | Scan, operands: list[Tile], through: tuple[int, ...], merging: Merge) -> Iterator[_State]:
    """Yields the combined states along the axis of a reduction or scan, through a position, in the scan's order."""
    lines = list(zip(*(line_of(tile, through, part.axis) for tile in operands), strict=True))
    if isinstance(part, Scan) and part.reverse:
        lines.reverse()
    return _combine(merging, tuple(tile.type.dtype for tile in operands), iter(lines))


def reduce_tiles(part: Reduce, operands: list[Tile], shape: tuple[int, ...], merging: Merge) -> list[list[Element]]:
    """Returns the elements of each component of the states that lines along an axis are reduced to."""
    found: list[_State] = []
    for position in positions(shape):
        through = position if part.keep else (*position[: part.axis], 0, *position[part.axis :])
        *_, last = _states(part, operands, through, merging)
        found.append(last)
    return [list(elements) for elements in zip(*found, strict=True)]


def scan_tiles(part: Scan, operands: list[Tile], shape: tuple[int, ...], merging: Merge) -> list[list[Element]]:
    """Returns the elements of each component of the states up to each element along an axis."""
    lines: dict[tuple[int, ...], list[_State]] = {}
    found: list[_State] = []
    for position in positions(shape):
        key = (*position[: part.axis], 0, *position[part.axis + 1 :])
        if key not in lines:
            lines[key] = list(_states(part, operands, key, merging))[:: -1 if part.reverse else 1]
        found.append(lines[key][position[part.axis]])
    return [list(elements) for elements in zip(*found, strict=True)]
