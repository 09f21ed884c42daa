"""Scans along the fold axis: a prefix of one tile, or of block after block with what came before carried along."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ferrite_ir.dtypes import BOOL, F32, I32, DType
from ferrite_ir.graph import Loop, Scan, bodies_of
from ferrite_ir.ops import RANDOM
from ferrite_ir.scalar import Scalar, postorder
from ferrite_ir.sizes import is_provably_at_most
from ferrite_scheduler.look_back import HALF_BYTES, sums_halves
from ferrite_scheduler.marks import LookBackScan

from .asking import ask_for_part
from .casts import cast_text
from .combines import SIMPLE, Simple, simple_row
from .evaluate import Evaluator
from .flat import FlatKernel, memory_loads
from .folds import FoldText, R
from .literals import highest_text, lowest_text, type_text
from .rows import varies_along_fold
from .space import Axes, Space
from .writer import Tile, Writer


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a tile: along which axis, of which extent, in a tile of which rank; and how its sum keeps the axis."""

    axis: int
    extent: str
    rank: int
    keep: str


@dataclass(frozen=True, slots=True)
class ScanText:
    """Writes the scans of one kernel."""

    flat: FlatKernel
    writer: Writer
    evaluator: Evaluator
    folds: FoldText
    wide: bool

    @property
    def space(self) -> Space:
        """Returns the axes."""
        return self.flat.space

    def write(self, definition: Scan) -> tuple[Tile, ...]:
        """Writes a scan here: inside the open loop with a carry, or of one tile. Returns one tile per result."""
        if isinstance(definition, LookBackScan):
            return (self._shared(definition),)
        tiles = tuple(self.evaluator.tile(body) for body in definition.bodies)
        if not self.space.folds_tile:
            return tiles
        # A tile of extent 1 along the other axes lies in many threads at once, which Triton's scans count twice.
        axes = R.union(self.space.order)
        wide = tuple(self.folds.full(self._widen(tile), axes) for tile in tiles)
        if definition.combine in PAIRED_SCANS:
            results = self._paired(definition.combine, wide, axes)
        else:
            results = (self._simple(definition.combine, wide[0], axes),)
        return tuple(
            result
            if result.dtype is body.dtype
            else self._hold("cast", cast_text(result.text, result.dtype, body.dtype), result)
            for result, body in zip(results, definition.bodies, strict=True)
        )

    def _hold(self, prefix: str, expression: str, like: Tile) -> Tile:
        return self.writer.hold(prefix, expression, like.axes, like.dtype)

    def _widen(self, tile: Tile) -> Tile:
        if tile.literal is not None or not (tile.dtype.is_narrow_float or tile.dtype is BOOL):
            return tile
        wide = I32 if tile.dtype is BOOL else F32
        return self.writer.hold("cast", cast_text(tile.text, tile.dtype, wide), tile.axes, wide)

    def _simple(self, combine: str, tile: Tile, axes: Axes) -> Tile:
        row, dtype = simple_row(combine, tile.dtype), tile.dtype
        values = self.folds.full(tile, axes)
        if self.space.serial:
            return self._serial(row, values, axes)
        block = self.writer.hold("scan", row.scan.format(v=values.text, axis=self.space.fold_position), axes, dtype)
        if not self.space.loops:
            return block
        carry = self.folds.carry(axes - R, row.identity(dtype), dtype)
        result = self._hold("scan", row.step.format(a=carry.text, v=block.text), block)
        line = _Line(self.space.fold_position, "RBLOCK", len(self.space.order), self.folds.keep)
        total = self._total(row, values.text, block, line)
        self.folds.update(carry.text, row.step.format(a=carry.text, v=total))
        return result

    def _total(self, row: Simple, values: str, scanned: Tile, line: _Line) -> str:
        """Returns what the values along a line of a tile combine to.

        A reduction takes them in an order of its own. Where that may go out of range although no prefix does, as a
        product of factors whose exponents cancel, it is the last of what they are ``scanned`` to.
        """
        if not row.in_order:
            return row.reduce.format(v=values, axis=line.axis, keep=line.keep)
        subscript = ", ".join(":" if place == line.axis else "None" for place in range(line.rank))
        lane = f"tl.arange(0, {line.extent})" + (f"[{subscript}]" if line.rank > 1 else "")
        # What is added to the last one changes nothing of it, not even the sign of a zero.
        nothing = "-0.0" if scanned.dtype.is_float else "0"
        last = f"tl.where({lane} == {line.extent} - 1, {scanned.text}, {nothing})"
        return f"tl.sum({last}, {line.axis}{line.keep})"

    def _serial(self, row: Simple, values: Tile, axes: Axes) -> Tile:
        """Returns the scan of a tile whose threads hold neighbours: theirs first, then one of what each adds up to.

        What comes before a thread's share is looked up where its predecessor has it: taking a total away again would
        neither be exact nor hold for infinities.
        """
        serial, dtype = self.space.serial, values.dtype
        groups = f"RBLOCK // {serial}"
        wide = self.space.shape(axes)
        inner = wide.replace("RBLOCK", groups)
        held = self._hold("rows", f"tl.reshape({values.text}, [{serial}, {inner[1:]})", values).text
        own = self._hold("scan", row.scan.format(v=held, axis=0), values)
        rank, axis = len(self.space.order), self.space.fold_position
        total = self._hold("total", self._total(row, held, own, _Line(0, str(serial), rank + 1, "")), values).text
        ended = self._hold("ends", row.scan.format(v=total, axis=axis), values)
        scanned, ends = own.text, ended.text
        lane = f"tl.broadcast_to(tl.arange(0, {groups}){self.space.expand('r')}, {inner})"
        lanes = self.writer.hold("lane", lane, axes, I32).text
        earlier = f"tl.gather({ends}, tl.maximum({lanes} - 1, 0), {axis})"
        before = self._hold("before", f"tl.where({lanes} > 0, {earlier}, {row.identity(dtype)})", values).text
        carry = self.folds.carry(axes - R, row.identity(dtype), dtype).text
        joined = f"({row.step.format(a=carry, v=before)})[None, :, :]"
        result = self._hold("scan", f"tl.reshape({row.step.format(a=joined, v=scanned)}, {wide})", values)
        last = self._total(row, total, ended, _Line(axis, f"({groups})", rank, self.folds.keep))
        self.folds.update(carry, row.step.format(a=carry, v=last))
        return result

    def _shared(self, scan: LookBackScan) -> Tile:
        """Returns the scan of one part of a line, continued from the sum that the programs before it publish."""
        row, axes = SIMPLE["sum"], R.union(self.space.order)
        self._write_mark(scan, axes)
        values = self._summed(scan, axes)
        self._ask(scan)
        total = self._hold("total", row.reduce.format(v=values.text, axis=0, keep=""), values)
        told = self._told(scan, total)
        self.writer.line(f"fmath.publish_part({told})", axes)
        block = self._hold("scan", row.scan.format(v=values.text, axis=0), values)
        before = self._hold("before", f"fmath.sum_before({told})", values)
        result = self._hold("scan", row.step.format(a=before.text, v=block.text), block)
        return self._as(scan.operand.dtype, result)

    def pieces(self, scan: LookBackScan, halves: Sequence[Scalar], place: Callable[[int], None]) -> Iterator[Tile]:
        """Yields the scan of each piece of a part, where the piece lies when it is yielded; ``place`` writes that.

        What a part adds up to is published as soon as it is known. Until the sum before it is there, its elements wait
        as they came, two in a register, and no more than one piece is floats at a time: a thread holds 128 elements,
        and a multiprocessor four such programs of four warps.
        """
        row, axes = SIMPLE["sum"], R.union(self.space.order)
        self._write_mark(scan, axes)
        waiting: list[dict[Scalar, Tile]] = []
        pieces: list[Tile] = []
        for piece in range(self.space.pieces):
            place(piece)
            pieces.append(self._summed(scan, axes))
            waiting.append(self.evaluator.loaded(halves))
            self.writer.forget(R)
        self._ask(scan)
        totals = [Tile(self.writer.fresh("total"), axes, pieces[0].dtype) for _ in pieces]
        names, summed = (", ".join(tile.text for tile in tiles) for tiles in (totals, pieces))
        self.writer.line(f"{names} = fmath.sums_of_four({summed})", axes)
        whole = self._hold("total", " + ".join(total.text for total in totals), totals[0])
        told = self._told(scan, whole)
        self.writer.line(f"fmath.publish_part({told})", axes)
        before = self._hold("before", f"fmath.sum_before({told})", totals[0])
        for piece, (held, total) in enumerate(zip(waiting, totals, strict=True)):
            place(piece)
            self.evaluator.renew_elements(held)
            values = self._summed(scan, axes)
            block = self._hold("scan", row.scan.format(v=values.text, axis=0), values)
            result = self._hold("scan", row.step.format(a=before.text, v=block.text), block)
            yield self._as(scan.operand.dtype, result)
            self.writer.forget(R)
            if piece + 1 < self.space.pieces:
                before = self._hold("before", row.step.format(a=before.text, v=total.text), before)

    def _write_mark(self, scan: LookBackScan, axes: Axes) -> None:
        """Writes the mark of what programs tell each other in this launch; it comes while elements do."""
        self.writer.line(f"mark = fmath.mark_of_part({self._status(scan)}, line, part, {self.space.parts})", axes)

    def _ask(self, scan: LookBackScan) -> None:
        """Writes requests of what later programs will read, where a program's own elements are on their way already."""
        ask_for_part(self.flat, self.evaluator.addresses, scan.operand, scan.points, wide=self.wide)

    def _status(self, scan: LookBackScan) -> str:
        return self.folds.param_text(scan.status)

    def _told(self, scan: LookBackScan, total: Tile) -> str:
        """Returns what programs tell and ask each other with: a status, a part of a line, and what it comes to."""
        lines = math.prod(int(axis.size) for axis in self.space.grid)
        return f"{self._status(scan)}, line, {lines}, part, {self.space.parts}, {total.text}, mark"

    def _summed(self, scan: LookBackScan, axes: Axes) -> Tile:
        """Returns what is added up, zero past the end."""
        operand = self._widen(self.evaluator.tile(scan.operand))
        return self.folds.full(operand, axes, SIMPLE["sum"].identity(operand.dtype))

    def _as(self, wanted: DType, tile: Tile) -> Tile:
        if tile.dtype is wanted:
            return tile
        return self._hold("cast", cast_text(tile.text, tile.dtype, wanted), tile)

    def _paired(self, combine: str, tiles: tuple[Tile, ...], axes: Axes) -> tuple[Tile, ...]:
        """Returns the best values so far, each with the position of the last such value.

        Positions are negated on the way, because the combine lets the lowest win a tie.
        """
        function, worst = PAIRED_SCANS[combine]
        value, index = tiles
        values = self.folds.full(value, axes)
        backwards = self.writer.hold("at", f"-{index.text}", index.axes, index.dtype)
        positions = self.folds.full(backwards, axes)
        names = [self.writer.fresh("best"), self.writer.fresh("at")]
        axis = self.space.fold_position
        pair = f"({values.text}, {positions.text})"
        self.writer.line(f"{', '.join(names)} = tl.associative_scan({pair}, {axis}, {function})", axes)
        if self.space.loops:
            start = worst(value.dtype), highest_text(index.dtype)
            carry = [self.folds.carry(axes - R, fill, tile.dtype).text for fill, tile in zip(start, tiles, strict=True)]
            block, names = names, [self.writer.fresh("best"), self.writer.fresh("at")]
            self.writer.line(f"{', '.join(names)} = {function}({', '.join([*carry, *block])})", axes)
            last = [self.writer.fresh("last"), self.writer.fresh("last")]
            self.folds.update(", ".join(last), f"tl.reduce({pair}, {axis}, {function}{self.folds.keep})")
            self.folds.update(", ".join(carry), f"{function}({', '.join([*carry, *last])})")
        forwards = self.writer.hold("at", f"(-{names[1]}).to({type_text(index.dtype)})", axes, index.dtype)
        return Tile(names[0], axes, value.dtype), forwards


PAIRED_SCANS = {"cummax": ("fmath.argmax_nan", lowest_text), "cummin": ("fmath.argmin_nan", highest_text)}

SERIAL = 8
"""Neighbours along a column that a thread holds, where columns are scanned block by block."""


PIECES, PIECES_REGISTERS = 4, 128
"""Pieces of a part whose elements have two bytes, and registers of a thread that holds 128 of them."""


def waits_in_pieces(flat: FlatKernel) -> bool:
    """Returns whether programs that wait for each other hold elements of two bytes, of which they only make floats."""
    scans = look_back_scans(flat)
    if len(scans) != 1 or not all(isinstance(definition, (Loop, LookBackScan)) for definition in flat.definitions):
        return False
    nodes = postorder(body for definition in flat.definitions for body in bodies_of(definition))
    if any(node.op in RANDOM for node in nodes) or not sums_halves(scans[0].operand):
        return False
    return scans[0].points % PIECES == 0 and all(load.dtype.bytes <= HALF_BYTES for load in _elements(flat))


def waiting_halves(flat: FlatKernel) -> list[Scalar]:
    """Returns the loads of elements of two bytes that such programs hold."""
    return [load for load in _elements(flat) if load.dtype.bytes == HALF_BYTES]


def _elements(flat: FlatKernel) -> list[Scalar]:
    (scan,) = look_back_scans(flat)
    return [load for load in memory_loads(flat, (scan.operand,)) if varies_along_fold(load.indices)]


def look_back_scans(flat: FlatKernel) -> tuple[LookBackScan, ...]:
    """Returns the scans of a kernel whose programs wait for each other: one at most."""
    return tuple(definition for definition in flat.definitions if isinstance(definition, LookBackScan))


def scans_serially(flat: FlatKernel) -> bool:
    """Returns whether nothing in a kernel minds in which order its tiles hold the positions of the fold axis."""
    space = flat.space
    if not space.loops or space.order != ("r", "x") or space.fold is None:
        return False
    if not is_provably_at_most(SERIAL, space.fold.size):
        return False  # a block might be shorter
    scans = [definition for definition in flat.definitions if isinstance(definition, Scan)]
    others = [definition for definition in flat.definitions if not isinstance(definition, (Scan, Loop))]
    nodes = postorder(body for definition in flat.definitions for body in bodies_of(definition))
    return (
        bool(scans)
        and not others
        and all(scan.combine in SIMPLE for scan in scans)
        and not any(node.op in RANDOM for node in nodes)
    )
