"""Scans by users' combines: of one tile, or of block after block.

Such a combine has no neutral element and may mind the order of its operands. What a block combines to is therefore the
end of its scan, no reduction of it; the first block has nothing before it; and lanes past the end of a line, which a
scan from the end begins with, are marked as no states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrite_ir.language.combine_functions import CombineFunction
from ferrite_ir.language.dtypes import I32
from ferrite_ir.language.graph import Scan
from ferrite_triton.analysis.space import Axes, Space
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.bodies.combine_functions import joined, tile_function
from ferrite_triton.bodies.reductions import R, Reductions
from ferrite_triton.tile.build import apply, where
from ferrite_triton.tile.language import Expression, Literal
from ferrite_triton.tile.language import Scan as TileScan


@dataclass(frozen=True, slots=True)
class FunctionScans:
    """Writes the scans of one kernel whose combines are users'; ``end`` is the last of what a tile is scanned to."""

    space: Space
    builder: Builder
    reductions: Reductions
    end: Callable[[Scan, Tile], Expression]

    def write(self, scan: Scan, function: CombineFunction, tiles: tuple[Tile, ...], axes: Axes) -> tuple[Tile, ...]:
        """Writes the scan of tiles of full extent, in the types they are held in; returns a tile for each result."""
        found = self._scanned(scan, function, tiles, axes)
        return self._continued(scan, function, found, axes) if self.space.loops else found

    def _scanned(self, scan: Scan, function: CombineFunction, tiles: tuple[Tile, ...], axes: Axes) -> tuple[Tile, ...]:
        name = self.builder.fresh("combine")
        axis, is_marked = self.space.reduction_position, scan.reverse and self.reductions.is_masked
        if is_marked:
            present = self.reductions.full(Tile(Literal(1, I32), R - R, I32), axes, 0)
            tiles = (present, *(self.reductions.full(tile, axes, 0) for tile in tiles))
        self.builder.functions.append(tile_function(name, function, is_marked=is_marked))
        scanned = TileScan(tuple(tile.expression for tile in tiles), name, axis, scan.reverse)
        found = self.builder.hold_all(["scan"] * len(tiles), scanned, axes)
        return found[1:] if is_marked else found

    def _continued(
        self, scan: Scan, function: CombineFunction, block: tuple[Tile, ...], axes: Axes
    ) -> tuple[Tile, ...]:
        """Returns a block that was scanned by itself, continued from the end of the one before it."""
        follows = self.reductions.carry(axes - R, 0, I32)
        carries = [self.reductions.carry(axes - R, 0, tile.dtype) for tile in block]
        before, own = ([tile.expression for tile in tiles] for tiles in (carries, block))
        both = joined(function, before, own, lambda prefix, value: self.builder.hold(prefix, value, axes).expression)
        is_later = apply("ne", follows.expression, Literal(0, I32))
        results = tuple(
            self.builder.hold("scan", where(is_later, together, alone), axes)
            for together, alone in zip(both, own, strict=True)
        )
        self.reductions.follow(follows, apply("bitor", follows.expression, Literal(1, I32)))
        for carry, result in zip(carries, results, strict=True):
            self.reductions.follow(carry, self.end(scan, result))
        return results
