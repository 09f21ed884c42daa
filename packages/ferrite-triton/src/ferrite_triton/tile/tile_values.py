"""Values of the tile evaluator: tiles of numbers, addresses and what is undefined, and how their elements are found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ferrite_ir.language.scalar import Number

from .language import TileType


class Undefined:
    """The element that a load without ``other`` gives where its mask does not hold; there is one, `UNDEFINED`."""

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED = Undefined()


class EvaluationError(ValueError):
    """A program that does what it may not: it uses an undefined element, or an address that is nowhere."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an element lies: in which parameter, and how many elements behind its first one."""

    parameter: str
    element: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Where a matrix lies: its first element, its extents, and the elements between neighbours along each axis."""

    first: Address
    extents: tuple[int, ...]
    steps: tuple[int, ...]

    def address(self, position: tuple[int, ...]) -> Address | None:
        """Returns where the element at a position lies; None of one outside of the extents."""
        if not all(0 <= index < extent for index, extent in zip(position, self.extents, strict=True)):
            return None
        behind = sum(index * step for index, step in zip(position, self.steps, strict=True))
        return Address(self.first.parameter, self.first.element + behind)


Element: TypeAlias = "Number | Address | Descriptor | Undefined"


@dataclass(frozen=True, slots=True)
class Tile:
    """A value: its type, its extents as numbers, and its elements in row-major order; of a descriptor the only one."""

    type: TileType
    shape: tuple[int, ...]
    elements: list[Element]


def number_in(element: Element, what: str) -> Number:
    """Returns an element that has to be a number; raises `EvaluationError` if it is undefined, or an address."""
    if isinstance(element, (Undefined, Address, Descriptor)):
        raise EvaluationError(f"{what} is {element}")
    return element


def positions(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Returns all positions of a shape, in row-major order."""
    return itertools.product(*(range(extent) for extent in shape))


def row_major(position: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Returns where the element at a position is in row-major order; along extents of 1 all positions are 0."""
    number = 0
    for index, extent in zip(position, shape, strict=True):
        number = number * extent + (index if extent != 1 else 0)
    return number


def spread(tile: Tile, shape: tuple[int, ...]) -> list[Element]:
    """Returns the elements of a tile repeated to a shape."""
    if tile.shape == shape:
        return tile.elements
    if len(tile.elements) == 1:
        return tile.elements * math.prod(shape)
    return [tile.elements[row_major(position, tile.shape)] for position in positions(shape)]


def line_of(tile: Tile, position: tuple[int, ...], axis: int) -> list[Element]:
    """Returns the elements of a tile along an axis, through a position whose entry for it does not matter."""
    indices = ((*position[:axis], index, *position[axis + 1 :]) for index in range(tile.shape[axis]))
    return [tile.elements[row_major(index, tile.shape)] for index in indices]
