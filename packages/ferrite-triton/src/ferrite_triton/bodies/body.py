"""The body of a tile program: definitions in order, or spread over loops along the reduction axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from ferrite_ir.language.dtypes import I32, DType
from ferrite_ir.language.graph import Computed, Contract, Reduction, Scan, Sort, Update, bodies_of
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, is_provably_at_most, is_static
from ferrite_scheduler.model.annotations import ColumnReduction
from ferrite_scheduler.model.forms import (
    Attention,
    Combo,
    GridReduction,
    LookBackScan,
    RegisterNorm,
    RowColumnReduction,
    TiledContraction,
)
from ferrite_triton.analysis.flat import FlatKernel, memory_loads
from ferrite_triton.analysis.loop_plan import (
    READ_THE_LAST_TIME,
    goes_backwards,
    plan_passes,
    prefetched_loads,
    rereads,
    roots_of,
)
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.row_per_thread import in_order
from ferrite_triton.analysis.space import NO_AXES, REDUCTION_AXES, KernelAxis, Space
from ferrite_triton.bodies.attention import AttentionRows
from ferrite_triton.bodies.builder import AxisPosition, Builder, Tile
from ferrite_triton.bodies.descriptors import Descriptors
from ferrite_triton.bodies.grid_reductions import GridReductions
from ferrite_triton.bodies.indices import chunk_atom, index_dtype
from ferrite_triton.bodies.loop_reductions import LoopReductions
from ferrite_triton.bodies.positions import (
    QUARTET,
    block_of_line,
    number_quartets,
    positions_from,
    write_axis_positions,
    write_misaligned_positions,
)
from ferrite_triton.bodies.products.contractions import open_product
from ferrite_triton.bodies.products.groups import Groups
from ferrite_triton.bodies.products.tiled_contractions import TiledContractions, write_rounds
from ferrite_triton.bodies.reductions import R
from ferrite_triton.bodies.register_norms import RegisterNorms
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.bodies.scans import Scans, look_back_scans, waiting_16_bit_values
from ferrite_triton.bodies.sorts import Sorts
from ferrite_triton.bodies.stores import Stores, value_of
from ferrite_triton.bodies.updates import Updates
from ferrite_triton.tile.build import add, apply, block_size, converted, lanes, mul, quotient, sub
from ferrite_triton.tile.language import Barrier, Expression, Literal, Name, TileType, Variable
from ferrite_triton.tile.statements import For, If

WIDE = 64
"""Bits of addresses that do not fit in 32."""


class KernelBody:
    """Writes what a program does once it knows where in the grid it is."""

    def __init__(self, flat: FlatKernel, width: int, builder: Builder) -> None:
        self._flat = flat
        self._width = width
        self._dtype = index_dtype(width)
        self._builder = builder
        self._evaluator = ScalarValues(flat, builder, width)
        self._stores = Stores(flat, builder, self._evaluator)
        self._reductions = LoopReductions(flat, builder, self._evaluator)
        self._scans = Scans(flat, builder, self._evaluator, self._reductions, wide=width == WIDE)
        self._sorts = Sorts(flat.space, builder, self._evaluator, self._reductions)
        self._updates = Updates(flat, builder, self._evaluator, self._stores)
        # Stores into memory that is also read wait until every load beside them has been written.
        self._waits = overwrites_operands(flat)
        self._waiting: list[Callable[[], None]] = []

    def write(self) -> None:
        """Writes the body."""
        match self._flat.kernel.form:
            case TiledContraction():
                self._write_tiles()
            case Attention():
                self._write_attention()
            case RowColumnReduction():
                self._write_chunk()
            case RegisterNorm():
                self._write_images()
            case GridReduction():
                self._write_grid_reduction()
            case LookBackScan() if self._flat.space.register_tiles > 1:
                self._write_register_tiles()
            case Combo(parts=counts):
                self._evaluator.hints = last_loads(self._flat)
                definitions = iter(self._flat.definitions)
                self._write_parts([tuple(islice(definitions, count)) for count in counts])
            case _ if self._flat.space.loops and self._flat.space.reduces_tile:
                self._write_loops()
            case _:
                self._evaluator.hints = shared_loads(self._flat) or last_loads(self._flat)
                self._write_grid_level(self._flat.definitions)

    def _write_definition(self, definition: Computed) -> None:
        """Writes a definition that is not just evaluated where it is used."""
        match definition:
            case Reduction():
                self._evaluator.publish(definition, self._reductions.write(definition))
            case Scan():
                self._evaluator.publish(definition, self._scans.write(definition))
            case Sort():
                self._evaluator.publish(definition, self._sorts.write(definition))
            case Update():
                self._write_update(definition)

    def _write_update(self, update: Update) -> None:
        if update.target in self._flat.producers:
            self._flush()
        new, store = self._updates.prepare(update)
        if new is not None:
            self._evaluator.results[update.result.name] = new
        self._put(store)

    def _store_results(self, definition: Computed, conditions: Sequence[Tile] = ()) -> None:
        """Writes the stores of a definition's results, where the conditions hold."""
        if isinstance(definition, Update):
            return
        stored = [result.name for result in definition.results if result.name in self._flat.kernel.stored]
        for name in stored:
            tile = value_of(self._evaluator, self._flat, name)
            home = in_order(self._flat.space, self._flat.offset(name, self._flat.homes[name]))
            if isinstance(definition, Sort):
                self._put(self._stores.prepare(name, tile, *self._sorts.ranked(definition, home)))
            else:
                self._put(self._stores.prepare(name, tile, home, [*conditions]))

    def _put(self, store: Callable[[], None]) -> None:
        if self._waits:
            self._waiting.append(store)
        else:
            store()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            # Several threads may load one element (of a small tile all do, and Triton repeats cheap loads in another
            # layout): none may overwrite it before all have it.
            self._builder.do(Barrier(), R)
        for store in waiting:
            store()

    def _write_parts(self, parts: list[tuple[Computed, ...]], first: int = 0) -> None:
        """Writes what the programs of some parts do, the first of which has the number ``first``.

        They are told apart by halves: of many parts most programs would go through dozens of conditions in a row.
        """
        if len(parts) == 1:
            self._write_part(parts[0])
            return
        half = len(parts) // 2
        self._builder.open_branch()
        self._write_parts(parts[:half], first)
        then = self._builder.close_branch()
        self._builder.open_branch()
        self._write_parts(parts[half:], first + half)
        otherwise = self._builder.close_branch()
        is_before = apply("lt", Name("part"), Literal(first + half, self._dtype))
        self._builder.append(If(is_before, then, otherwise))

    def _write_part(self, definitions: tuple[Computed, ...]) -> None:
        """Writes what the programs of one part do: of several, in a loop over their only block.

        Parts of lists are alike but for their params, and the compiler would make one of them, which every program
        would begin with choosing all its params for: two hundred instructions, and registers that hold them. Loops it
        keeps apart.
        """
        space = self._flat.space
        axis = part_axis(space)
        if axis is None:
            self._write_grid_level(definitions)
            return
        first, block = self._builder.position(f"{axis.name}first"), block_size(axis.constant, self._dtype)
        counter = Variable(f"{axis.name}start", TileType(self._dtype))
        self._builder.open_branch()
        start = self._builder.declare(counter)
        # A loop counts in the type of its bounds, but in the interpreter, where it counts in Python's integers.
        write_axis_positions(self._builder, space, axis, positions_from(start, axis.constant, self._dtype))
        number_quartets(self._builder, space, axis, quotient(start, Literal(QUARTET, self._dtype)))
        self._write_grid_level(definitions)
        body = self._builder.close_branch()
        end = apply("lesser", add(first, block), space.params.value(axis.size, self._dtype))
        self._builder.append(For(Variable(start.name, counter.type), first, end, block, (), body))

    def _write_grid_reduction(self) -> None:
        """Writes all reductions first, so that a program waits once, then what needs them: nothing is stored before."""
        self._evaluator.hints = shared_loads(self._flat)
        reductions = [definition for definition in self._flat.definitions if isinstance(definition, Reduction)]
        GridReductions(self._flat, self._builder, self._reductions, self._evaluator).write(reductions)
        for definition in self._flat.definitions:
            self._store_results(definition)
        self._flush()

    def _write_tiles(self) -> None:
        """Writes, for each tile of a program, its products, then what reads them."""
        contractions = [definition for definition in self._flat.definitions if isinstance(definition, Contract)]

        descriptors = Descriptors(self._flat, self._builder)
        is_grouped = contractions[0].segments is not None
        groups = Groups(self._flat, self._builder, self._width, contractions[0]) if is_grouped else None

        def write_tile(conditions: Sequence[Tile]) -> None:
            products = TiledContractions(self._flat, self._builder, self._width, descriptors, groups)
            tiles = products.write(contractions)
            for contraction, tile in zip(contractions, tiles, strict=True):
                self._evaluator.publish(contraction, (tile,))
            self._write_grid_level(self._flat.definitions, conditions)

        write_rounds(self._builder, self._flat, self._dtype, groups, write_tile)

    def _write_attention(self) -> None:
        """Writes the loops in which rows of scores are made and summed up, then what reads their results."""
        attend, tiles = AttentionRows(self._flat, self._builder, self._width).write()
        self._evaluator.publish(attend, tiles)
        self._write_grid_level(self._flat.definitions)

    def _write_images(self) -> None:
        stores = self._store_results, self._flush
        RegisterNorms(self._flat, self._builder, self._evaluator, *stores).write()

    def _write_register_tiles(self) -> None:
        """Writes a scan whose programs take their blocks in tiles, and what is computed beside it, tile by tile."""
        space, (scan,) = self._flat.space, look_back_scans(self._flat)
        reduction = space.reduction
        if reduction is None:
            raise AssertionError("a scan without a reduction axis")
        self._evaluator.hints = shared_loads(self._flat) or last_loads(self._flat)
        dtype = self._dtype

        def set_positions(tile: int) -> None:
            block = converted(block_of_line(scan), I32, dtype)
            own = space.register_tiles - 1 - tile if scan.reverse else tile
            number = add(mul(block, Literal(space.register_tiles, dtype)), Literal(own, dtype))
            start = mul(number, block_size("RBLOCK", dtype))
            write_axis_positions(self._builder, space, reduction, positions_from(start, "RBLOCK", dtype))

        for tile in self._scans.register_tiles(scan, waiting_16_bit_values(self._flat), set_positions):
            self._evaluator.publish(scan, (tile,))
            for definition in self._flat.definitions:
                self._store_results(definition)
            self._flush()

    # --- loops over the reduction axis
    # -----------------------------------------------------------------------------------

    def _write_loops(self) -> None:
        plan = plan_passes(self._flat)
        policies, shared = rereads(self._flat, plan), shared_loads(self._flat)
        self._write_grid_level(plan.before)
        backwards, ahead = goes_backwards(self._flat, plan), prefetched_loads(self._flat, policies)
        for loop, policy, is_backward, prefetched in zip(plan.loops, policies, backwards, ahead, strict=True):
            self._evaluator.hints, self._evaluator.ahead = policy | shared, prefetched
            if loop.inside:
                self._write_loop(loop.inside, is_backward=is_backward)
            self._write_grid_level(loop.after)

    def _write_loop(self, definitions: tuple[Computed, ...], *, is_backward: bool) -> None:
        reduction = self._flat.space.reduction
        if reduction is None:
            raise AssertionError("a loop without a reduction axis")
        finishers = self._write_rounds(reduction, definitions, is_backward=is_backward)
        for definition, finish in finishers:
            self._evaluator.publish(definition, finish())
        for definition, _ in finishers:
            self._store_results(definition)
        self._flush()

    def _write_rounds(
        self, reduction: KernelAxis, definitions: tuple[Computed, ...], *, is_backward: bool
    ) -> list[tuple[Reduction | Contract, Callable[[], tuple[Tile, ...]]]]:
        """Writes a loop over the blocks of the reduction axis; returns what writes the end of each reduction in it."""
        builder, space, misalignment = self._builder, self._flat.space, self._flat.space.misalignment
        size: Size = reduction.size
        misaligned: Expression | None = None
        if misalignment is not None:
            size = size + misalignment.width - 1
            misaligned = self._evaluator.offset(misalignment.elements).expression
            width = Literal(misalignment.width, self._dtype)
            end = mul(quotient(add(misaligned, Literal(int(size), self._dtype)), width), width)
            builder.positions["vectors_end"] = AxisPosition(builder.let("vectors_end", end, NO_AXES).expression)
        # A loop counts in the type of its bounds: 32 bits where they are numbers.
        counted = I32 if is_static(size) else self._dtype
        bound = space.params.value(size, self._dtype if counted is self._dtype else I32)
        counter = builder.open_loop("rstart", TileType(counted))
        start: Expression = counter
        if is_backward:
            start = self._from_the_end(counter, size, counted)
        builder.positions["rstart"] = AxisPosition(start)
        vector = add(start, converted(space.reduction_lanes(), I32, counted))
        vector = converted(vector, counted, self._dtype)
        if misaligned is None:
            write_axis_positions(builder, space, reduction, vector)
        else:
            write_misaligned_positions(builder, space, reduction, vector, misaligned)
        number_quartets(builder, space, reduction, quotient(start, Literal(QUARTET, counted)))
        finishers: list[tuple[Reduction | Contract, Callable[[], tuple[Tile, ...]]]] = []
        for definition in with_scans(self._flat, definitions):
            if isinstance(definition, Reduction):
                finishers.append((definition, self._reductions.open(definition)))
                continue
            if isinstance(definition, Contract):
                product = open_product(definition, self._flat, self._reductions, builder, self._evaluator)
                finishers.append((definition, product))
                continue
            self._write_definition(definition)
            if any(definition is wanted for wanted in definitions):
                self._store_results(definition)
        self._flush()
        bounds = Literal(0, counted), bound, block_size("RBLOCK", counted)
        builder.close_loop(counter, bounds, LOWERING.column_stages if space.serial else 0)
        return finishers

    def _from_the_end(self, counter: Expression, size: Size, dtype: DType) -> Expression:
        """Writes where the block lies that is the last one in the first round; returns its first position."""
        block = block_size("RBLOCK", dtype)
        last = self._flat.space.params.value(size - 1, dtype)
        start = sub(mul(quotient(last, block), block), counter)
        return self._builder.let("rback", start, R).expression

    def _write_chunk(self) -> None:
        """Writes a loop over the rows of a chunk; column reductions are complete after it."""
        builder, space, dtype = self._builder, self._flat.space, self._dtype
        rows = space.axis("x")
        if rows is None or not isinstance(space.form, RowColumnReduction):
            raise AssertionError("a chunk without rows")
        program, chunks = Name("program"), space.form.chunks
        builder.function.known[chunk_atom(space)] = Tile(program, NO_AXES, dtype)
        self._evaluator.hints = shared_loads(self._flat)
        counted, end = I32, None
        first: Expression = mul(program, self._number(space.chunk_length))
        bound: Expression = space.params.value(space.chunk_length, I32)
        if rows.masked:  # the last chunks have fewer rows, or none
            size = space.params.value(rows.size, dtype)
            each = quotient(add(size, Literal(chunks - 1, dtype)), self._number(chunks))
            chunk = builder.let("chunk", each, NO_AXES).expression
            first = mul(program, chunk)
            end = builder.let("xend", apply("lesser", add(first, chunk), size), NO_AXES).expression
            counted, bound = dtype, sub(end, first)
        counter = builder.open_loop("xstart", TileType(counted), frozenset("x"))
        start = converted(counter, counted, dtype)
        write_axis_positions(builder, space, rows, add(add(first, start), converted(lanes("XBLOCK"), I32, dtype)), end)
        finishers: list[tuple[ColumnReduction, Callable[[], tuple[Tile, ...]]]] = []
        for definition in self._flat.definitions:
            if isinstance(definition, ColumnReduction):
                finishers.append((definition, self._reductions.open_columns(definition)))
                continue
            self._write_definition(definition)
            self._store_results(definition)
        self._flush()
        bounds = Literal(0, counted), bound, block_size("XBLOCK", counted)
        builder.close_loop(counter, bounds, stages_of(self._flat))
        for definition, finish in finishers:
            self._evaluator.publish(definition, finish())
            self._store_results(definition)
        self._flush()

    def _number(self, size: Size) -> Expression:
        return self._flat.space.params.value(size, self._dtype)

    def _write_grid_level(self, definitions: tuple[Computed, ...], conditions: Sequence[Tile] = ()) -> None:
        for definition in definitions:
            self._write_definition(definition)
            self._store_results(definition, conditions)
        self._flush()


def part_axis(space: Space) -> KernelAxis | None:
    """Returns the axis along which parts of a combo kernel have blocks; None in others, or if they have one point."""
    axis = space.axis("x")
    return axis if space.parts > 1 and axis is not None and axis.tiled else None


def stages_of(flat: FlatKernel) -> int:
    """Returns how many rows of a chunk are on their way at once: three of 2-byte elements, two of wider ones.

    Measured on an H200 for rows of 4,096: more of the wide ones leave no shared memory for a second program. Of short
    rows there is one more.
    """
    roots = tuple(body for definition in flat.definitions for body in bodies_of(definition))
    widest = max((load.dtype.bytes for load in memory_loads(flat, roots) if _is_whole_row(load)), default=2)
    is_short = flat.space.reduction is not None and is_provably_at_most(flat.space.reduction.size, LOWERING.short_row)
    return (3 if widest <= 2 else 2) + is_short


def _is_whole_row(load: Scalar) -> bool:
    return {"x", "r"} <= {dim.name for index in load.indices for dim in index.dims}


def overwrites_operands(flat: FlatKernel) -> bool:
    """Returns whether the kernel writes memory whose old contents it may read."""
    if any(isinstance(definition, Update) for definition in flat.definitions):
        return True
    return any(param.param.access == "readwrite" for param in flat.params.values())


def shared_loads(flat: FlatKernel) -> dict[Scalar, str]:
    """Returns a hint to keep what every program of a reduction reads again, such as a weight along its axis."""
    if not flat.space.reduces_tile or all(axis.size == 1 for axis in flat.space.grid):
        return {}
    roots = tuple(body for definition in flat.definitions for body in bodies_of(definition))
    return {
        load: "evict_last"
        for load in memory_loads(flat, roots)
        if "r" in {dim.name for index in load.indices for dim in index.dims} <= REDUCTION_AXES
    }


def last_loads(flat: FlatKernel) -> dict[Scalar, str]:
    """Returns a hint to make room in the cache where what was read is done with."""
    if not any(param.param.is_last for param in flat.params.values()):
        return {}
    roots = tuple(body for definition in flat.definitions for body in bodies_of(definition))
    return {load: READ_THE_LAST_TIME for load in memory_loads(flat, roots) if flat.param_of(load.source).param.is_last}


def with_scans(flat: FlatKernel, definitions: tuple[Computed, ...]) -> list[Computed]:
    """Returns the definitions of a loop with the scans of earlier loops that they read, which are done again."""
    wanted = {load.source for definition in definitions for root in roots_of(definition) for load in root.loads}
    pending = list(wanted)
    while pending:
        produced = flat.producers.get(pending.pop())
        if produced is None or isinstance(produced[0], Reduction):
            continue
        names = {load.source for root in roots_of(produced[0]) for load in root.loads} - wanted
        wanted |= names
        pending.extend(names)
    chosen = {id(definition) for definition in definitions}
    for definition in flat.definitions:
        if isinstance(definition, Scan) and any(result.name in wanted for result in definition.results):
            chosen.add(id(definition))
    return [definition for definition in flat.definitions if id(definition) in chosen]
