"""Bitonic sorts along the reduction axis: a tile of whole rows goes through a network, elements with their positions.

The network and its source are in `ferrite_runtime.fmath.sorting`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferrite_ir.language.dtypes import I32, I64
from ferrite_ir.language.graph import Sort
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.index_substitution import substitute
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.sizes import is_static
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.space import NO_AXES, RANK, Axes, Space, flat_dim
from ferrite_triton.bodies.builder import AxisPosition, Builder, Tile
from ferrite_triton.bodies.reductions import R, Reductions
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.errors import UnsupportedDefinition
from ferrite_triton.tile.build import apply, literal
from ferrite_triton.tile.language import Call, Cast, Constant, Expression, Lanes, Literal, TileType


@dataclass(frozen=True, slots=True)
class Sorts:
    """Writes the sorts of one kernel."""

    space: Space
    builder: Builder
    evaluator: ScalarValues
    reductions: Reductions

    def write(self, definition: Sort) -> tuple[Tile, Tile]:
        """Writes a sort of a tile of whole rows; returns the tiles of the values and of their positions.

        Raises:
            UnsupportedDefinition: the rows do not fit in a tile, or are of a type that has no sort.
        """
        tile = self.evaluator.tile(definition.body)
        if not self.space.reduces_tile:
            return tile, Tile(literal(0, I64), NO_AXES, I64)
        name, reduction = definition.results[0].name, self.space.reduction
        if reduction is None or self.space.loops:
            raise UnsupportedDefinition(
                f"{name}: rows of more than {LOWERING.longest_row} elements are not sorted in one tile; "
                "lower this sort to an extern call"
            )
        if tile.dtype.bits == 8 and tile.dtype.is_float:
            raise UnsupportedDefinition(f"{name}: {tile.dtype} is not sorted; sort it in a wider type")
        axes = R | tile.axes
        row = self.reductions.full(tile, axes).expression
        position = self.space.reduction_position
        rest = (Constant(int(reduction.size)), Constant(position), Constant(definition.descending))
        shape = list(self.builder.type_of(row).shape)
        kept = self._kept(definition)
        function = "sort_stable"
        operands: tuple[Expression, ...] = (row, *rest)
        if kept is not None and kept[1] < next_power_of_two(reduction.size):
            function, operands = "sort_first", (row, Constant(kept[1]), *rest)
            axes = (axes - R) | RANK
            shape[position] = kept[1]
        kinds = TileType(tile.dtype, tuple(shape)), TileType(I32, tuple(shape))
        values, positions = self.builder.hold_all(("sorted", "at"), Call(function, operands, kinds), axes)
        return values, self.builder.hold("at", Cast(positions.expression, I64), axes)

    def _kept(self, definition: Sort) -> tuple[int, int] | None:
        """Returns how many elements of each row are kept, and the extent of the tile that holds them; None for all.

        Raises:
            UnsupportedDefinition: how many are kept is a symbolic size.
        """
        top, reduction = definition.top, self.space.reduction
        if top is None or reduction is None or not self.space.reduces_tile:
            return None
        if not is_static(top):
            name = definition.results[0].name
            raise UnsupportedDefinition(f"{name}: a sort that keeps {top} values; make that number a constant")
        return (int(top), next_power_of_two(int(top))) if top < reduction.size else None

    def ranked(self, definition: Sort, offset: Index) -> tuple[Index, list[Tile]]:
        """Returns the offset at which an element of a sorted row is stored, and the conditions for storing it."""
        kept, reduction = self._kept(definition), self.space.reduction
        if kept is None or reduction is None:
            return offset, []
        top, extent = kept
        if extent >= next_power_of_two(reduction.size):
            return offset, [self._within("r", top, R)]
        if self.builder.find("rank") is None:
            rank = self.builder.let("rank", self.space.expand("r", Lanes(extent)), RANK)
            self.builder.remember("rank", rank)
            self.builder.positions["rank"] = AxisPosition(rank.expression)
        conditions = [self._within("rank", top, RANK)] if top < extent else []
        return substitute(offset, {flat_dim(reduction): Dim("rank", extent).index}), conditions

    def _within(self, lane: str, top: int, axes: Axes) -> Tile:
        key = (lane, top)
        return self.builder.find(key) or self.builder.remember(
            key, self.builder.hold("kept", self._before(lane, top), axes)
        )

    def _before(self, lane: str, top: int) -> Expression:
        position = self.builder.position(lane)
        return apply("lt", position, Literal(top, self.builder.type_of(position).dtype))
