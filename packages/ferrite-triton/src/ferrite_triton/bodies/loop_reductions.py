"""Reductions block by block: each lane combines what it sees, and one operation after the loop combines the lanes."""

from __future__ import annotations

import math
from collections.abc import Callable

from ferrite_ir.language.dtypes import F32, I32, DType
from ferrite_ir.language.graph import Reduction
from ferrite_ir.language.scalar import Number
from ferrite_triton.analysis.lane_groups import Grouping, TakenApart, grouping
from ferrite_triton.analysis.rows import behind
from ferrite_triton.analysis.space import NO_AXES, Axes
from ferrite_triton.bodies.builder import Tile
from ferrite_triton.bodies.reductions import PAIRED, R, Reductions, X, step
from ferrite_triton.tile.build import (
    add,
    apply,
    block_size,
    both,
    converted,
    either,
    full,
    lanes,
    literal,
    mul,
    neutral_of,
    quotient,
    sub,
    where,
)
from ferrite_triton.tile.language import Call, Cast, Expression, Literal, Reduce


class LoopReductions(Reductions):
    """Writes the reductions of one kernel, those inside of loops included.

    `open` begins a reduction inside a loop; what it returns ends the reduction when it is called after the loop, and
    gives one tile per result, as `write` does.
    """

    def open(self, definition: Reduction) -> Callable[[], tuple[Tile, ...]]:
        """Writes the part of a reduction inside the open loop; returns what writes the part after it."""
        tiles, axes = self.operands(definition)
        match definition.combine:
            case "argmax" | "argmin":
                finish = self._open_paired(definition, tiles, axes)
            case "welford" if len(tiles) == 1 and (groups := grouping(self._flat, definition)).count > 1:
                finish = self._open_grouped_moments(tiles[0], axes, groups)
            case "welford" if len(tiles) == 1:
                finish = self._open_moments(tiles[0], axes)
            case "welford":
                finish = self._open_merged_moments(tiles, axes)
            case "online_softmax" if len(tiles) == 1 and (groups := grouping(self._flat, definition)).count > 1:
                finish = self._open_grouped_softmax(tiles[0], axes, groups)
            case "online_softmax":
                finish = self._open_softmax(tiles, axes)
            case name:
                finish = self._open_simple(name, tiles[0], axes, self._fill(definition, tiles[0].dtype))
        return lambda: self._restore(definition, finish())

    def open_columns(self, definition: Reduction) -> Callable[[], tuple[Tile, ...]]:
        """Writes the part of a reduction over rows inside the open loop; returns what writes the rest after it."""
        tiles, axes = self.operands(definition)
        combine, axes, dtype = definition.combine, axes | X, tiles[0].dtype
        identity = neutral_of(combine, dtype)
        lanes = self.accumulator(combine, axes, identity, dtype)
        new = self.spread(tiles[0], axes)
        rows = self._space.axis("x")
        mask = self._builder.mask("x") if rows is not None and rows.masked else None
        if mask is not None:
            new = where(mask, new, literal(identity, dtype))
        self.follow(lanes, step(combine, lanes.expression, new))

        def finish() -> tuple[Tile, ...]:
            total = self.along(X, combine, lanes.expression, axes - X)
            return self._restore(definition, (self.hold(combine, total, axes - X),))

        return finish

    def _open_simple(self, combine: str, tile: Tile, axes: Axes, fill: Number | None) -> Callable[[], tuple[Tile, ...]]:
        dtype = tile.dtype
        lanes = self.accumulator(combine, axes, neutral_of(combine, dtype), dtype)
        self.follow(lanes, step(combine, lanes.expression, self.spread(tile, axes, fill)))
        return lambda: (self.reduce(combine, combine, lanes.expression, axes),)

    def _open_paired(
        self, definition: Reduction, tiles: tuple[Tile, ...], axes: Axes
    ) -> Callable[[], tuple[Tile, ...]]:
        combine = definition.combine
        value, index = tiles
        worst = neutral_of(PAIRED[combine], value.dtype)
        fills = worst, index.dtype.highest
        first = self._first_positions(definition, index)
        best = self.accumulator("lane", axes, worst, value.dtype)
        if first is None:
            where_ = self.accumulator("lane", axes, fills[1], index.dtype)
        else:
            initial = add(full(self._space.shape(axes), 0, index.dtype), first)
            where_ = self._builder.carry("lane", initial, axes)
        lanes = (best, where_)
        new = tuple(self._lane(tile, axes, fill) for tile, fill in zip(tiles, fills, strict=True))
        if first is None:
            operands = (*(lane.expression for lane in lanes), *new)
            function = f"{combine}_nan"
            kinds = tuple(self._builder.type_of(lane.expression) for lane in lanes)
            for lane, found in zip(
                lanes, self._builder.hold_all(("best", "at"), Call(function, operands, kinds), axes), strict=True
            ):
                self.follow(lane, found.expression)
        else:
            # A lane sees its positions in order, so that of equals the one it has is the first.
            self._keep_better(combine, lanes, new, axes)
        reduced = Reduce(tuple(lane.expression for lane in lanes), combine, self._space.reduction_position, self.keep)
        return lambda: tuple(map(self._without_extents, self._builder.hold_all((combine, "at"), reduced, axes - R)))

    def _without_extents(self, tile: Tile) -> Tile:
        """Returns a tile as a scalar where it varies along no axis that tiles have."""
        if not self.keep or self._space.tiled(tile.axes):
            return tile
        return self.hold("extreme", self.along(NO_AXES, "max", tile.expression, tile.axes), tile.axes)

    def _keep_better(self, combine: str, lanes: tuple[Tile, Tile], new: tuple[Expression, ...], axes: Axes) -> None:
        """Writes the update of lanes of (value, position) that meet their positions in order."""
        held = lanes[0].expression
        better: Expression = apply("gt" if combine == "argmax" else "lt", new[0], held)
        if lanes[0].dtype.is_float:
            better = either(better, both(apply("ne", new[0], new[0]), apply("eq", held, held)))
        moves = self.hold("moves", better, axes).expression
        for lane, value in zip(lanes, new, strict=True):
            self.follow(lane, where(moves, value, lane.expression))

    def _first_positions(self, definition: Reduction, index: Tile) -> Expression | None:
        """Returns the positions of the first block, or None where the index is no position along the reduction axis."""
        node = definition.bodies[1]
        rest = behind(node.args[0]) if node.op == "index" else None
        if rest is None:
            return None
        base = self._evaluator.offset(rest)
        first: Expression = self._space.expand("r", lanes("RBLOCK"))
        if base.literal != 0:
            first = add(converted(first, I32, base.dtype), base.expression)
        found = I32 if base.literal == 0 else base.dtype
        return converted(first, found, index.dtype)

    def _open_moments(self, tile: Tile, axes: Axes) -> Callable[[], tuple[Tile, ...]]:
        # Source: Welford, "Note on a method for calculating corrected sums of squares and products" (1962).
        # All lanes count alike until the last block, so the count is one scalar of the loop.
        dtype = tile.dtype
        mean, m2 = (self.accumulator(prefix, axes, 0.0, dtype) for prefix in ("mean", "m2"))
        count = self.accumulator("count", NO_AXES, 0.0, dtype)
        counted = self.hold("count", add(count.expression, literal(1.0, dtype)), R).expression
        self.follow(count, counted)
        value = self.full(tile, axes).expression
        delta = self.hold("delta", sub(value, mean.expression), axes).expression
        share = apply("div_fast", literal(1.0, dtype), counted)
        moved = self.hold("moved", add(mean.expression, mul(delta, share)), axes)
        grown = Tile(add(m2.expression, mul(delta, sub(value, moved.expression))), axes, dtype)
        self.follow(m2, self._unless_past(grown, m2))
        self.follow(mean, self._unless_past(moved, mean))

        def finish() -> tuple[Tile, ...]:
            weight = self.hold("weight", self._lane_counts(dtype), R)
            middle, squares = self._merged_lanes((mean.expression, m2.expression, weight.expression), axes, dtype)
            return middle, squares, Tile(self._count(dtype), NO_AXES, dtype)

        return finish

    def _unless_past(self, moved: Tile, kept: Tile) -> Expression:
        """Returns a new value, but the old one in lanes past the end of the reduction axis."""
        return moved.expression if self._mask is None else where(self._mask, moved.expression, kept.expression)

    def _lane_counts(self, dtype: DType) -> Expression:
        """Returns how many points of the reduction axis each lane has seen."""
        index = self._evaluator.index_dtype
        block, one = block_size("RBLOCK", index), Literal(1, index)
        lane = converted(self._space.expand("r", lanes("RBLOCK")), I32, index)
        size = self._space.params.value(self._size, index)
        return Cast(quotient(sub(sub(add(size, block), one), lane), block), dtype)

    def _open_merged_moments(self, tiles: tuple[Tile, ...], axes: Axes) -> Callable[[], tuple[Tile, ...]]:
        dtype = tiles[0].dtype
        states = tuple(self.accumulator(prefix, axes, 0.0, dtype) for prefix in ("mean", "m2", "weight"))
        old = tuple(state.expression for state in states)
        new = tuple(self._lane(tile, axes, 0.0) for tile in tiles)
        self._follow_call("welford", states, (*old, *new), axes)
        return lambda: self._merged_moments((old[0], old[1], old[2]), axes)

    def _follow_call(
        self, function: str, states: tuple[Tile, ...], operands: tuple[Expression, ...], axes: Axes
    ) -> None:
        """Says that states are what a device function makes of operands after a round."""
        kinds = tuple(self._builder.type_of(state.expression) for state in states)
        found = self._builder.hold_all([function] * len(states), Call(function, operands, kinds), axes)
        for state, tile in zip(states, found, strict=True):
            self.follow(state, tile.expression)

    def _open_grouped_moments(self, tile: Tile, axes: Axes, groups: Grouping) -> Callable[[], tuple[Tile, ...]]:
        """Writes moments that take in, at each step, those of all points that a thread holds: two sums of them.

        Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
        (1979).
        """
        dtype, apart, size = tile.dtype, TakenApart.of(self._space, axes, groups), groups.count
        mean, m2 = (self._builder.carry(prefix, full(apart.states, 0.0, dtype), axes) for prefix in ("mean", "m2"))
        count = self.accumulator("count", NO_AXES, 0.0, dtype)
        group = self.hold("group", apart.group(self.full(tile, axes).expression), axes).expression
        own = self.hold("own", mul(apart.reduced(group, "sum"), literal(1.0 / size, dtype)), axes).expression
        delta = self.hold("delta", sub(group, apart.spread(own)), axes).expression
        squares = self.hold("squares", apart.reduced(mul(delta, delta), "sum"), axes).expression
        moved = self.hold("moved", sub(own, mean.expression), axes).expression
        many = literal(float(size), dtype)
        grown = add(count.expression, many)
        share = self.hold("share", apply("div_fast", many, grown), R).expression
        scale = mul(count.expression, share)
        self.follow(m2, add(add(m2.expression, squares), mul(mul(moved, moved), scale)))
        self.follow(mean, add(mean.expression, mul(moved, share)))
        self.follow(count, grown)

        def finish() -> tuple[Tile, ...]:
            states = (mean.expression, m2.expression, count.expression)
            return (*self._merged_lanes(states, axes, dtype), Tile(self._count(dtype), NO_AXES, dtype))

        return finish

    def _open_softmax(self, tiles: tuple[Tile, ...], axes: Axes) -> Callable[[], tuple[Tile, ...]]:
        dtype = tiles[0].dtype
        top = self.accumulator("max", axes, -math.inf, dtype)
        mass = self.accumulator("sumexp", axes, 0.0, dtype)
        new = self._lane(tiles[0], axes, -math.inf)
        highest, total = top.expression, mass.expression
        if len(tiles) == 1:
            # One exponential per element, of its distance to the maximum so far: the new term, or the old sum's scale.
            one = literal(1.0, dtype)
            distance = apply("exp", apply("neg", apply("abs", sub(new, highest))))
            scale = self.hold("scale", where(apply("eq", new, highest), one, distance), axes).expression
            rescaled, added = add(mul(total, scale), one), add(total, scale)
            self.follow(mass, where(apply("gt", new, highest), rescaled, added))
            self.follow(top, apply("maximum", highest, new))
        else:
            weight = self._lane(tiles[1], axes, 0.0)
            self._follow_call("online_softmax", (top, mass), (highest, total, new, weight), axes)
        return lambda: self._softmax(highest, total, axes)

    def _open_grouped_softmax(self, tile: Tile, axes: Axes, groups: Grouping) -> Callable[[], tuple[Tile, ...]]:
        """Writes a running maximum and sum for the points that a thread holds: one more exponential for each group."""
        dtype = tile.dtype
        apart = TakenApart.of(self._space, axes, groups)
        top = self._builder.carry("max", full(apart.states, -math.inf, dtype), axes)
        mass = self._builder.carry("sumexp", full(apart.states, 0.0, dtype), axes)
        group = self.hold("group", apart.group(self._lane(tile, axes, -math.inf)), axes).expression
        highest = apart.reduced(group, "max")
        moved = self.hold("moved", apply("maximum", top.expression, highest), axes).expression
        is_lowest = apply("eq", moved, literal(-math.inf, dtype))
        safe = self.hold("safe", where(is_lowest, literal(0.0, dtype), moved), axes).expression
        # The fast function is off by so many roundings as the distance is long, and its result counts so much the less.
        exponential = "exp_fast" if dtype is F32 else "exp"
        terms = self.hold("exp", apply(exponential, sub(group, apart.spread(safe))), axes).expression
        rescaled = mul(mass.expression, apply(exponential, sub(top.expression, safe)))
        self.follow(mass, add(rescaled, apart.reduced(terms, "sum")))
        self.follow(top, moved)
        return lambda: self._softmax(top.expression, mass.expression, axes)
