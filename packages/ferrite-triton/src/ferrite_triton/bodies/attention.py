"""Attention: a program has a block of rows of scores, and makes the columns of these scores block by block.

    along r:   scores = left [y, d] x right [d, r]      weights [y, r]      result [y, x] += weights x factor [r, x]

Of a softmax it keeps the maximum of each row so far and the sum of powers relative to it; where the maximum grows, what
was summed up before is scaled down (Dao and others, "FlashAttention", 2022). Powers are those of two, and the constant
that weights are multiplied by, ``log2(e)`` and the scale of scores, is multiplied with where they become powers.

Where there are lists of blocks, a program goes through its own: first those in which the mask has a say, then those in
which everything counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ferrite_ir.language.attend import Attend, BlockList
from ferrite_ir.language.dtypes import F16, F32, I32, DType
from ferrite_ir.language.scalar import Scalar, load
from ferrite_ir.language.sizes import is_static
from ferrite_triton.analysis.attention_space import FIRST_ROW, attend_of, inner_names
from ferrite_triton.analysis.attention_weights import grows_with_rows, is_moderate
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.space import NO_AXES, Axes, KernelAxis, flat_dim
from ferrite_triton.bodies.builder import AxisPosition, Builder, Tile
from ferrite_triton.bodies.indices import index_dtype
from ferrite_triton.bodies.positions import QUARTET, number_quartets, positions_from, write_axis_positions
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.tile.build import (
    add,
    all_of,
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
    Broadcast,
    Cast,
    Dot,
    Expression,
    Literal,
    ProgramId,
    Reduce,
    TileType,
    Transpose,
)

RESULT: Axes = frozenset("yx")
ROWS: Axes = frozenset("y")
INSIDE: Axes = frozenset("r")
"""What is another value in each round of a loop, though it be one number, is computed there."""
LOG2_E = math.log2(math.e)


def place_rows(builder: Builder, flat: FlatKernel, dtype: DType) -> None:
    """Writes which rows of which point of the batch a program has; ``dtype`` is that of addresses."""
    space = flat.space
    rows, columns, batch = space.axis("y"), space.axis("x"), space.axis("z")
    assert rows is not None, "attention has rows"
    assert columns is not None, "attention has columns"
    assert space.reduction is not None, "attention goes along an axis"
    program: Expression = converted(ProgramId(0), I32, dtype)
    number: Expression = literal(0, dtype)
    if not rows.is_whole:
        block = block_size(rows.constant, dtype)
        count = quotient(sub(add(space.params.value(rows.size, dtype), block), Literal(1, dtype)), block)
        number = program
        if batch is not None:
            program = builder.let("program", program, NO_AXES).expression
            count = builder.let("yblocks", count, NO_AXES).expression
            number, program = remainder(program, count), quotient(program, count)
        if grows_with_rows(_definition(flat), flat_dim(rows), flat_dim(space.reduction)):
            number = sub(sub(count, Literal(1, dtype)), number)
    if batch is not None:
        builder.positions["z"] = AxisPosition(builder.let("z", program, NO_AXES).expression)
    first = builder.let(FIRST_ROW, mul(number, block_size(rows.constant, dtype)), NO_AXES).expression
    builder.positions[FIRST_ROW] = AxisPosition(first)
    write_axis_positions(builder, space, rows, positions_from(first, rows.constant, dtype))
    write_axis_positions(builder, space, columns, converted(lanes(columns.constant), I32, dtype))


@dataclass(frozen=True, slots=True)
class _State:
    """What a loop carries: sums, and of a softmax the maximum of each row and the sum of powers relative to it."""

    sums: tuple[Tile, ...]
    highest: Tile | None = None
    total: Tile | None = None


class AttentionRows:
    """Writes the loops of a program of attention."""

    def __init__(self, flat: FlatKernel, builder: Builder, width: int) -> None:
        self._flat, self._builder, self._width, self._dtype = flat, builder, width, index_dtype(width)
        self._attend = _definition(flat)
        self._names = inner_names(attend_of(flat.kernel))
        depths = dict.fromkeys(self._names[product.depth] for product in self._attend.products)
        self._depths = tuple(name for name in depths if name != "x")
        self._weights = self._over(("y", "r"))
        # What is a factor of products over columns, too, is loaded as a factor of weights.
        self._twice = tuple(p.right for p in self._attend.products if self._names[p.depth] == "x")
        self._factors = self._over(("r", "x"), (*self._attend.factors, *self._twice))
        self._lists = self._over(())
        # Weights without the constants that all of them are multiplied by; of a softmax, in units of powers of two.
        pairs = [self._without_unit(number) for number in range(len(self._attend.weights))]
        self._weighed, self._units = zip(*pairs, strict=True)
        self._is_moderate = all(is_moderate(weight, self._attend.names) for weight in self._weighed)

    def _over(self, order: tuple[str, ...], zeroed: Sequence[Scalar] = ()) -> ScalarValues:
        """Returns what evaluates expressions with tiles of these axes; ``zeroed`` ones give zero past their ends."""
        flat = replace(self._flat, space=replace(self._flat.space, order=order))
        return ScalarValues(flat, self._builder, self._width, frozenset(root for root in zeroed if root.op == "load"))

    def write(self) -> tuple[Attend, tuple[Tile, ...]]:
        """Writes everything up to the results; returns what they are results of, and their tiles, in f32."""
        attend, builder = self._attend, self._builder
        lefts = [self._left(number) for number in range(len(attend.products))]
        # Along the other axis of a tile the same positions are other values.
        builder.forget(frozenset(self._depths))
        for name in self._depths:
            self._place_depth(name, (name, "r"))
        state = self._initial()
        if attend.blocks is None:
            state = self._loop_over_all(lefts, state)
        else:
            for number, each in enumerate(attend.blocks.lists):
                state = self._loop_over_list(each, lefts, state, mask=attend.mask if number == 0 else None)
        return attend, self._results(state)

    def _without_unit(self, number: int) -> tuple[Scalar, float]:
        """Returns a weight as the product of what is left of it and a number that the results are multiplied by.

        A maximum is one of what is left only if that number is positive. Weights of a softmax are rounded as powers,
        others without it: in f16, where they may become infinite so, they keep it.
        """
        weight, is_softmax = self._attend.weights[number], self._attend.is_softmax
        least = LOG2_E if is_softmax else 1.0
        if weight.op == "mul" and (is_softmax or self._attend.factors[number].dtype is not F16):
            for position in range(2):
                factor, other = weight.args[position], weight.args[1 - position]
                if factor.op == "const" and math.isfinite(factor.value) and (factor.value > 0 or not is_softmax):
                    return other, factor.value * least
        return weight, least

    # --- factors ----------------------------------------------------------------------------------------------------

    def _left(self, number: int) -> Expression:
        product = self._attend.products[number]
        name = self._names[product.depth]
        if name != "x":
            self._place_depth(name, ("y", name))
        return self._tile(self._over(("y", name), (product.left,)), product.left, ("y", name), NO_AXES)

    def _right(self, number: int, twice: Mapping[Scalar, Expression]) -> Expression:
        """Writes the tile of a right factor; ``twice`` has those that are factors of weights, too."""
        product = self._attend.products[number]
        if product.right in twice:
            return Transpose(twice[product.right], (1, 0))
        name = self._names[product.depth]
        return self._tile(self._over((name, "r"), (product.right,)), product.right, (name, "r"), INSIDE)

    def _place_depth(self, name: str, order: tuple[str, str]) -> None:
        space = replace(self._flat.space, order=order)
        axis = space.axis(name)
        assert axis is not None, "products are summed over axes of the kernel"
        write_axis_positions(self._builder, space, axis, converted(lanes(axis.constant), I32, self._dtype))

    def _tile(self, values: ScalarValues, root: Scalar, order: tuple[str, str], level: Axes) -> Expression:
        """Writes the whole tile of a factor, with zeros past the ends of its axes."""
        builder, space = self._builder, self._flat.space
        tile, axes = values.tile(root), frozenset(order)
        made: Expression = tile.expression
        if tile.axes & axes != axes:
            shape = tuple(Block(f"{name.upper()}BLOCK") for name in order)
            made = Broadcast(made, shape) if tile.axes & axes else full(shape, 0.0, root.dtype)
            made = made if tile.axes & axes else add(made, tile.expression)
        if root.op != "load" or tile.axes & axes != axes:
            masks = [builder.mask(name) for name in order if (axis := space.axis(name)) is not None and axis.masked]
            inside = all_of(mask for mask in masks if mask is not None)
            made = made if inside is None else where(inside, made, literal(0.0, root.dtype))
        return made if made == tile.expression else builder.hold("factor", made, axes | level).expression

    # --- loops ------------------------------------------------------------------------------------------------------

    def _initial(self) -> _State:
        rows, tile = (Block("YBLOCK"), 1), (Block("YBLOCK"), Block("XBLOCK"))
        sums = tuple(self._builder.hold("none", full(tile, 0.0, F32), RESULT) for _ in self._attend.factors)
        if not self._attend.is_softmax:
            return _State(sums)
        highest = self._builder.hold("lowest", full(rows, -math.inf, F32), ROWS)
        return _State(sums, highest, self._builder.hold("none", full(rows, 0.0, F32), ROWS))

    def _loop_over_all(self, lefts: Sequence[Expression], state: _State) -> _State:
        axis = self._points()
        counted = I32 if is_static(axis.size) else self._dtype
        bound = self._flat.space.params.value(axis.size, counted)
        counter = self._builder.open_loop("rstart", TileType(counted))
        carried = self._carried(state)
        self._round(lefts, carried, converted(counter, counted, self._dtype), self._attend.mask)
        self._builder.close_loop(counter, (literal(0, counted), bound, block_size("RBLOCK", counted)))
        return carried

    def _loop_over_list(
        self, listed: BlockList, lefts: Sequence[Expression], state: _State, mask: Scalar | None
    ) -> _State:
        """Writes a loop over the blocks of a list.

        Where a block lies is read in the round before, or nothing could be loaded ahead of what is computed.
        """
        builder, blocks = self._builder, self._attend.blocks
        assert blocks is not None, "lists are of blocks"
        count = self._lists.tile(listed.count)
        each = quotient(literal(blocks.columns, I32), block_size("RBLOCK", I32))
        number = converted(count.expression, count.dtype, I32)
        bound = builder.hold("rounds", mul(number, each), NO_AXES).expression
        slots = frozenset((self._names[listed.slot],))
        first = self._listed(listed, literal(0, I32))
        builder.forget(slots)
        counter = builder.open_loop("round", TileType(I32), slots | INSIDE)
        carried = self._carried(state)
        block = builder.carry("block", first.expression, NO_AXES)
        inside = mul(remainder(counter, each), block_size("RBLOCK", I32))
        start = add(
            mul(converted(block.expression, block.dtype, self._dtype), literal(blocks.columns, self._dtype)),
            converted(inside, I32, self._dtype),
        )
        self._round(lefts, carried, builder.hold("rstart", start, INSIDE).expression, mask)
        following: Expression = add(counter, literal(1, I32))
        following = where(apply("lt", following, bound), following, literal(0, I32))  # the last one reads anything
        builder.follow(block, self._listed(listed, quotient(following, each)).expression)
        builder.close_loop(counter, (literal(0, I32), bound, literal(1, I32)))
        return carried

    def _listed(self, listed: BlockList, slot: Expression) -> Tile:
        """Writes the number of the block at a position of a list."""
        name = self._names[listed.slot]
        at = self._builder.hold("slot", converted(slot, I32, self._dtype), frozenset((name,)))
        self._builder.positions[name] = AxisPosition(at.expression)
        return self._lists.tile(listed.position)

    def _carried(self, state: _State) -> _State:
        """Returns what a loop carries, which begins as it was before."""

        def carry(tile: Tile | None, prefix: str) -> Tile | None:
            return None if tile is None else self._builder.carry(prefix, tile.expression, tile.axes)

        sums = tuple(self._builder.carry("sum", tile.expression, RESULT) for tile in state.sums)
        return _State(sums, carry(state.highest, "highest"), carry(state.total, "total"))

    def _points(self) -> KernelAxis:
        axis = self._flat.space.reduction
        assert axis is not None, "attention goes along an axis"
        return axis

    def _place_points(self, order: tuple[str, str], start: Expression) -> None:
        """Writes the positions of a round along one of the axes of a tile; along the other they are other values."""
        builder, axis, space = self._builder, self._points(), replace(self._flat.space, order=order)
        builder.forget_inside(INSIDE)
        write_axis_positions(builder, space, axis, positions_from(start, "RBLOCK", self._dtype))
        if order[-1] == axis.name:
            number_quartets(builder, space, axis, quotient(start, literal(QUARTET, self._dtype)))

    def _round(self, lefts: Sequence[Expression], carried: _State, start: Expression, mask: Scalar | None) -> None:
        """Writes one round of a loop: the scores from ``start`` on, and what they add."""
        builder, axis = self._builder, self._points()
        twice: dict[Scalar, Expression] = {}
        if self._twice:
            self._place_points(("r", "x"), start)
            twice = {root: self._tile(self._factors, root, ("r", "x"), INSIDE) for root in self._twice}
        self._place_points(("y", "r"), start)
        shape = (Block("YBLOCK"), Block("RBLOCK"))
        axes = frozenset("yr")
        for number, product in enumerate(self._attend.products):
            sums = Dot(lefts[number], self._right(number, twice), full(shape, 0.0, F32))
            tile = builder.hold(product.name, sums, axes)
            self._weights.know(load(product.name, (), F32), tile)
        found = [self._weight(weight, mask, axis) for weight in self._weighed]
        scale = None if self._attend.scale is None else self._weights.tile(self._attend.scale).expression
        if not twice:
            self._place_points(("r", "x"), start)
        factors = [
            twice[factor] if factor in twice else self._tile(self._factors, factor, ("r", "x"), INSIDE)
            for factor in self._attend.factors
        ]
        if carried.highest is None or carried.total is None:
            for total, weight, factor, body in zip(carried.sums, found, factors, self._attend.factors, strict=True):
                builder.follow(total, Dot(_narrowed(weight, body.dtype), factor, total.expression))
            return
        self._add_powers(carried, carried.highest, carried.total, found[0], factors[0], scale)

    def _weight(self, root: Scalar, mask: Scalar | None, axis: KernelAxis) -> Expression:
        """Writes a tile of weights: where they do not count, what changes nothing."""
        builder, axes = self._builder, frozenset("yr")
        tile = self._weights.tile(root)
        conditions = [] if mask is None else [self._weights.tile(mask).expression]
        inside = builder.mask("r") if axis.masked else None
        conditions += [] if inside is None else [inside]
        allowed = all_of(conditions)
        made: Expression = tile.expression
        if tile.axes & axes != axes:
            made = add(made, full((Block("YBLOCK"), Block("RBLOCK")), 0.0, F32))
        if allowed is not None:
            made = where(allowed, made, literal(-math.inf if self._attend.is_softmax else 0.0, F32))
        return made if made == tile.expression else builder.hold("weight", made, axes).expression

    def _add_powers(
        self,
        carried: _State,
        highest: Tile,
        total: Tile,
        weight: Expression,
        factor: Expression,
        share_scale: Expression | None,
    ) -> None:
        """Writes how a round changes the state of a softmax; what scales shares is no part of what they are shares of.

        The maximum of a row is that of its weights without their unit, so that a power takes one multiply-add. Where
        the unit may take a weight out of the range of f32, as one that hides a key without being infinite, the maximum
        is taken off before.
        """
        builder, axes, unit = self._builder, frozenset("yr"), literal(self._units[0], F32)
        row = ROWS | INSIDE
        top = builder.hold("top", Reduce((weight,), "max", 1, keep=True), row).expression
        new = builder.hold("highest", apply("maximum", highest.expression, top), row).expression
        is_empty = apply("eq", new, literal(-math.inf, F32))
        base = builder.hold("base", where(is_empty, literal(0.0, F32), new), row).expression
        if self._is_moderate:
            base = builder.hold("base", mul(base, unit), row).expression

        def relative(value: Expression) -> Expression:
            return sub(mul(value, unit), base) if self._is_moderate else mul(sub(value, base), unit)

        power = builder.hold("power", apply("exp2", relative(weight)), axes).expression
        scale = builder.hold("scale", apply("exp2", relative(highest.expression)), row).expression
        added = builder.hold("added", Reduce((power,), "sum", 1, keep=True), row).expression
        scaled = builder.hold("scaled", mul(carried.sums[0].expression, scale), RESULT | INSIDE).expression
        power = power if share_scale is None else builder.hold("scaled", mul(power, share_scale), axes).expression
        narrow = _narrowed(power, self._attend.factors[0].dtype)
        builder.follow(carried.sums[0], Dot(narrow, factor, scaled))
        builder.follow(total, add(mul(total.expression, scale), added))
        builder.follow(highest, new)

    def _scaled(self, total: Tile, unit: float) -> Tile:
        if unit == 1.0:
            return total
        return self._builder.hold("scaled", mul(total.expression, literal(unit, F32)), RESULT)

    def _results(self, state: _State) -> tuple[Tile, ...]:
        builder = self._builder
        if state.highest is None or state.total is None:
            return tuple(map(self._scaled, state.sums, self._units))
        total, highest = state.total.expression, state.highest.expression
        is_empty = apply("eq", total, literal(0.0, F32))
        safe = builder.hold("safe", where(is_empty, literal(1.0, F32), total), ROWS).expression
        inverse = builder.hold("inverse", apply("div", literal(1.0, F32), safe), ROWS).expression
        made = builder.hold("share", mul(state.sums[0].expression, inverse), RESULT)
        found = [made]
        highest = builder.hold("highest", mul(highest, literal(self._units[0], F32)), ROWS).expression
        if len(self._attend.results) > 1:
            found.append(builder.hold("power", add(highest, apply("log2", safe)), ROWS))
        if len(self._attend.results) > 2:
            found.append(Tile(highest, ROWS, F32))
        return tuple(found)


def _definition(flat: FlatKernel) -> Attend:
    """Returns the attention of a kernel, over flat positions."""
    return next(definition for definition in flat.definitions if isinstance(definition, Attend))


def _narrowed(value: Expression, dtype: DType) -> Expression:
    return value if dtype is F32 else Cast(value, dtype)
