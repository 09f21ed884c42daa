"""Reductions of one tile that holds the whole reduction axis: each is one operation of the tile.

Lanes past the end hold the identity of the combine. What goes over the axis block by block is in `loop_reductions`.
"""

from __future__ import annotations

import math

from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.dtypes import BOOL, F32, I8, DType
from ferrite_ir.language.graph import Reduction
from ferrite_ir.language.scalar import Number
from ferrite_ir.language.sizes import Size, is_static, product
from ferrite_scheduler.model.forms import PersistentReduction
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.neutral_padding import padded_sums
from ferrite_triton.analysis.packed_residency import rounds_all_stores
from ferrite_triton.analysis.space import NO_AXES, REDUCTION_AXES, Axes, KernelAxis
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.tile.build import add, apply, either, full, literal, mul, neutral_of, sub, where
from ferrite_triton.tile.language import Broadcast, Cast, Expression, Full, Name, Reduce

R: Axes = frozenset("r")
X: Axes = frozenset("x")


class Reductions:
    """Writes the reductions of one kernel that are in no loop: `write` gives one tile per result."""

    def __init__(self, flat: FlatKernel, builder: Builder, evaluator: ScalarValues) -> None:
        self._flat = flat
        self._space = flat.space
        self._builder = builder
        self._evaluator = evaluator
        # What the reduction being written combines: the reduction axis, with its blocks where it is cut into blocks.
        self._over = R
        self._padded_sums = padded_sums(flat).keys()
        # By the name of a softmax's maximum its terms, for whom these are kept.
        self.terms: dict[str, Tile] = {}

    @property
    def _block_length(self) -> int:
        """Returns the length of the blocks that some reductions combine, each by itself; 0 without such."""
        form = self._space.form
        return form.block_length if isinstance(form, PersistentReduction) else 0

    # --- operands ---------------------------------------------------------------------------------------------------

    @property
    def _masked(self) -> KernelAxis | None:
        """Returns the reduced axis along which tiles reach past the end, or None."""
        return next((axis for axis in self._space.axes if axis.name in self._over and axis.masked), None)

    @property
    def _mask(self) -> Expression | None:
        return None if self._masked is None else self._builder.mask(self._masked.name)

    @property
    def is_masked(self) -> bool:
        """Returns whether some lanes may lie past the end of the reduction axis."""
        return self._mask is not None

    @property
    def _size(self) -> Size:
        return product(axis.size for axis in self._space.axes if axis.name in self._over)

    def _count(self, dtype: DType) -> Expression:
        """Returns the number of points of the reduction axis as a float."""
        if is_static(self._size):
            return literal(self._size, dtype)
        return Cast(self._space.params.value(self._size, self._evaluator.index_dtype), dtype)

    def _over_count(self, total: Expression, dtype: DType) -> Expression:
        """Returns the quotient of a total and the number of points."""
        return apply("div", total, self._count(dtype))

    def param_text(self, name: str) -> str:
        """Returns the name of the parameter through which a value is read."""
        return self._flat.param_of(name).text

    def hold(self, prefix: str, expression: Expression, axes: Axes) -> Tile:
        """Returns the named value of an expression."""
        return self._builder.hold(prefix, expression, axes)

    def spread(self, tile: Tile, axes: Axes, fill: Number | None = None) -> Expression:
        """Returns a tile of full extent along ``axes``; lanes past the end of the reduction hold ``fill``, if given."""
        mask = None if fill is None else self._mask
        value = tile.expression
        if tile.literal is not None:
            value = Full(value, self._space.shape(axes))
            return value if mask is None or fill is None else where(mask, value, literal(fill, tile.dtype))
        masked = None if fill is None else self._masked
        if mask is not None and fill is not None:
            value = where(mask, value, literal(fill, tile.dtype))
        extents = self._space.tiled(tile.axes if masked is None else tile.axes | {masked.name})
        return value if extents == self._space.tiled(axes) else Broadcast(value, self._space.shape(axes))

    def reduce(self, combine: str, prefix: str, value: Expression, axes: Axes) -> Tile:
        """Returns the reduction of a tile along the reduction axis; the result varies along the other axes."""
        left = axes - self._over
        expression = self.along(self._over, combine, value, left)
        key = ("reduction", expression)
        known = self._builder.find(key)
        return known or self._builder.remember(key, self.hold(prefix, expression, left))

    def along(self, over: Axes, combine: str, value: Expression, left: Axes) -> Expression:
        """Returns what a tile combines to along some axes: of the kernel's rank, or a scalar.

        It is a scalar where it varies along no axis that tiles have (``left``). Then the axes of extent 1 go as well.
        """
        keep = bool(self._space.tiled(left))
        for position, name in reversed(tuple(enumerate(self._space.order))):
            if name in over or not keep:
                value = Reduce((value,), combine, position, keep)
        return value

    @property
    def keep(self) -> bool:
        """Returns whether a reduction keeps the reduced extent as 1: where tiles have other extents."""
        return len(self._space.order) > 1

    def total(self, prefix: str, value: Expression, axes: Axes) -> Tile:
        """Returns the sum of a tile along the reduction axis."""
        return self.reduce("sum", prefix, value, axes)

    def accumulator(self, prefix: str, axes: Axes, initial: Number, dtype: DType) -> Tile:
        """Returns a value that the open loop carries, and what it begins with."""
        return self._builder.carry(prefix, full(self._space.shape(axes), initial, dtype), axes)

    def carry(self, axes: Axes, initial: Number, dtype: DType) -> Tile:
        """Returns a value that a loop carries from scan to scan of tiles: of their rank, unlike other scalars."""
        if self._space.tiled(axes) or not self.keep:
            return self.accumulator("carry", axes, initial, dtype)
        return self._builder.carry("carry", full((1,) * len(self._space.order), initial, dtype), axes)

    def follow(self, tile: Tile, expression: Expression) -> None:
        """Says what such a value is after a round."""
        self._builder.follow(tile, expression)

    def operands(self, definition: Reduction) -> tuple[tuple[Tile, ...], Axes]:
        """Returns the operands in the types they are combined in, and the axes of the tile that holds them."""
        position = self._evaluator.position if definition.combine in PAIRED else self._evaluator.tile
        tiles = (self._evaluator.tile(definition.bodies[0]), *map(position, definition.bodies[1:]))
        widened = tuple(self._widen(definition.combine, tile) for tile in tiles)
        return widened, self._over.union(*(tile.axes for tile in tiles))

    def _widen(self, combine: str, tile: Tile) -> Tile:
        if tile.literal is not None:
            return tile
        if tile.dtype.is_narrow_float:
            return self.hold("cast", Cast(tile.expression, F32), tile.axes)
        if tile.dtype is BOOL and combine in PAIRED:
            return self.hold("cast", Cast(tile.expression, I8), tile.axes)
        return tile

    def _restore(self, definition: Reduction, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        """Returns the results in the types that the definition gives them."""
        wanted = COMBINES[definition.combine].result_types(tuple(body.dtype for body in definition.bodies))
        return tuple(self.converted(tile, dtype) for tile, dtype in zip(tiles, wanted, strict=True))

    def converted(self, tile: Tile, dtype: DType) -> Tile:
        """Returns a tile in another type."""
        if tile.dtype is dtype or tile.literal is not None:
            return tile
        return self.hold("cast", Cast(tile.expression, dtype), tile.axes)

    # --- one tile ---------------------------------------------------------------------------------------------------

    def write(self, definition: Reduction) -> tuple[Tile, ...]:
        """Writes a reduction of a tile that holds the whole reduction axis."""
        return (
            self._restore(definition, self.states(definition)) if self._space.reduces_tile else self._single(definition)
        )

    def states(self, definition: Reduction, kept: frozenset[str] = frozenset()) -> tuple[Tile, ...]:
        """Writes a reduction of a tile; returns its state in the types that it is combined in.

        Of a softmax whose maximum has a name in ``kept`` the terms are in `terms` afterwards.
        """
        if self._space.blocks is not None:
            is_inner = product(dim.size for dim in definition.reduction_dims) == self._block_length
            self._over = R if is_inner else REDUCTION_AXES
        tiles, axes = self.operands(definition)
        match definition.combine:
            case "argmax" | "argmin":
                return self._paired(definition.combine, tiles, axes)
            case "welford" if len(tiles) == 1:
                return self._moments(tiles[0], axes)
            case "welford" if tiles[2].literal and is_static(self._size):
                return self._equal_moments(tiles[0], tiles[1], float(tiles[2].literal), axes)
            case "welford":
                mean, m2, weight = (self.spread(tile, axes, 0.0) for tile in tiles)
                return self._merged_moments((mean, m2, weight), axes)
            case "online_softmax" if len(tiles) == 1:
                return self._softmax_of_tile(definition, tiles[0], axes, kept)
            case "online_softmax":
                top = self.spread(tiles[0], axes, -math.inf)
                return self._softmax(top, self.spread(tiles[1], axes, 0.0), axes)
            case name:
                return (self._simple(name, tiles[0], axes, self._fill(definition, tiles[0].dtype)),)

    def _softmax_of_tile(self, definition: Reduction, tile: Tile, axes: Axes, kept: frozenset[str]) -> tuple[Tile, ...]:
        lanes = self.full(tile, axes, -math.inf)
        highest = self.reduce("max", "max", lanes.expression, axes)
        self._evaluator.hold_only()
        exponential = "exp_fast" if rounds_all_stores(self._flat) else "exp"
        terms: Expression = apply(exponential, sub(lanes.expression, self._safe(highest).expression))
        if (name := definition.results[0].name) in kept:
            self.terms[name] = self.hold("term", terms, axes)
            terms = self.terms[name].expression
        return highest, self.total("sumexp", terms, axes)

    def _safe(self, highest: Tile) -> Tile:
        lowest = literal(-math.inf, highest.dtype)
        is_lowest = apply("eq", highest.expression, lowest)
        return self.hold("safe", where(is_lowest, literal(0.0, highest.dtype), highest.expression), highest.axes)

    def merged(self, definition: Reduction, lanes: tuple[Expression, ...], axes: Axes) -> tuple[Tile, ...]:
        """Returns the results of a reduction from tiles with a lane for each part of its axis, one per component."""
        if definition.combine == "online_softmax":
            return self._restore(definition, self._softmax(lanes[0], lanes[1], axes))
        return self._restore(definition, (self.reduce(definition.combine, definition.combine, lanes[0], axes),))

    def _single(self, definition: Reduction) -> tuple[Tile, ...]:
        """Returns the reduction of one point: the lifted operand."""
        tiles = tuple(self._evaluator.tile(body) for body in definition.bodies)
        zero, one = (Tile(literal(value, tiles[0].dtype), NO_AXES, tiles[0].dtype) for value in (0, 1))
        lifted = {"welford": (tiles[0], zero, one), "online_softmax": (tiles[0], one)}.get(definition.combine)
        return lifted if lifted is not None and len(tiles) == 1 else tiles

    def _simple(self, combine: str, tile: Tile, axes: Axes, fill: Number | None) -> Tile:
        return self.reduce(combine, combine, self.spread(tile, axes, fill), axes)

    def _fill(self, definition: Reduction, dtype: DType) -> Number | None:
        """Returns what lanes past the end have to hold for a simple reduction, None where they do."""
        is_zero = definition.results[0].name in self._padded_sums
        return None if is_zero else neutral_of(definition.combine, dtype)

    def _paired(self, combine: str, tiles: tuple[Tile, ...], axes: Axes) -> tuple[Tile, ...]:
        """Returns the extreme of a tile and where it is first: reducing one value twice is less than a pair once.

        A NaN is the extreme, and equals nothing: it is found as what differs from itself.
        """
        best, (value, index) = combine.removeprefix("arg"), tiles
        lanes = self.full(value, axes, neutral_of(best, value.dtype))
        extreme = self._simple(best, lanes, axes, None)
        found: Expression = apply("eq", lanes.expression, extreme.expression)
        if value.dtype.is_float:
            found = either(found, apply("ne", lanes.expression, lanes.expression))
        nowhere = index.dtype.highest
        positions = self._lane(index, axes, nowhere)
        position = self.hold("position", where(found, positions, literal(nowhere, index.dtype)), axes)
        return extreme, self._simple("min", position, axes, None)

    def _lane(self, tile: Tile, axes: Axes, fill: Number) -> Expression:
        """Returns a named tile of full extent, with ``fill`` past the end of the reduction axis."""
        return self.full(tile, axes, fill).expression

    def full(self, tile: Tile, axes: Axes, fill: Number | None = None) -> Tile:
        """Returns a named tile of full extent, with ``fill`` past the end of the reduction axis if it is given."""
        value = self.spread(tile, axes, fill)
        return tile if value == tile.expression else self.hold("lane", value, axes)

    def _moments(self, tile: Tile, axes: Axes) -> tuple[Tile, ...]:
        """Returns mean, sum of squared deviations and count of a row: two sums, where one pass would cancel."""
        dtype = tile.dtype
        total = self.total("sum", self.spread(tile, axes, 0.0), axes)
        mean = self.hold("mean", self._over_count(total.expression, dtype), total.axes)
        # A value that is the same all along the row differs from its mean by one value, not by a tile of them.
        delta = self.hold("delta", sub(tile.expression, mean.expression), tile.axes | mean.axes)
        held = delta
        if self._mask is not None:
            held = self.hold("delta", self.spread(delta, axes, 0.0), axes)
        squares = self.spread(Tile(mul(held.expression, held.expression), held.axes, dtype), axes)
        return mean, self.total("m2", squares, axes), Tile(self._count(dtype), NO_AXES, dtype)

    def _equal_moments(self, mean: Tile, m2: Tile, each: float, axes: Axes) -> tuple[Tile, ...]:
        """Returns the moments of the union of parts of ``each`` points: their means count as much.

        Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
        (1979).
        """
        dtype = mean.dtype
        total = self.total("sum", self.spread(mean, axes, 0.0), axes)
        middle = self.hold("mean", self._over_count(total.expression, dtype), total.axes)
        delta = self.hold("delta", sub(mean.expression, middle.expression), mean.axes | middle.axes)
        own = add(m2.expression, mul(literal(each, dtype), delta.expression, delta.expression))
        squares = self.spread(self.hold("own", own, m2.axes | delta.axes), axes, 0.0)
        count = Tile(literal(each * float(self._size), dtype), NO_AXES, dtype)
        return middle, self.total("m2", squares, axes), count

    def _merged_moments(self, lanes: tuple[Expression, Expression, Expression], axes: Axes) -> tuple[Tile, ...]:
        """Returns the moments of the union of all lanes, which hold (mean, sum of squared deviations, weight)."""
        held = [self.hold("lane", value, axes) for value in lanes]
        mean, m2, weight = (tile.expression for tile in held)
        dtype = held[0].dtype
        count = self.total("weight", weight, axes)
        is_empty = apply("eq", count.expression, literal(0.0, dtype))
        safe = self.hold("weight", where(is_empty, literal(1.0, dtype), count.expression), count.axes)
        return (*self._merged_lanes((mean, m2, weight), axes, dtype, safe.expression), count)

    def _merged_lanes(
        self,
        lanes: tuple[Expression, Expression, Expression],
        axes: Axes,
        dtype: DType,
        count: Expression | None = None,
    ) -> tuple[Tile, Tile]:
        """Returns mean and sum of squared deviations of the union of lanes whose weights sum to ``count``.

        Without it to the number of points of the reduction axis.

        Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
        (1979).
        """
        mean, m2, weight = lanes
        weighted = self.total("sum", mul(mean, weight), axes)
        total = weighted.expression
        divided = self._over_count(total, dtype) if count is None else apply("div", total, count)
        middle = self.hold("mean", divided, weighted.axes)
        delta = self.hold("delta", sub(mean, middle.expression), axes).expression
        return middle, self.total("m2", add(m2, mul(weight, delta, delta)), axes)

    def _softmax(self, top: Expression, mass: Expression, axes: Axes) -> tuple[Tile, ...]:
        """Returns the maximum of (maximum, sum) lanes, and the sum of exponentials relative to it."""
        lanes = top if isinstance(top, Name) else self.hold("lane", top, axes).expression
        highest = self.reduce("max", "max", lanes, axes)
        safe = self._safe(highest)
        terms = mul(mass, apply("exp", sub(lanes, safe.expression)))
        return highest, self.total("sumexp", terms, axes)


PAIRED = {"argmax": "max", "argmin": "min"}
"""Combines of a value and its position, and what they make of the values."""

_STEPS = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "xor": "bitxor",
    "any": "bitor",
    "all": "bitand",
    "logaddexp": "logaddexp",
}
"""What combines two values of a type, as an elementwise operation."""


def step(combine: str, left: Expression, right: Expression) -> Expression:
    """Returns what two values combine to, by a combine of one value."""
    return apply(_STEPS[combine], left, right)
