"""Scans in one pass over halves, whose elements lie in registers as narrow as they come while a program waits.

A program scans its part of a line in pieces: all of them are loaded and added up, the program publishes its total and
waits for those before it, and then widens and scans one piece after the other. In a single tile the widened elements
would wait, in twice as many registers, so that fewer programs are under way at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ferrite_ir.dtypes import F32
from ferrite_ir.graph import Loop, bodies_of
from ferrite_ir.scalar import postorder
from ferrite_scheduler.marks import LookBackScan

from .evaluate import Evaluator
from .facts import RANDOM
from .flat import FlatKernel
from .folds import R
from .halves import HalvesText, waits_in_halves
from .positions import position_lines
from .scans import ScanText, look_back_scans
from .space import NO_AXES
from .writer import Tile, Writer

PIECES = 4
"""Pieces of a part: a quarter of it is wide at a time."""
NARROW_REGISTERS = 72
"""Registers of a thread: a multiprocessor holds seven programs of four warps, without spills."""
SHORTEST = 64
"""Fewest elements of a piece."""


def pieces_of(flat: FlatKernel) -> int:
    """Returns in how many pieces the programs of a kernel scan their parts of lines; 1 for all others."""
    scans = look_back_scans(flat)
    fold = flat.space.fold
    if not scans or fold is None or (fold.block or 0) < PIECES * SHORTEST:
        return 1
    others = [definition for definition in flat.definitions if not isinstance(definition, (LookBackScan, Loop))]
    nodes = postorder(body for definition in flat.definitions for body in bodies_of(definition))
    is_narrow = waits_in_halves(flat, scans) and scans[0].operand.dtype.compute is F32
    return PIECES if is_narrow and not others and not any(node.op in RANDOM for node in nodes) else 1


@dataclass(frozen=True, slots=True)
class PieceText:
    """Writes the one scan of such a kernel, and what is stored of it, piece by piece."""

    flat: FlatKernel
    writer: Writer
    evaluator: Evaluator
    scans: ScanText

    def write(self, store: Callable[[LookBackScan, Tile], None]) -> None:
        """Writes all lines.

        Args:
            store: writes, for the piece that positions are those of, what is stored of a scan and of what reads it.
        """
        (scan,) = look_back_scans(self.flat)
        pieces = range(self.flat.space.pieces)
        halves = HalvesText(self.writer, self.scans.status(scan))
        loads: list[dict[Hashable, Tile]] = []
        sums: Tile | None = None
        for piece in pieces:
            self._begin(piece)
            values = self.scans.values(scan)
            sums = values if sums is None else self._added("sum", sums, values)
            loads.append(halves.loaded())
        assert sums is not None, "a part has pieces"
        place = self.scans.publish(scan, self.scans.total(sums))
        zero = halves.zero()
        before = self.writer.hold("before", f"fmath.sum_before({place})", NO_AXES, F32)
        for piece in pieces:
            self._begin(piece)
            halves.keep(loads[piece], zero)
            values = self.scans.values(scan)
            store(scan, self.scans.continued(scan, values, before))
            if piece + 1 < self.flat.space.pieces:
                before = self._added("before", before, self.scans.total(values))

    def _added(self, prefix: str, first: Tile, second: Tile) -> Tile:
        return self.writer.hold(prefix, f"{first.text} + {second.text}", first.axes, F32)

    def _begin(self, piece: int) -> None:
        """Writes the positions of a piece; nothing is known there that varies along the fold axis."""
        fold = self.flat.space.fold
        assert fold is not None, "a scan has a fold axis"
        self.writer.forget(R)
        begin = f"first + {piece} * RBLOCK" if piece else "first"
        for line in position_lines(self.flat.space, fold, f"{begin} + tl.arange(0, RBLOCK)"):
            self.writer.line(line, R)
