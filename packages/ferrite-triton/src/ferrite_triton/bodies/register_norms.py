"""Register-resident group norm: programs hold what they have read until the moments of its groups are known.

Which kernels are such, and why: `ferrite_scheduler.kernels.register_norms`, decision 0023.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass

from ferrite_ir.language.dtypes import BOOL, F32, I32, I64, DType
from ferrite_ir.language.graph import Computed, Loop, Reduction, bodies_of
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_scheduler.model.forms import RegisterNorm
from ferrite_scheduler.model.group_blocks import slots_of, spans_of
from ferrite_triton.analysis.flat import FlatKernel, memory_loads, reads_along_reduction
from ferrite_triton.analysis.loop_plan import READ_THE_LAST_TIME
from ferrite_triton.analysis.packed_residency import held_loads, holds_only_16_bit
from ferrite_triton.analysis.space import NO_AXES, Space
from ferrite_triton.bodies.builder import AxisPosition, Builder, Tile
from ferrite_triton.bodies.positions import positions_from, write_axis_positions
from ferrite_triton.bodies.prefetches import prefetch_image
from ferrite_triton.bodies.reductions import R
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.tile.build import add, apply, block_size, converted, lanes, literal, mul, quotient, remainder
from ferrite_triton.tile.language import (
    Block,
    Call,
    Constant,
    Expression,
    Lanes,
    Literal,
    Name,
    Offset,
    ProgramCount,
    TileType,
)

# Numbers that this form is written for: what a thread holds, and how many registers that takes it.
POSITIONS = 32
"""Parts of the tile a program keeps in registers: one after the other is widened to floats; the rest stays packed."""
REGISTERS, REGISTERS_OF_16_BIT = 96, 56
"""Registers of a thread, 64 or 32 of which hold elements: a multiprocessor has five programs of four warps, or nine."""
THREADS = 128
"""Threads of a program, which the spec states. Each asks for words of its own."""
CHANNELS = 2
"""Channels of a thread. Of more it would need registers for the sums and the factors of each."""
X = frozenset("x")
WORDS, FIRST_CHANNEL, MEMBER = Name("words"), Name("xfirst"), Name("member")
"""Where what programs tell each other lies, the first channel of a program, and its part of the image."""


def form_of(flat: FlatKernel) -> RegisterNorm:
    """Returns the form of a kernel that is a register norm."""
    assert isinstance(flat.kernel.form, RegisterNorm), "no register norm"
    return flat.kernel.form


def register_tiles_of(flat: FlatKernel) -> int:
    """Returns in how many tiles a program takes what it holds."""
    return form_of(flat).block_length // POSITIONS


def registers_of(flat: FlatKernel) -> int:
    """Returns how many registers a thread has."""
    return REGISTERS_OF_16_BIT if holds_only_16_bit(flat) else REGISTERS


def place_program(builder: Builder, space: Space, workspace: Expression, dtype: DType) -> None:
    """Writes where a program is: the parts of a block of channels lie one after the other.

    Where a block begins is hidden from the compiler, but for being a multiple of `CHANNELS`: so no thread reads more
    channels of a position.
    """
    x, y = space.axis("x"), space.axis("y")
    if x is None:
        raise AssertionError("images without channels")
    if x.block is None:
        raise AssertionError("blocks of channels of any size")
    blocks = -(-int(x.size) // x.block)

    def number(value: int) -> Literal:
        return Literal(value, dtype)

    drawn = builder.call("ticket", "ticket_in_order", (workspace, ProgramCount(0)), TileType(I32), NO_AXES).expression
    program = builder.let("program", converted(drawn, I32, dtype), NO_AXES).expression
    parts = number(space.splits)
    builder.let("member", remainder(program, parts), NO_AXES)
    block = builder.let("block", remainder(quotient(program, parts), number(blocks)), NO_AXES).expression
    if y is not None:
        image = builder.let("y", quotient(program, number(space.splits * blocks)), NO_AXES).expression
        builder.positions["y"] = AxisPosition(image)
    half = hidden(builder, mul(block, block_size("XBLOCK", dtype, CHANNELS)))
    first = builder.let("xfirst", mul(half, number(CHANNELS)), NO_AXES).expression
    lane = builder.let("xlane", space.expand("x", converted(lanes("XBLOCK"), I32, dtype)), X).expression
    builder.positions |= {"xfirst": AxisPosition(first), "xlane": AxisPosition(lane)}
    write_axis_positions(builder, space, x, positions_from(first, "XBLOCK", dtype))


def hidden(builder: Builder, number: Expression) -> Expression:
    """Returns an integer of which the compiler does not know what it is made of."""
    dtype = builder.type_of(number).dtype
    given = converted(number, dtype, I32)
    found = builder.call("hidden", "opaque_value", (given,), TileType(I32), NO_AXES).expression
    return converted(found, I32, dtype)


@dataclass(frozen=True, slots=True)
class RegisterNorms:
    """Writes the body of one kernel; `fmath.group_moments` has what its programs tell each other.

    Args:
        flat: the kernel.
        builder: takes the statements.
        evaluator: writes values.
        store: stores the results of a definition where the conditions hold.
        flush: writes the stores that wait.
    """

    flat: FlatKernel
    builder: Builder
    evaluator: ScalarValues
    store: Callable[[Computed, list[Tile]], None]
    flush: Callable[[], None]

    def write(self) -> None:
        """Writes the body."""
        reduction = next(definition for definition in self.flat.definitions if isinstance(definition, Reduction))
        (load,) = held_loads(self.flat)
        self.builder.let("words", self._words, NO_AXES)
        sizes = (self._members, form_of(self.flat).channels, self._spans, self.flat.space.splits)
        operands = (WORDS, FIRST_CHANNEL, MEMBER, *map(Constant, sizes))
        (sign,) = self.builder.hold_all(("sign",), Call("epoch_sign", operands, (TileType(I64),)), NO_AXES)
        self.evaluator.hints = {load: READ_THE_LAST_TIME}
        self._begin(MEMBER)
        tiles = [self._loaded(number, load) for number in range(self.flat.space.register_tiles)]
        self.evaluator.hints = {}
        self._publish(reduction, load, tiles, sign.expression)
        self._load_channels()
        # All that it reads itself has come by now: what it waits for is what others tell it.
        prefetch_image(self.flat, self.evaluator.addresses, load, self.builder)
        self._await(reduction, sign.expression)
        is_first = apply("eq", MEMBER, Literal(0, self.evaluator.index_dtype))
        for definition in self.flat.definitions:
            if not self._is_of_elements(definition):
                self.store(definition, [Tile(is_first, NO_AXES, BOOL)])
        self.flush()
        # No register holds addresses meanwhile.
        self.builder.forget_if(lambda key, _: isinstance(key, tuple) and key[0] == "first")
        self._begin(hidden(self.builder, MEMBER))
        for number, held in enumerate(tiles):
            self._write_positions(number)
            self.evaluator.hold_only({load: held})
            for definition in self.flat.definitions:
                if self._is_of_elements(definition):
                    self.store(definition, [])
            self.flush()
            self.builder.forget(R)

    def _is_of_elements(self, definition: Computed) -> bool:
        return isinstance(definition, Loop) and self.flat.is_reduction_level(definition)

    def _begin(self, member: Expression) -> None:
        """Writes where the positions of a program begin."""
        dtype = self.evaluator.index_dtype
        first = self.builder.let(
            "rfirst", mul(member, Literal(form_of(self.flat).block_length, dtype)), NO_AXES
        ).expression
        self.builder.positions["rfirst"] = AxisPosition(first)

    def _write_positions(self, number: int) -> None:
        """Writes which positions a tile holds."""
        vector: Expression = lanes("RBLOCK")
        if number:
            vector = add(vector, mul(Literal(number, I32), block_size("RBLOCK", I32)))
        self._position(vector)

    def _position(self, vector: Expression) -> None:
        """Writes which positions of its part the program is about to take."""
        dtype = self.evaluator.index_dtype
        lane = self.builder.let("rlane", converted(self.flat.space.expand("r", vector), I32, dtype), R).expression
        position = self.builder.let("r", add(self.builder.position("rfirst"), lane), R).expression
        self.builder.positions |= {"rlane": AxisPosition(lane), "r": AxisPosition(position)}

    def _loaded(self, number: int, load: Scalar) -> Tile:
        self._write_positions(number)
        tile = self.evaluator.tile(load)
        self.builder.forget(R)
        return tile

    def _publish(self, reduction: Reduction, load: Scalar, tiles: list[Tile], sign: Expression) -> None:
        """Writes the moments of a program's own positions, which others wait for."""
        (body,) = reduction.bodies
        points, columns = form_of(self.flat).block_length, Block("XBLOCK")
        self._position(Lanes(1))
        origin = self.evaluator.tile(body).expression
        self.builder.forget(R)
        together = THREADS * CHANNELS // form_of(self.flat).channels
        apart = TileType(F32, (together, columns))
        sums: list[tuple[Expression, ...]] = []
        for number, held in enumerate(tiles):
            self._write_positions(number)
            self.evaluator.hold_only({load: held})
            tile = self.evaluator.tile(body).expression
            summing = Call("sums_apart", (tile, origin, Constant(together)), (apart, apart))
            found = self.builder.hold_all(("sums", "squares"), summing, X)
            sums.append(tuple(each.expression for each in found))
            self.builder.forget(R)
        total, squares = (add(*parts) for parts in zip(*sums, strict=True))
        row = TileType(F32, (columns,))
        moments = Call("moments_of_columns", (total, squares, origin, Constant(points)), (row, row))
        mean, spread = self.builder.hold_all(("mean", "squares"), moments, X)
        operands = (WORDS, sign, mean.expression, spread.expression, FIRST_CHANNEL, MEMBER, *self._sizes)
        self.builder.do(Call("publish_groups", operands), X)

    def _load_channels(self) -> None:
        """Writes the loads of what all positions of a channel share: they come while the program waits."""
        roots = tuple(body for definition in self.flat.definitions for body in bodies_of(definition))
        for load in memory_loads(self.flat, roots):
            if not reads_along_reduction(self.flat, load) and not any(index.is_indirect for index in load.indices):
                self.evaluator.tile(load)

    def _await(self, reduction: Reduction, sign: Expression) -> None:
        """Writes the moments of whole groups, what is computed of them alone, and which of it each channel has."""
        lanes_ = max(next_power_of_two(self._spans * self.flat.space.splits), THREADS // self._slots)
        groups = TileType(F32, (self._slots,))
        operands = (WORDS, sign, FIRST_CHANNEL, *self._sizes, Constant(lanes_))
        mean, squares = self.builder.hold_all(
            ("mean", "squares"), Call("whole_groups", operands, (groups, groups)), NO_AXES
        )
        weight = float(self._members * int(self.flat.kernel.axes[-1].size))
        states = (mean, squares, Tile(literal(weight, F32), NO_AXES, F32))
        self.evaluator.publish(reduction, states)
        values = self._values_of_groups(reduction)
        tiles = [self.evaluator.tile(node) for node in values]
        made = {result.name for result in reduction.results}
        self.builder.forget_if(lambda key, _: _reads_any(key, made))  # one for each group, not for each channel
        for node, tile in zip(values, tiles, strict=True):
            self.evaluator.know(node, self._of_channels(tile))
        self.evaluator.publish(reduction, tuple(self._of_channels(state) for state in states))

    def _of_channels(self, tile: Tile) -> Tile:
        """Returns what each channel has of a value of groups, a vector."""
        if tile.literal is not None:
            return tile
        numbers = map(Constant, (self._columns, self._members, form_of(self.flat).channels))
        kind = TileType(tile.dtype, self.flat.space.shape(X))
        return self.builder.call("of", "of_columns", (tile.expression, FIRST_CHANNEL, *numbers), kind, X)

    def _values_of_groups(self, reduction: Reduction) -> list[Scalar]:
        """Returns what is computed of the moments of groups and of nothing else, the largest expressions."""
        results = {result.name for result in reduction.results}
        bodies = [body for d in self.flat.definitions if d is not reduction for body in bodies_of(d)]
        alone: dict[Scalar, bool] = {}
        used: dict[Scalar, None] = {}
        for node in postorder(bodies):
            if node.op in ("load", "index"):
                alone[node] = node.op == "load" and node.source in results
                continue
            parts = [part for part in node.args if isinstance(part, Scalar)]
            alone[node] = all(alone[part] for part in parts) and (bool(parts) or node.op == "const")
            if not alone[node]:
                used |= dict.fromkeys(parts)
        used |= dict.fromkeys(bodies)
        return [n for n in used if alone.get(n) and n.op not in ("load", "const") and n.loads and n.dtype is F32]

    @property
    def _members(self) -> int:
        return int(self.flat.kernel.axes[-2].dims[1].size)

    @property
    def _columns(self) -> int:
        return int(self.flat.kernel.axes[-2].size)

    @property
    def _spans(self) -> int:
        return spans_of(self._members, self._columns)

    @property
    def _slots(self) -> int:
        return next_power_of_two(slots_of(self._members, self._columns))

    @property
    def _sizes(self) -> tuple[Expression, ...]:
        form = form_of(self.flat)
        sizes = (form.block_length, self._columns, self._members, form.channels, self._slots, self._spans)
        return tuple(map(Constant, (*sizes, self.flat.space.splits)))

    @property
    def _words(self) -> Expression:
        """Returns where the words of an image begin, behind the counter."""
        dtype = self.evaluator.index_dtype
        first = Offset(Name(self.flat.param_of(form_of(self.flat).workspace).text), Literal(1, dtype))
        words = self._columns // self._members * self._spans * self.flat.space.splits
        if self.flat.space.axis("y") is None:
            return first
        return Offset(first, mul(self.builder.position("y"), Literal(words, dtype)))


def _reads_any(key: Hashable, names: Collection[str]) -> bool:
    """Returns whether what a builder knows by a key is an expression that reads a value of one of some names."""
    node = key[0] if isinstance(key, tuple) else None
    return isinstance(node, Scalar) and any(load.source in names for load in node.loads)
