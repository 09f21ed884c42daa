"""Sorts along the fold axis: a tile of whole rows goes through a network, its elements with their positions."""

from __future__ import annotations

from dataclasses import dataclass

from ferrite_ir.dtypes import BOOL, I32, I64
from ferrite_ir.graph import Sort
from ferrite_ir.sizes import is_static

from .casts import cast_text
from .errors import UnsupportedDefinition
from .evaluate import Evaluator
from .folds import FoldText, R
from .literals import full_text
from .space import NO_AXES, Space
from .writer import Tile, Writer

LONGEST_ROW = 4096
"""Longest row that is sorted in one tile: its network takes 78 steps, and seconds to compile."""


@dataclass(frozen=True, slots=True)
class SortText:
    """Writes the sorts of one kernel."""

    space: Space
    writer: Writer
    evaluator: Evaluator
    folds: FoldText

    def write(self, definition: Sort) -> tuple[Tile, Tile]:
        """Writes a sort of a tile of whole rows; returns the tiles of the values and of their positions.

        Raises:
            UnsupportedDefinition: the rows do not fit in a tile, or are of a type that has no sort.
        """
        tile = self.evaluator.tile(definition.body)
        if not self.space.folds_tile:
            return tile, Tile(full_text(0, I64), NO_AXES, I64)
        name, fold = definition.results[0].name, self.space.fold
        if fold is None or self.space.loops:
            raise UnsupportedDefinition(
                f"{name}: rows of more than {LONGEST_ROW} elements are not sorted in one tile; "
                "lower this sort to a library call"
            )
        if tile.dtype.bits == 8 and tile.dtype.is_float:
            raise UnsupportedDefinition(f"{name}: {tile.dtype} is not sorted; sort it in a wider type")
        axes = R | tile.axes
        row = self.folds.full(tile, axes).text
        values, places = self.writer.fresh("sorted"), self.writer.fresh("at")
        arguments = f"{row}, {fold.size}, {self.space.fold_position}, {definition.descending}"
        self.writer.line(f"{values}, {places} = fmath.sort_stable({arguments})", axes)
        return Tile(values, axes, tile.dtype), self.writer.hold("at", cast_text(places, I32, I64), axes, I64)

    def kept(self, definition: Sort) -> list[Tile]:
        """Returns the condition under which an element of a sorted row is stored: none if all are.

        Raises:
            UnsupportedDefinition: how many are kept is a symbolic size.
        """
        fold = self.space.fold
        if definition.top is None or fold is None or not self.space.folds_tile:
            return []
        top = definition.top
        if not is_static(top):
            name = definition.results[0].name
            raise UnsupportedDefinition(f"{name}: a sort that keeps {top} values; make that number a constant")
        return [] if top >= fold.size else [self.writer.hold("kept", f"r < {top}", R, BOOL)]
