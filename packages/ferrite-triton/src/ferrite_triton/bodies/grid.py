"""Where a program instance is in the grid: which positions of each axis are its own."""

from __future__ import annotations

import math

from ferrite_ir.language.dtypes import I32, DType
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.model.forms import (
    Attention,
    GridReduction,
    LookBackScan,
    RegisterNorm,
    RowColumnReduction,
    TiledContraction,
)
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.packed_residency import holds_only_16_bit
from ferrite_triton.analysis.space import NO_AXES, POSITION, KernelAxis, Space
from ferrite_triton.bodies.attention import place_rows
from ferrite_triton.bodies.body import part_axis
from ferrite_triton.bodies.builder import AxisPosition, Builder
from ferrite_triton.bodies.positions import (
    QUARTET,
    block_of_line,
    number_quartets,
    positions_from,
    write_axis_positions,
)
from ferrite_triton.bodies.register_norms import place_program as place_images
from ferrite_triton.bodies.scans import look_back_scans
from ferrite_triton.tile.build import add, apply, block_size, converted, lanes, mul, quotient, remainder, sub
from ferrite_triton.tile.language import (
    Assume,
    Block,
    Call,
    Constant,
    Expression,
    Literal,
    Name,
    ProgramCount,
    ProgramId,
    TileType,
)


def place_program(builder: Builder, flat: FlatKernel, dtype: DType) -> None:
    """Writes where a program is in the grid, the x blocks run fastest; ``dtype`` is that of addresses."""
    space = flat.space
    match flat.kernel.form:
        case Attention():
            place_rows(builder, flat, dtype)
        case TiledContraction():
            pass  # it has a place in each of its rounds
        case RegisterNorm(workspace=workspace):
            place_images(builder, space, Name(flat.param_of(workspace).text), dtype)
        case LookBackScan():
            place_block_of_line(builder, flat, dtype)
        case _:
            place_in_grid(builder, flat, dtype)


def place_in_grid(builder: Builder, flat: FlatKernel, dtype: DType) -> None:
    """Writes this for a kernel whose programs wait for no others, or for those of a row."""
    space = flat.space
    grid = [axis for axis in reversed(space.grid) if axis.size != 1 and not axis.is_whole]
    rest = _number_of_program(builder, flat, dtype)
    if isinstance(space.form, RowColumnReduction):  # the loop over the rows of the chunk says where they lie
        rest = builder.let("program", rest, NO_AXES).expression
        grid = []
    if (len(grid) > 1 and not space.splits) or space.parts > 1:
        rest = builder.let("program", rest, NO_AXES).expression
    for number, axis in enumerate(grid):
        mine = rest
        if number < len(grid) - 1 or space.parts > 1:
            blocks = _blocks_along(builder, space, axis, dtype)
            mine, rest = remainder(rest, blocks), quotient(rest, blocks)
        block = block_size(axis.constant, dtype)
        if axis is part_axis(space):
            first = builder.let(f"{axis.name}first", mul(mine, block), NO_AXES)
            builder.positions[f"{axis.name}first"] = AxisPosition(first.expression)  # each part counts on from here
        elif axis.tiled:
            write_axis_positions(builder, space, axis, positions_from(mul(mine, block), axis.constant, dtype))
            number_quartets(builder, space, axis, mul(mine, block_size(axis.constant, dtype, QUARTET)))
        else:
            at = builder.let(axis.name, mine, NO_AXES)
            builder.positions[axis.name] = AxisPosition(at.expression)
    if space.parts > 1:
        builder.let("part", rest, NO_AXES)
    place_whole_axes(builder, space, dtype)


def _number_of_program(builder: Builder, flat: FlatKernel, dtype: DType) -> Expression:
    """Returns the number of a program; of those that share rows, that of its rows."""
    space, own = flat.space, converted(ProgramId(0), I32, dtype)
    if isinstance(space.form, GridReduction):
        workspace = Name(flat.param_of(space.form.workspace).text)
        function = "ticket_in_order" if holds_only_16_bit(flat) else "take_ticket"
        ticket = builder.call("ticket", function, (workspace, ProgramCount(0)), TileType(I32), NO_AXES).expression
        program = builder.let("program", converted(ticket, I32, dtype), NO_AXES).expression
        splits = Literal(space.splits, dtype)
        builder.let("member", remainder(program, splits), NO_AXES)
        return builder.let("group", quotient(program, splits), NO_AXES).expression
    if flat.kernel.backwards:
        return sub(converted(sub(ProgramCount(0), Literal(1, I32)), I32, dtype), own)
    return own


def _blocks_along(builder: Builder, space: Space, axis: KernelAxis, dtype: DType) -> Expression:
    """Returns how many programs there are along an axis."""
    size = space.params.value(axis.size, dtype)
    blocks: Expression = size
    if axis.tiled:
        block = block_size(axis.constant, dtype)
        counted = quotient(sub(add(size, block), Literal(1, dtype)), block)
        blocks = builder.let(f"{axis.name}blocks", counted, NO_AXES).expression
    if not is_static(axis.size):
        # What a division by a variable takes half the instructions for, and a program begins with waiting for.
        builder.do(Assume(apply("gt", blocks, Literal(0, dtype))), NO_AXES)
    return blocks


def program_count(space: Space, dtype: DType) -> Expression:
    """Returns how many programs a kernel has whose programs wait for no others: what `grid_expression` says."""
    if isinstance(space.form, RowColumnReduction):
        return Literal(space.form.chunks, dtype)
    count: Expression = Literal(space.parts, dtype)
    for axis in space.grid:
        if axis.size == 1 or axis.is_whole:
            continue
        blocks = space.params.value(axis.size, dtype)
        if axis.tiled:
            block = block_size(axis.constant, dtype)
            blocks = quotient(sub(add(blocks, block), Literal(1, dtype)), block)
        count = blocks if count == Literal(1, dtype) else mul(count, blocks)
    return count


def place_whole_axes(builder: Builder, space: Space, dtype: DType) -> None:
    """Writes the positions of the axes that a tile holds whole."""
    reduction = space.reduction
    for axis in space.axes:
        if axis.is_whole or axis is space.blocks:
            write_axis_positions(builder, space, axis, converted(lanes(axis.constant), I32, dtype))
    if reduction is None or not reduction.tiled or space.loops:
        return
    vector: Expression = lanes("RBLOCK")
    if space.row_per_thread:
        known = space.expand("r", converted(vector, I32, dtype))
        builder.positions[POSITION] = AxisPosition(builder.let(POSITION, known, frozenset("r")).expression)
        kind = TileType(I32, (Block("RBLOCK"),))
        vector = builder.call("hidden", "opaque_indices", (vector,), kind, frozenset("r")).expression
    first: Expression | None = None
    if space.splits:
        member = Name("member")
        vector = positions_from(mul(member, block_size("RBLOCK", dtype)), "RBLOCK", dtype)
        first = mul(member, block_size("RBLOCK", dtype, QUARTET))
    else:
        vector = converted(vector, I32, dtype)
    write_axis_positions(builder, space, reduction, vector)
    number_quartets(builder, space, reduction, first)


def place_block_of_line(builder: Builder, flat: FlatKernel, dtype: DType) -> None:
    """Writes where a program is in the grid of a scan whose programs wait for each other.

    They take parts in the order in which they begin, those of all lines in turn.
    """
    space, (scan, *_) = flat.space, look_back_scans(flat)
    grid = [axis for axis in space.grid if axis.size != 1]
    count = math.prod(int(axis.size) for axis in grid)
    operands = (Name(flat.param_of(scan.workspace).text), Constant(count * space.splits))
    program = builder.let("program", Call("ticket_in_order", operands, (TileType(I32),)), NO_AXES).expression
    line = builder.let("line", remainder(program, Literal(count, I32)), NO_AXES).expression
    part = builder.let("part", quotient(program, Literal(count, I32)), NO_AXES).expression
    rest = line
    for axis in reversed(grid):
        size = Literal(int(axis.size), I32)
        mine = rest if axis is grid[0] else remainder(rest, size)
        at = builder.let(axis.name, converted(mine, I32, dtype), NO_AXES)
        builder.positions[axis.name] = AxisPosition(at.expression)
        rest = quotient(rest, size)
    reduction = space.reduction
    if reduction is None:
        raise AssertionError("a scan without a reduction axis")
    if scan.reverse:
        builder.let("block", sub(Literal(space.splits - 1, I32), part), NO_AXES)
    if space.register_tiles > 1:
        return  # the body says where each of its tiles lies
    first = mul(converted(block_of_line(scan), I32, dtype), block_size("RBLOCK", dtype))
    write_axis_positions(builder, space, reduction, positions_from(first, "RBLOCK", dtype))
