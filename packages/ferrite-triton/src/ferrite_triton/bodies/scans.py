"""Scans along the reduction axis: a prefix of one tile, or of block after block with what came before carried along."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ferrite_ir.language.combine_functions import CombineFunction
from ferrite_ir.language.dtypes import BOOL, F32, I32, I64, DType
from ferrite_ir.language.graph import Loop, Scan, bodies_of
from ferrite_ir.language.ops import RANDOM
from ferrite_ir.language.scalar import Number, Scalar, postorder
from ferrite_ir.language.sizes import is_provably_at_most
from ferrite_scheduler.model.annotations import HALF_BYTES, LookBackScan, sums_16_bit
from ferrite_scheduler.model.scan_positions import positions_rise
from ferrite_scheduler.model.scan_states import IN_ORDER
from ferrite_triton.analysis.flat import FlatKernel, memory_loads
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.rows import varies_along_reduction
from ferrite_triton.analysis.space import Axes, Space
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.bodies.function_scans import FunctionScans
from ferrite_triton.bodies.prefetches import prefetch_block
from ferrite_triton.bodies.reductions import R, Reductions, step
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.tile.build import add, apply, literal, neutral_of, sub, where
from ferrite_triton.tile.language import (
    Block,
    BlockSize,
    Broadcast,
    Call,
    Cast,
    Constant,
    Expand,
    Expression,
    Extent,
    Gather,
    Lanes,
    Literal,
    Name,
    Reduce,
    Reshape,
    TileType,
)
from ferrite_triton.tile.language import Scan as TileScan


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a tile: along which axis, of which extent, in a tile of which rank; whether its sum keeps the axis."""

    axis: int
    extent: Extent
    rank: int
    keep: bool


@dataclass(frozen=True, slots=True)
class Scans:
    """Writes the scans of one kernel; ``wide`` says that addresses have 64 bits."""

    flat: FlatKernel
    builder: Builder
    evaluator: ScalarValues
    reductions: Reductions
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
        if not self.space.reduces_tile:
            return tiles
        # A tile of extent 1 along the other axes lies in many threads at once, which Triton's scans count twice.
        axes = R.union(self.space.order)
        wide = tuple(self.reductions.full(self._widen(tile), axes) for tile in tiles)
        if isinstance(definition.combine, CombineFunction):
            by_function = FunctionScans(self.space, self.builder, self.reductions, self._end_of_block)
            results = by_function.write(definition, definition.combine, wide, axes)
        elif definition.combine in PAIRED_SCANS:
            results = self._paired(definition, wide, axes)
        else:
            results = (self._simple(definition, wide[0], axes),)
        return tuple(self._as(body.dtype, result) for result, body in zip(results, definition.bodies, strict=True))

    def _hold(self, prefix: str, expression: Expression, like: Tile) -> Tile:
        return self.builder.hold(prefix, expression, like.axes)

    def _widen(self, tile: Tile) -> Tile:
        if tile.literal is not None or not (tile.dtype.is_narrow_float or tile.dtype is BOOL):
            return tile
        return self._hold("cast", Cast(tile.expression, I32 if tile.dtype is BOOL else F32), tile)

    def _filled(self, scan: Scan, tile: Tile, axes: Axes, nothing: Number) -> Tile:
        """Returns a tile of full extent. A scan from the end begins with the lanes past it: they hold ``nothing``."""
        return self.reductions.full(tile, axes, nothing if scan.reverse else None)

    def _simple(self, scan: Scan, tile: Tile, axes: Axes) -> Tile:
        dtype, combine = tile.dtype, scan.named
        values = self._filled(scan, tile, axes, neutral_of(combine, dtype))
        if self.space.serial:
            return self._serial(scan, values, axes)
        scanned = TileScan((values.expression,), combine, self.space.reduction_position, scan.reverse)
        block = self.builder.hold("scan", scanned, axes)
        if not self.space.loops:
            return block
        carry = self.reductions.carry(axes - R, neutral_of(combine, dtype), dtype)
        result = self._hold("scan", step(combine, carry.expression, block.expression), block)
        total = self._total(scan, values.expression, block, self._block_line)
        self.reductions.follow(carry, step(combine, carry.expression, total))
        return result

    @property
    def _block_line(self) -> _Line:
        return _Line(self.space.reduction_position, Block("RBLOCK"), len(self.space.order), self.reductions.keep)

    def _end_of_block(self, scan: Scan, scanned: Tile) -> Expression:
        return _end(scan, scanned, self._block_line)

    def _total(self, scan: Scan, values: Expression, scanned: Tile, line: _Line) -> Expression:
        """Returns what the values along a line of a tile combine to.

        A reduction takes them in an order of its own. Where that may go out of range although no prefix does, as a
        product of factors whose exponents cancel, it is the last of what they are ``scanned`` to.
        """
        if scan.combine not in IN_ORDER:
            return Reduce((values,), scan.named, line.axis, line.keep)
        return _end(scan, scanned, line)

    def _serial(self, scan: Scan, values: Tile, axes: Axes) -> Tile:
        """Returns the scan of a tile whose threads hold neighbours: theirs first, then one of what each adds up to.

        What comes before a thread's share is looked up where its predecessor has it: taking a total away again would
        neither be exact nor hold for infinities.
        """
        serial, dtype, combine, reverse = self.space.serial, values.dtype, scan.named, scan.reverse
        groups = Block("RBLOCK", serial)
        wide = self.space.shape(axes)
        inner = tuple(groups if extent == Block("RBLOCK") else extent for extent in wide)
        held = self._hold("rows", Reshape(values.expression, (serial, *inner)), values).expression
        own = self._hold("scan", TileScan((held,), combine, 0, reverse), values)
        rank, axis = len(self.space.order), self.space.reduction_position
        line = _Line(0, serial, rank + 1, keep=False)
        total = self._hold("total", self._total(scan, held, own, line), values).expression
        ended = self._hold("ends", TileScan((total,), combine, axis, reverse), values)
        lane = Broadcast(self.space.expand("r", Lanes(groups)), inner)
        positions = self.builder.hold("lane", lane, axes).expression
        begin: Expression = Literal(0, I32)
        before: Expression = apply("greater", sub(positions, Literal(1, I32)), begin)
        if reverse:
            begin = sub(BlockSize(groups, I32), Literal(1, I32))
            before = apply("lesser", add(positions, Literal(1, I32)), begin)
        earlier = Gather(ended.expression, before, axis)
        identity = neutral_of(combine, dtype)
        is_later = apply("lt" if reverse else "gt", positions, begin)
        start = self._hold("before", where(is_later, earlier, literal(identity, dtype)), values).expression
        carry = self.reductions.carry(axes - R, identity, dtype)
        joined = Expand(step(combine, carry.expression, start), (0,))
        result = self._hold("scan", Reshape(step(combine, joined, own.expression), wide), values)
        last = self._total(scan, total, ended, _Line(axis, groups, rank, self.reductions.keep))
        self.reductions.follow(carry, step(combine, carry.expression, last))
        return result

    def _shared(self, scan: LookBackScan) -> Tile:
        """Returns the scan of one part of a line, continued from the sum that the programs before it publish."""
        axes = R.union(self.space.order)
        self._write_epoch(scan, axes)
        values = self._summed(scan, axes)
        self._prefetch(scan)
        total = self._hold("total", Reduce((values.expression,), "sum", 0), values)
        published = self._published(scan, total)
        self.builder.do(Call("publish_part", published), axes)
        block = self._hold("scan", TileScan((values.expression,), "sum", 0, scan.reverse), values)
        before = self._before(published, total, axes)
        result = self._hold("scan", add(before.expression, block.expression), block)
        return self._as(scan.operand.dtype, result)

    def _before(self, published: tuple[Expression, ...], total: Tile, axes: Axes) -> Tile:
        return self.builder.call("before", "sum_before", published, TileType(total.dtype), axes)

    def register_tiles(
        self, scan: LookBackScan, packed: Sequence[Scalar], position: Callable[[int], None]
    ) -> Iterator[Tile]:
        """Yields the scan of each tile of a block, where the tile lies when it is yielded; ``position`` writes that.

        What a block adds up to is published as soon as it is known. Until the sum before it is there, its elements stay
        packed, two in a register, and no more than one tile is floats at a time: a thread holds 128 elements,
        and a multiprocessor four such programs of four warps.
        """
        axes = R.union(self.space.order)
        self._write_epoch(scan, axes)
        waiting: list[dict[Scalar, Tile]] = []
        tiles: list[Tile] = []
        for number in range(self.space.register_tiles):
            position(number)
            tiles.append(self._summed(scan, axes))
            waiting.append(self.evaluator.loaded(packed))
            self.builder.forget(R)
        self._prefetch(scan)
        kinds = tuple(TileType(tile.dtype) for tile in tiles)
        summing = Call("sums_of_four", tuple(tile.expression for tile in tiles), kinds)
        totals = self.builder.hold_all(["total"] * len(tiles), summing, axes)
        whole = self._hold("total", add(*(total.expression for total in totals)), totals[0])
        published = self._published(scan, whole)
        self.builder.do(Call("publish_part", published), axes)
        before = self._before(published, whole, axes)
        for number, (held, total) in enumerate(zip(waiting, totals, strict=True)):
            position(number)
            self.evaluator.hold_only(held)
            values = self._summed(scan, axes)
            block = self._hold("scan", TileScan((values.expression,), "sum", 0, scan.reverse), values)
            result = self._hold("scan", add(before.expression, block.expression), block)
            yield self._as(scan.operand.dtype, result)
            self.builder.forget(R)
            if number + 1 < self.space.register_tiles:
                before = self._hold("before", add(before.expression, total.expression), before)

    def _write_epoch(self, scan: LookBackScan, axes: Axes) -> None:
        """Writes the epoch of what programs publish in this launch; it comes while elements do."""
        operands = (self._workspace(scan), Name("line"), Name("part"), Constant(self.space.splits))
        call = Call("part_epoch", operands, (TileType(I64),))
        self.builder.let("mark", call, axes)

    def _prefetch(self, scan: LookBackScan) -> None:
        """Writes a prefetch of what a later program will read, behind the loads of the program's own elements."""
        prefetch_block(self.flat, self.evaluator.addresses, scan, wide=self.wide)

    def _workspace(self, scan: LookBackScan) -> Expression:
        return Name(self.reductions.param_text(scan.workspace))

    def _published(self, scan: LookBackScan, total: Tile) -> tuple[Expression, ...]:
        """Returns what programs publish and await parts with: a workspace, a part of a line, and what it comes to."""
        lines = math.prod(int(axis.size) for axis in self.space.grid)
        where_ = (Name("line"), Constant(lines), Name("part"), Constant(self.space.splits))
        return (self._workspace(scan), *where_, total.expression, Name("mark"))

    def _summed(self, scan: LookBackScan, axes: Axes) -> Tile:
        """Returns what is added up, zero past the end."""
        operand = self._widen(self.evaluator.tile(scan.operand))
        return self.reductions.full(operand, axes, neutral_of("sum", operand.dtype))

    def _as(self, wanted: DType, tile: Tile) -> Tile:
        return tile if tile.dtype is wanted else self._hold("cast", Cast(tile.expression, wanted), tile)

    def _paired(self, scan: Scan, tiles: tuple[Tile, ...], axes: Axes) -> tuple[Tile, ...]:
        """Returns the best values so far, each with the position of the last such value.

        Positions that rise are negated on the way, because the combine lets the lowest win a tie.
        """
        function, best = PAIRED_SCANS[scan.named]
        value, index = tiles
        values = self._filled(scan, value, axes, neutral_of(best, value.dtype))
        rises = positions_rise(scan)
        falling = self._hold("at", apply("neg", index.expression), index) if rises else index
        positions = self._filled(scan, falling, axes, index.dtype.highest)
        axis = self.space.reduction_position
        pair = values.expression, positions.expression
        found = self.builder.hold_all(("best", "at"), TileScan(pair, scan.named, axis, scan.reverse), axes)
        if self.space.loops:
            start = neutral_of(best, value.dtype), index.dtype.highest
            carry = [self.reductions.carry(axes - R, fill, tile.dtype) for fill, tile in zip(start, tiles, strict=True)]
            held = tuple(each.expression for each in carry)
            kinds = tuple(self.builder.type_of(each.expression) for each in found)
            joining = Call(function, (*held, *(each.expression for each in found)), kinds)
            last = self.builder.hold_all(
                ("last", "last"), Reduce(pair, function.removesuffix("_nan"), axis, self.reductions.keep), axes
            )
            states = tuple(self.builder.type_of(each) for each in held)
            following = Call(function, (*held, *(each.expression for each in last)), states)
            found = self.builder.hold_all(("best", "at"), joining, axes)
            for each, tile in zip(carry, self.builder.hold_all(("carry", "carry"), following, axes), strict=True):
                self.reductions.follow(each, tile.expression)
        return found[0], self._hold("at", apply("neg", found[1].expression), found[1]) if rises else found[1]


def _end(scan: Scan, scanned: Tile, line: _Line) -> Expression:
    """Returns the last of what a line of a tile is scanned to."""
    lane: Expression = Lanes(line.extent)
    if line.rank > 1:
        lane = Expand(lane, tuple(position for position in range(line.rank) if position != line.axis))
    extent = line.extent
    end = BlockSize(extent, I32) if isinstance(extent, Block) else Literal(extent, I32)
    # What is added to the last one changes nothing of it, not even the sign of a zero.
    nothing = literal(-0.0 if scanned.dtype.is_float else 0, scanned.dtype)
    is_last = apply("eq", lane, Literal(0, I32) if scan.reverse else sub(end, Literal(1, I32)))
    return Reduce((where(is_last, scanned.expression, nothing),), "sum", line.axis, line.keep)


PAIRED_SCANS = {"cummax": ("argmax_nan", "max"), "cummin": ("argmin_nan", "min")}
"""By combine of a value and its position, the device function, and what it makes of the values."""

SCANNED = frozenset(("sum", "prod", "max", "min", "xor", "logaddexp"))
"""Combines of one value that are scanned."""
REGISTER_TILES, TILES_REGISTERS = 4, 128
"""Pieces of a part whose elements have two bytes, and registers of a thread that holds 128 of them."""


def holds_register_tiles(flat: FlatKernel) -> bool:
    """Returns whether programs that wait for each other hold elements of two bytes, of which they only make floats."""
    scans = look_back_scans(flat)
    if len(scans) != 1 or not all(isinstance(definition, (Loop, LookBackScan)) for definition in flat.definitions):
        return False
    nodes = postorder(body for definition in flat.definitions for body in bodies_of(definition))
    if any(node.op in RANDOM for node in nodes) or not sums_16_bit(scans[0].operand):
        return False
    return scans[0].points % REGISTER_TILES == 0 and all(load.dtype.bytes <= HALF_BYTES for load in _elements(flat))


def waiting_16_bit_values(flat: FlatKernel) -> list[Scalar]:
    """Returns the loads of elements of two bytes that such programs hold."""
    return [load for load in _elements(flat) if load.dtype.bytes == HALF_BYTES]


def _elements(flat: FlatKernel) -> list[Scalar]:
    (scan,) = look_back_scans(flat)
    return [load for load in memory_loads(flat, (scan.operand,)) if varies_along_reduction(load.indices)]


def look_back_scans(flat: FlatKernel) -> tuple[LookBackScan, ...]:
    """Returns the scans of a kernel whose programs wait for each other: one at most."""
    return tuple(definition for definition in flat.definitions if isinstance(definition, LookBackScan))


def scans_serially(flat: FlatKernel) -> bool:
    """Returns whether nothing in a kernel minds in which order its tiles hold the positions of the reduction axis."""
    space = flat.space
    if not space.loops or space.order != ("r", "x") or space.reduction is None:
        return False
    if not is_provably_at_most(LOWERING.column_neighbours, space.reduction.size):
        return False  # a block might be shorter
    scans = [definition for definition in flat.definitions if isinstance(definition, Scan)]
    others = [definition for definition in flat.definitions if not isinstance(definition, (Scan, Loop))]
    nodes = postorder(body for definition in flat.definitions for body in bodies_of(definition))
    return (
        bool(scans)
        and not others
        and all(scan.combine in SCANNED for scan in scans)
        and not any(node.op in RANDOM for node in nodes)
    )
