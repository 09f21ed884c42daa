"""How a program has its line of the reduction axis in tiles: whole, in register tiles, a row to a thread, or in blocks.

One of a closed family of records, each with what means something for it alone; `Space.traversal` has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ferrite_ir.language.index import Index


@dataclass(frozen=True, slots=True)
class Misalignment:
    """How the rows of an operand lie between the vectors that a thread reads at a time; see `analysis.peeling`.

    Attributes:
        width: elements of a vector.
        elements: between the begin of a vector and that of the row, over flat positions.
    """

    width: int
    elements: Index


@dataclass(frozen=True, slots=True)
class InOneTile:
    """A tile holds what a program has of the line; also where there is no reduction axis."""


@dataclass(frozen=True, slots=True)
class InRegisterTiles:
    """Several tiles hold the block that a program has of the line, one after the other; see `Scans.register_tiles`.

    Attributes:
        count: of tiles.
    """

    count: int


@dataclass(frozen=True, slots=True)
class RowPerThread:
    """Each thread goes through a row of its own; see `analysis.row_per_thread`."""


@dataclass(frozen=True, slots=True)
class InBlocks:
    """The line is gone through in blocks, by a loop.

    Attributes:
        serial: neighbours along the reduction axis that lie ``RBLOCK // serial`` apart in a tile, so that one thread
            holds them all; 0 where a tile holds positions in order.
        misalignment: by how much blocks begin before rows, None where they begin with them.
    """

    serial: int = 0
    misalignment: Misalignment | None = None


Traversal: TypeAlias = InOneTile | InRegisterTiles | RowPerThread | InBlocks
