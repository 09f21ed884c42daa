"""Products of matrices, one tile of the result to a program.

    for rstart in range(0, R, RBLOCK):
        left = load [YBLOCK, RBLOCK]        right = load [RBLOCK, XBLOCK]
        sum += left @ right                 on tensor cores, carried in f32
    what reads the sum, over [YBLOCK, XBLOCK], and stores

What makes a factor is computed where it is multiplied (a *prologue*), what reads the result in the same program (an
*epilogue*). The compiler loads some blocks ahead, as many as the config has stages.

Programs take the tiles in groups of `tile_group` rows of tiles (of the `LoweringPolicy`), column by column: those that
run at once read few strips of either factor, which stay in the cache ("grouped ordering" in Triton's tutorial on matrix
multiplication).

    tiles in the order of their programs, in groups of 2:     0 2 4 6
                                                              1 3 5 7
                                                              8 …

Factors of f32 that are split in parts (`ferrite_scheduler.rewrites.split_factors`) are three products a round, added
up in f32 after each. A part of an infinity is no number, times nothing: where a tile has sums that are not finite, a
second loop multiplies whole factors, cut off to TF32, which have the same infinities as exact ones, and has a round for
no other tile.

A program takes as many tiles as the config says, each as many places behind the one before as there are programs
("persistent" where there are no more programs than the device runs at once). The rounds and the loop inside are one
loop for the compiler: while a tile is finished, the blocks of the next one are on their way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ferrite_ir.language.dtypes import F32, I32, DType
from ferrite_ir.language.graph import Contract
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.model.contractions import right_parts
from ferrite_triton.analysis.contraction_space import LEFT, RIGHT, factor_space
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.neutral_padding import zero_padded_loads
from ferrite_triton.analysis.space import DESCRIPTORS_AXIS, NO_AXES, ROUNDS_AXIS, Axes, KernelAxis
from ferrite_triton.bodies.builder import AxisPosition, Builder, Tile
from ferrite_triton.bodies.descriptors import Descriptors
from ferrite_triton.bodies.indices import index_dtype
from ferrite_triton.bodies.positions import QUARTET, number_quartets, positions_from, write_axis_positions
from ferrite_triton.bodies.products.groups import Groups
from ferrite_triton.bodies.reductions import R, Reductions
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.tile.build import (
    add,
    apply,
    block_size,
    converted,
    full,
    lanes,
    literal,
    mul,
    quotient,
    remainder,
    sub,
    where,
)
from ferrite_triton.tile.language import (
    Block,
    Dot,
    Expression,
    Literal,
    Name,
    ProgramCount,
    ProgramId,
    Reduce,
    TileType,
    Variable,
)
from ferrite_triton.tile.statements import For

TILE = (Block("YBLOCK"), Block("XBLOCK"))
RESULT_AXES: Axes = frozenset("yx")


def write_rounds(
    builder: Builder,
    flat: FlatKernel,
    dtype: DType,
    groups: Groups | None,
    write_tile: Callable[[Sequence[Tile]], None],
) -> None:
    """Writes what a program does with each of its tiles.

    Args:
        builder: where it is written.
        flat: the kernel.
        dtype: that of addresses.
        groups: where groups lie, None of a kernel without any.
        write_tile: writes it for a tile, which is stored under some conditions.
    """
    axes = {axis.name: axis for axis in flat.space.grid}
    sizes = {name: builder.let(f"{name}tiles", _tiles(flat, axes[name], dtype), NO_AXES).expression for name in "yx"}
    program: Expression = converted(ProgramId(0), I32, dtype)
    rounds = flat.space.axis(ROUNDS_AXIS)
    if rounds is None:
        _place_tile(builder, flat, dtype, program, sizes, groups)
        write_tile(())
        return
    each = mul(sizes["y"], sizes["x"])
    count = builder.let(
        "tiles", mul(each, flat.space.params.value(axes["z"].size, dtype)) if "z" in axes else each, NO_AXES
    ).expression
    one = Literal(1, dtype)
    bounds = Literal(0, dtype), block_size(rounds.constant, dtype), one
    builder.open_branch()
    counter = builder.declare(Variable(rounds.name, TileType(dtype)))
    mine = add(program, mul(counter, converted(ProgramCount(0), I32, dtype)))
    number = builder.let("number", mine, NO_AXES).expression
    # In the last round there may be no tile any more: the last one is computed again, and not stored.
    is_there = apply("bitor", apply("eq", bounds[1], one), apply("lt", number, count))
    condition = builder.let("exists", is_there, NO_AXES)
    last = apply("lesser", number, sub(count, one))
    _place_tile(builder, flat, dtype, last, sizes, groups)
    write_tile((condition,))
    body = builder.close_branch()
    builder.append(For(Variable(counter.name, TileType(dtype)), *bounds, (), body, flattens=True))


def _place_tile(
    builder: Builder,
    flat: FlatKernel,
    dtype: DType,
    tile: Expression,
    counts: Mapping[str, Expression],
    groups: Groups | None,
) -> None:
    """Writes where the tile of a number lies; ``counts`` are the tiles along the axes of the result."""
    axes = {axis.name: axis for axis in flat.space.grid}
    if "z" in axes:
        of_all = builder.let("of_all", tile, NO_AXES).expression
        each = builder.let("each", mul(counts["y"], counts["x"]), NO_AXES).expression
        builder.positions["z"] = AxisPosition(builder.let("z", quotient(of_all, each), NO_AXES).expression)
        tile = remainder(of_all, each)
    tile = builder.let("tile", tile, NO_AXES).expression
    group_size = builder.let("group", mul(counts["x"], Literal(LOWERING.tile_group, dtype)), NO_AXES).expression
    first = builder.let(
        "first", mul(quotient(tile, group_size), Literal(LOWERING.tile_group, dtype)), NO_AXES
    ).expression
    rows_left = apply("lesser", sub(counts["y"], first), Literal(LOWERING.tile_group, dtype))
    height = builder.let("height", rows_left, NO_AXES).expression
    inside = builder.let("inside", remainder(tile, group_size), NO_AXES).expression
    mine = {"y": add(first, remainder(inside, height)), "x": quotient(inside, height)}
    if groups is not None and not flat.space.row_groups:
        groups.place_sums()
    for name, number in mine.items():
        if name == "y" and groups is not None and flat.space.row_groups:
            groups.place_rows(number, axes[name])
            continue
        start = mul(number, block_size(axes[name].constant, dtype))
        if flat.space.axis(DESCRIPTORS_AXIS) is not None:
            start = builder.let(f"{name}first", start, NO_AXES).expression
            builder.positions[f"{name}first"] = AxisPosition(start)
        write_axis_positions(builder, flat.space, axes[name], positions_from(start, axes[name].constant, dtype))
        if name == flat.space.order[-1]:
            number_quartets(builder, flat.space, axes[name], quotient(start, Literal(QUARTET, dtype)))


def _tiles(flat: FlatKernel, axis: KernelAxis, dtype: DType) -> Expression:
    """Returns how many tiles lie along an axis."""
    block, groups = block_size(axis.constant, dtype), flat.space.row_groups
    if axis.name == "y" and groups:
        return add(quotient(flat.space.params.value(axis.size, dtype), block), Literal(groups + 1, dtype))
    return quotient(sub(add(flat.space.params.value(axis.size, dtype), block), Literal(1, dtype)), block)


class TiledContractions:
    """Writes the loop over the reduction axis in which all contractions of a kernel are added up."""

    def __init__(
        self, flat: FlatKernel, builder: Builder, width: int, descriptors: Descriptors, groups: Groups | None
    ) -> None:
        self._flat, self._builder, self._dtype = flat, builder, index_dtype(width)
        self._groups = groups
        self._left = _Factors(flat, builder, width, LEFT, descriptors)
        self._right = _Factors(flat, builder, width, RIGHT, descriptors)

    def write(self, contractions: Sequence[Contract]) -> list[Tile]:
        """Writes the loop; returns the tile of each contraction's result, in f32."""
        builder, reduction = self._builder, self._flat.space.reduction
        if reduction is None:
            raise AssertionError("a contraction without a reduction axis")
        bounds, counter = self._open(reduction)
        totals = [builder.carry("sum", full(TILE, 0.0, F32), R) for _ in contractions]
        end = None if self._groups is None or self._flat.space.row_groups else bounds[1]
        lefts, rights, lows = self._factors(contractions, reduction, counter, end)
        for contraction, total, left, right, low in zip(contractions, totals, lefts, rights, lows, strict=True):
            if low is not None:
                operands = (left, right, low, total.expression)
                summed = builder.call("sum", "add_dot_of_parts", operands, TileType(F32, TILE), R)
                builder.follow(total, summed.expression)
                continue
            is_bounded = contraction.left.dtype.bytes == 1 and not contraction.fast
            few_digits = LOWERING.few_digits if is_bounded else 0
            builder.follow(total, Dot(left, right, total.expression, contraction.fast, few_digits))
        builder.close_loop(counter, bounds)
        found = [Tile(total.expression, RESULT_AXES, F32) for total in totals]
        in_parts = [number for number, low in enumerate(lows) if low is not None]
        return self._with_infinities(contractions, found, in_parts, reduction, bounds) if in_parts else found

    def _factors(
        self, contractions: Sequence[Contract], reduction: KernelAxis, counter: Name, end: Expression | None
    ) -> tuple[list[Expression], list[Expression], list[Expression | None]]:
        """Writes the left and right factors of a round, of right ones in parts the first; and the second parts."""
        builder = self._builder
        self._left.set_positions(reduction, counter, end)
        lefts = [self._left.tile(contraction.left) for contraction in contractions]
        builder.forget_inside(R)  # along the other axis of a tile the same positions are other values
        self._right.set_positions(reduction, counter, end)
        parts = [right_parts(contraction) or (contraction.right, None) for contraction in contractions]
        rights = [self._right.tile(first) for first, _ in parts]
        return lefts, rights, [None if low is None else self._right.tile(low) for _, low in parts]

    def _with_infinities(
        self,
        contractions: Sequence[Contract],
        totals: Sequence[Tile],
        in_parts: Sequence[int],
        reduction: KernelAxis,
        bounds: tuple[Expression, Expression, Expression],
    ) -> list[Tile]:
        """Writes the loop of whole factors, for tiles with sums that are not finite; returns all sums."""
        builder, (first, stop, step) = self._builder, bounds
        finite: dict[int, Expression] = {}
        missing: Expression = Literal(0, I32)
        for number in in_parts:
            size = apply("abs", totals[number].expression)
            is_finite = apply("lt", size, literal(math.inf, F32))
            finite[number] = builder.hold("finite", is_finite, RESULT_AXES).expression
            count = where(finite[number], full(TILE, 0, I32), full(TILE, 1, I32))
            of_rows = Reduce((count,), "max", 1)
            missing = apply("maximum", missing, Reduce((of_rows,), "max", 0))
        needed = apply("gt", builder.let("infinite", missing, NO_AXES).expression, Literal(0, I32))
        last = builder.let("last", where(needed, stop, first), NO_AXES).expression
        counter = builder.open_loop("rstart", builder.type_of(first))
        whole = {number: builder.carry("whole", full(TILE, 0.0, F32), R) for number in in_parts}
        lefts, rights, _ = self._factors([contractions[number] for number in in_parts], reduction, counter, None)
        for number, left, right in zip(in_parts, lefts, rights, strict=True):
            operands = (left, right, whole[number].expression)
            builder.follow(
                whole[number], builder.call("whole", "add_dot_cut_off", operands, TileType(F32, TILE), R).expression
            )
        builder.close_loop(counter, (first, last, step), stages=1)
        found = list(totals)
        for number in in_parts:
            chosen = where(finite[number], totals[number].expression, whole[number].expression)
            found[number] = builder.hold("sum", chosen, RESULT_AXES)
        return found

    def _open(self, reduction: KernelAxis) -> tuple[tuple[Expression, Expression, Expression], Name]:
        """Opens the loop; returns its bounds and its counter, 32 bits wide where they are numbers."""
        counted = I32 if is_static(reduction.size) else self._dtype
        first: Expression = Literal(0, counted)
        bound = self._flat.space.params.value(reduction.size, counted)
        if self._groups is not None and self._groups.bounds is not None:
            first, bound = (converted(each, self._dtype, counted) for each in self._groups.bounds)
        counter = self._builder.open_loop("rstart", TileType(counted))
        return (first, bound, block_size("RBLOCK", counted)), counter


class _Factors:
    """Writes the tiles of the factors on one side."""

    def __init__(
        self, flat: FlatKernel, builder: Builder, width: int, order: tuple[str, str], descriptors: Descriptors
    ) -> None:
        self._flat = replace(flat, space=factor_space(flat.space, order))
        self._builder, self._dtype = builder, index_dtype(width)
        self._axes = frozenset(order)
        products = [definition for definition in flat.definitions if isinstance(definition, Contract)]
        sides = [side for d in products for side in ((d.left,) if order == LEFT else right_parts(d) or (d.right,))]
        self._padded = {side: loads for side in sides if (loads := zero_padded_loads(self._flat, side)) is not None}
        zeroed = frozenset[Scalar]().union(*self._padded.values())
        self._evaluator = ScalarValues(self._flat, builder, width, zeroed, descriptors)
        self._reductions = Reductions(self._flat, builder, self._evaluator)

    def set_positions(self, reduction: KernelAxis, counter: Expression, end: Expression | None) -> None:
        """Writes where along the reduction axis the block of a round lies, and its end if that is not the axis's."""
        counted = self._builder.type_of(counter).dtype
        self._builder.positions["rfirst"] = AxisPosition(counter)
        vector = converted(add(counter, converted(lanes("RBLOCK"), I32, counted)), counted, self._dtype)
        bound = None if end is None else converted(end, counted, self._dtype)
        write_axis_positions(self._builder, self._flat.space, reduction, vector, bound)

    def tile(self, root: Scalar) -> Expression:
        """Writes the tile of a factor, with zeros past the end of the reduction axis.

        Rows and columns past the end hold anything, as what they come to is never stored.
        """
        tile = self._evaluator.tile(root)
        fill = None if root in self._padded else 0.0
        return self._reductions.full(tile, self._axes, fill).expression
