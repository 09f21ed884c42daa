"""Folds: all points of the fold axis combined, in one tile or block by block.

In one tile, a fold is a reduction of the tile. Block by block, each lane combines what it sees, and one reduction
after the loop combines the lanes. Lanes past the end hold the identity of the combine.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.combines import COMBINES
from ferrite_ir.dtypes import BOOL, F32, I8, DType
from ferrite_ir.graph import Fold
from ferrite_ir.sizes import Size, is_static, product

from .casts import cast_text
from .combines import PAIRED, SIMPLE, simple_row
from .evaluate import Evaluator
from .flat import FlatKernel
from .groups import Grouping, TakenApart, grouping
from .literals import divided_text, full_text, highest_text, type_text
from .rows import behind
from .space import FOLD_AXES, NO_AXES, Axes, AxisText
from .vanishing import vanishing_sums
from .writer import Tile, Writer

R: Axes = frozenset("r")
X: Axes = frozenset("x")


class FoldText:
    """Writes the folds of one kernel.

    `write` folds in one tile. `open` begins a fold inside a loop; what it returns ends the fold when it is called after
    the loop. Both give one tile per result.
    """

    def __init__(self, flat: FlatKernel, writer: Writer, evaluator: Evaluator) -> None:
        self._flat = flat
        self._space = flat.space
        self._writer = writer
        self._evaluator = evaluator
        # What the fold being written combines: the fold axis, with its blocks where it is cut into blocks.
        self._over = R
        self._vanishing = vanishing_sums(flat).keys()
        # By the name of a softmax's maximum its terms, for whom these are kept.
        self.terms: dict[str, Tile] = {}

    # --- pieces -----------------------------------------------------------------------------------------------------

    @property
    def _masked(self) -> AxisText | None:
        """Returns the folded axis along which tiles reach past the end, or None."""
        return next((axis for axis in self._space.axes if axis.name in self._over and axis.masked), None)

    @property
    def _mask(self) -> str | None:
        return None if self._masked is None else f"{self._masked.name}mask"

    @property
    def _size(self) -> Size:
        return product(axis.size for axis in self._space.axes if axis.name in self._over)

    def _count(self, dtype: DType) -> str:
        """Returns the number of points of the fold axis as a float."""
        if is_static(self._size):
            return full_text(float(self._size), dtype)
        return f"({self._space.params.text(self._size)}).to({type_text(dtype)})"

    def _over_count(self, total: str, dtype: DType) -> str:
        """Returns the quotient of a total and the number of points: a product where that rounds the same number."""
        known = float(self._size) if is_static(self._size) else None
        return divided_text(total, self._count(dtype), known, dtype)

    def param_text(self, name: str) -> str:
        """Returns the name of the parameter through which a value is read."""
        return self._flat.param_of(name).text

    def hold(self, prefix: str, expression: str, axes: Axes, dtype: DType) -> Tile:
        """Returns the named value of an expression."""
        return self._writer.hold(prefix, expression, axes, dtype)

    def spread(self, tile: Tile, axes: Axes, fill: str | None = None) -> str:
        """Returns a tile of full extent along ``axes``; lanes past the end of the fold axis hold ``fill``, if given."""
        if tile.literal is not None:
            text = f"tl.full({self._space.shape(axes)}, {tile.text}, {type_text(tile.dtype)})"
            return text if fill is None or self._mask is None else f"tl.where({self._mask}, {text}, {fill})"
        masked = None if fill is None else self._masked
        text = tile.text if masked is None else f"tl.where({self._mask}, {tile.text}, {fill})"
        extents = self._space.tiled(tile.axes if masked is None else tile.axes | {masked.name})
        return text if extents == self._space.tiled(axes) else f"tl.broadcast_to({text}, {self._space.shape(axes)})"

    def reduce(self, template: str, prefix: str, text: str, axes: Axes, dtype: DType) -> Tile:
        """Returns the reduction of a tile along the fold axis; the result varies along the other axes."""
        keep = "" if self._over >= frozenset(self._space.order) else self.keep
        expression = template.format(v=text, axis=self._space.fold_position, keep=keep)
        if self._over != R:
            expression = template.format(v=expression, axis=self._space.order.index("b"), keep=keep)
        key = ("reduction", expression)
        known = self._writer.find(key)
        return known or self._writer.remember(key, self.hold(prefix, expression, axes - self._over, dtype))

    @property
    def keep(self) -> str:
        """Returns the argument that keeps the folded extent as 1, where tiles have other extents."""
        return ", keep_dims=True" if len(self._space.order) > 1 else ""

    def total(self, prefix: str, text: str, axes: Axes, dtype: DType) -> Tile:
        """Returns the sum of a tile along the fold axis."""
        return self.reduce(SIMPLE["sum"].reduce, prefix, text, axes, dtype)

    def accumulator(self, prefix: str, axes: Axes, initial: str, dtype: DType) -> Tile:
        """Returns a variable that a loop updates, set before the loop."""
        name = self._writer.fresh(prefix)
        self._writer.before_loop(f"{name} = tl.full({self._space.shape(axes)}, {initial}, {type_text(dtype)})")
        return Tile(name, axes, dtype)

    def carry(self, axes: Axes, initial: str, dtype: DType) -> Tile:
        """Returns a variable that a loop updates with reductions of tiles: of their rank, unlike other scalars."""
        if self._space.tiled(axes) or not self.keep:
            return self.accumulator("carry", axes, initial, dtype)
        name = self._writer.fresh("carry")
        shape = ", ".join("1" for _ in self._space.order)
        self._writer.before_loop(f"{name} = tl.full([{shape}], {initial}, {type_text(dtype)})")
        return Tile(name, axes, dtype)

    def update(self, names: str, expression: str) -> None:
        """Writes an assignment in the body of the loop."""
        self._writer.line(f"{names} = {expression}", R)

    def operands(self, definition: Fold) -> tuple[tuple[Tile, ...], Axes]:
        """Returns the operands in the types they are combined in, and the axes of the tile that holds them."""
        position = self._evaluator.position if definition.combine in PAIRED else self._evaluator.tile
        tiles = (self._evaluator.tile(definition.bodies[0]), *map(position, definition.bodies[1:]))
        widened = tuple(self._widen(definition.combine, tile) for tile in tiles)
        return widened, self._over.union(*(tile.axes for tile in tiles))

    def _widen(self, combine: str, tile: Tile) -> Tile:
        if tile.literal is not None:
            return tile
        if tile.dtype.is_narrow_float:
            return self.hold("cast", cast_text(tile.text, tile.dtype, F32), tile.axes, F32)
        if tile.dtype is BOOL and combine in PAIRED:
            return self.hold("cast", cast_text(tile.text, BOOL, I8), tile.axes, I8)
        return tile

    def _restore(self, definition: Fold, tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
        """Returns the results in the types that the definition gives them."""
        wanted = COMBINES[definition.combine].result_types(tuple(body.dtype for body in definition.bodies))
        return tuple(self.converted(tile, dtype) for tile, dtype in zip(tiles, wanted, strict=True))

    def converted(self, tile: Tile, dtype: DType) -> Tile:
        """Returns a tile in another type."""
        if tile.dtype is dtype or tile.literal is not None:
            return tile
        return self.hold("cast", cast_text(tile.text, tile.dtype, dtype), tile.axes, dtype)

    # --- one tile ---------------------------------------------------------------------------------------------------

    def write(self, definition: Fold) -> tuple[Tile, ...]:
        """Writes a fold of a tile that holds the whole fold axis."""
        return (
            self._restore(definition, self.states(definition)) if self._space.folds_tile else self._single(definition)
        )

    def states(self, definition: Fold, kept: frozenset[str] = frozenset()) -> tuple[Tile, ...]:
        """Writes a fold of a tile; returns its state in the types that it is combined in.

        Of a softmax whose maximum has a name in ``kept`` the terms are in `terms` afterwards.
        """
        if self._space.blocks is not None:
            is_inner = product(dim.size for dim in definition.fold_dims) == self._flat.kernel.inner
            self._over = R if is_inner else FOLD_AXES
        tiles, axes = self.operands(definition)
        match definition.combine:
            case "argmax" | "argmin":
                return self._paired(definition.combine, tiles, axes)
            case "welford" if len(tiles) == 1:
                return self._moments(tiles[0], axes)
            case "welford" if tiles[2].literal and is_static(self._size):
                return self._equal_moments(tiles[0], tiles[1], float(tiles[2].literal), axes)
            case "welford":
                mean, m2, weight = (self.spread(tile, axes, "0.0") for tile in tiles)
                return self._merged_moments((mean, m2, weight), axes, tiles[0].dtype)
            case "online_softmax" if len(tiles) == 1:
                lanes = self.full(tiles[0], axes, 'float("-inf")')
                highest = self.reduce(SIMPLE["max"].reduce, "max", lanes.text, axes, lanes.dtype)
                if self._evaluator.renew():
                    lanes = self.full(self.operands(definition)[0][0], axes, 'float("-inf")')
                exponential = "fast_exp" if self._evaluator.is_rough else "exp"
                terms = f"fmath.{exponential}({lanes.text} - {self._safe(highest).text})"
                if (name := definition.results[0].name) in kept:
                    self.terms[name] = self.hold("term", terms, axes, lanes.dtype)
                    terms = self.terms[name].text
                return highest, self.total("sumexp", terms, axes, lanes.dtype)
            case "online_softmax":
                top = self.spread(tiles[0], axes, 'float("-inf")')
                return self._softmax(top, self.spread(tiles[1], axes, "0.0"), axes, tiles[0].dtype)
            case name:
                return (self._simple(name, tiles[0], axes, self._fill(definition, tiles[0].dtype)),)

    def _safe(self, highest: Tile) -> Tile:
        text = f'tl.where({highest.text} == float("-inf"), 0.0, {highest.text})'
        return self.hold("safe", text, highest.axes, highest.dtype)

    def merged(self, definition: Fold, lanes: tuple[str, ...], axes: Axes, dtype: DType) -> tuple[Tile, ...]:
        """Returns the results of a fold from tiles with a lane for each part of the fold axis, one per component."""
        if definition.combine == "online_softmax":
            return self._restore(definition, self._softmax(lanes[0], lanes[1], axes, dtype))
        reduction = simple_row(definition.combine, dtype).reduce
        return self._restore(definition, (self.reduce(reduction, definition.combine, lanes[0], axes, dtype),))

    def _single(self, definition: Fold) -> tuple[Tile, ...]:
        """Returns the fold of one point: the lifted operand."""
        tiles = tuple(self._evaluator.tile(body) for body in definition.bodies)
        zero, one = (Tile(full_text(value, tiles[0].dtype), NO_AXES, tiles[0].dtype) for value in (0, 1))
        lifted = {"welford": (tiles[0], zero, one), "online_softmax": (tiles[0], one)}.get(definition.combine)
        return lifted if lifted is not None and len(tiles) == 1 else tiles

    def _simple(self, combine: str, tile: Tile, axes: Axes, fill: str | None) -> Tile:
        row = simple_row(combine, tile.dtype)
        return self.reduce(row.reduce, combine, self.spread(tile, axes, fill), axes, tile.dtype)

    def _fill(self, definition: Fold, dtype: DType) -> str | None:
        """Returns what lanes past the end have to hold for a simple fold, None where they do."""
        is_zero = definition.results[0].name in self._vanishing
        return None if is_zero else simple_row(definition.combine, dtype).identity(dtype)

    def _paired(self, combine: str, tiles: tuple[Tile, ...], axes: Axes) -> tuple[Tile, ...]:
        """Returns the extreme of a tile and where it is first: two folds of one value are fewer steps than one of two.

        A NaN is the extreme, and equals nothing: it is found as what differs from itself.
        """
        best, (value, index) = combine.removeprefix("arg"), tiles
        lanes = self.full(value, axes, simple_row(best, value.dtype).identity(value.dtype))
        extreme = self._simple(best, lanes, axes, None)
        found = f"{lanes.text} == {extreme.text}"
        if value.dtype.is_float:
            found = f"({found}) | ({lanes.text} != {lanes.text})"
        nowhere = highest_text(index.dtype)
        place = f"tl.where({found}, {self._lane(index, axes, nowhere)}, {nowhere})"
        return extreme, self._simple("min", self.hold("place", place, axes, index.dtype), axes, None)

    def _lane(self, tile: Tile, axes: Axes, fill: str) -> str:
        """Returns the name of a tile of full extent, with ``fill`` past the end of the fold axis."""
        return self.full(tile, axes, fill).text

    def full(self, tile: Tile, axes: Axes, fill: str | None = None) -> Tile:
        """Returns a named tile of full extent, with ``fill`` past the end of the fold axis if it is given."""
        text = self.spread(tile, axes, fill)
        return tile if text == tile.text else self.hold("lane", text, axes, tile.dtype)

    def _reduce_pair(
        self, function: str, prefix: str, texts: list[str], axes: Axes, dtypes: tuple[DType, ...]
    ) -> tuple[Tile, ...]:
        names = [self._writer.fresh(prefix), self._writer.fresh("at")]
        position = self._space.fold_position
        reduced = f"tl.reduce(({', '.join(texts)}), {position}, {function}{self.keep})"
        self._writer.line(f"{', '.join(names)} = {reduced}", axes - R)
        return tuple(Tile(name, axes - R, dtype) for name, dtype in zip(names, dtypes, strict=True))

    def _moments(self, tile: Tile, axes: Axes) -> tuple[Tile, ...]:
        """Returns mean, sum of squared deviations and count of a row: two sums, where one pass would cancel."""
        dtype, count = tile.dtype, self._count(tile.dtype)
        total = self.total("sum", self.spread(tile, axes, "0.0"), axes, dtype)
        mean = self.hold("mean", self._over_count(total.text, dtype), total.axes, dtype)
        operand = tile.text if tile.literal is None else full_text(tile.literal, dtype)
        # A value that is the same all along the row differs from its mean by one value, not by a tile of them.
        delta = self.hold("delta", f"{operand} - {mean.text}", tile.axes | mean.axes, dtype)
        held = self.hold("delta", self.spread(delta, axes, "0.0"), axes, dtype) if self._mask else delta
        spread = self.spread(Tile(f"{held.text} * {held.text}", held.axes, dtype), axes)
        return mean, self.total("m2", spread, axes, dtype), Tile(count, NO_AXES, dtype)

    def _equal_moments(self, mean: Tile, m2: Tile, each: float, axes: Axes) -> tuple[Tile, ...]:
        """Returns the moments of the union of parts of ``each`` points: their means count as much.

        Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
        (1979).
        """
        dtype = mean.dtype
        total = self.total("sum", self.spread(mean, axes, "0.0"), axes, dtype)
        middle = self.hold("mean", self._over_count(total.text, dtype), total.axes, dtype)
        delta = self.hold("delta", f"{mean.text} - {middle.text}", mean.axes | middle.axes, dtype)
        own = f"{m2.text} + {full_text(each, dtype)} * {delta.text} * {delta.text}"
        squares = self.spread(self.hold("own", own, m2.axes | delta.axes, dtype), axes, "0.0")
        count = Tile(full_text(each * float(self._size), dtype), NO_AXES, dtype)
        return middle, self.total("m2", squares, axes, dtype), count

    def _merged_moments(self, lanes: tuple[str, str, str], axes: Axes, dtype: DType) -> tuple[Tile, ...]:
        """Returns the moments of the union of all lanes, which hold (mean, sum of squared deviations, weight)."""
        mean, m2, weight = (self.hold("lane", text, axes, dtype).text for text in lanes)
        count = self.total("weight", weight, axes, dtype)
        safe = self.hold("weight", f"tl.where({count.text} == 0.0, 1.0, {count.text})", count.axes, dtype)
        return (*self._merged_lanes((mean, m2, weight), axes, dtype, safe.text), count)

    def _merged_lanes(
        self, lanes: tuple[str, str, str], axes: Axes, dtype: DType, count: str | None = None
    ) -> tuple[Tile, Tile]:
        """Returns mean and sum of squared deviations of the union of lanes whose weights sum to ``count``.

        Without it to the number of points of the fold axis.

        Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
        (1979).
        """
        mean, m2, weight = lanes
        weighted = self.total("sum", f"{mean} * {weight}", axes, dtype)
        total = weighted.text
        quotient = self._over_count(total, dtype) if count is None else divided_text(total, count, None, dtype)
        middle = self.hold("mean", quotient, weighted.axes, dtype)
        delta = self.hold("delta", f"{mean} - {middle.text}", axes, dtype)
        return middle, self.total("m2", f"{m2} + {weight} * {delta.text} * {delta.text}", axes, dtype)

    def _softmax(self, top: str, mass: str, axes: Axes, dtype: DType) -> tuple[Tile, ...]:
        """Returns the maximum of (maximum, sum) lanes, and the sum of exponentials relative to it."""
        lanes = top if top.isidentifier() else self.hold("lane", top, axes, dtype).text
        highest = self.reduce(SIMPLE["max"].reduce, "max", lanes, axes, dtype)
        safe = self._safe(highest)
        return highest, self.total("sumexp", f"{mass} * fmath.exp({lanes} - {safe.text})", axes, dtype)

    # --- block by block ---------------------------------------------------------------------------------------------

    def open(self, definition: Fold) -> Callable[[], tuple[Tile, ...]]:
        """Writes the part of a fold inside the open loop; returns what writes the part after it."""
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

    def open_columns(self, definition: Fold) -> Callable[[], tuple[Tile, ...]]:
        """Writes the part of a fold over rows inside the open loop over them; returns what writes the part after it."""
        tiles, axes = self.operands(definition)
        combine, axes, dtype = definition.combine, axes | X, tiles[0].dtype
        row = simple_row(combine, dtype)
        lanes = self.accumulator(combine, axes, row.identity(dtype), dtype)
        new = self.spread(tiles[0], axes)
        rows = self._space.axis("x")
        if rows is not None and rows.masked:
            new = f"tl.where(xmask, {new}, {row.identity(dtype)})"
        self._writer.line(f"{lanes.text} = {row.step.format(a=lanes.text, v=new)}", X)

        def finish() -> tuple[Tile, ...]:
            total = row.reduce.format(v=lanes.text, axis=self._space.order.index("x"), keep=self.keep)
            return self._restore(definition, (self.hold(combine, total, axes - X, dtype),))

        return finish

    def _open_simple(self, combine: str, tile: Tile, axes: Axes, fill: str | None) -> Callable[[], tuple[Tile, ...]]:
        row, dtype = simple_row(combine, tile.dtype), tile.dtype
        lanes = self.accumulator(combine, axes, row.identity(dtype), dtype)
        self.update(lanes.text, row.step.format(a=lanes.text, v=self.spread(tile, axes, fill)))
        return lambda: (self.reduce(row.reduce, combine, lanes.text, axes, dtype),)

    def _open_paired(self, definition: Fold, tiles: tuple[Tile, ...], axes: Axes) -> Callable[[], tuple[Tile, ...]]:
        combine = definition.combine
        function, worst = PAIRED[combine]
        value, index = tiles
        fills = worst(value.dtype), highest_text(index.dtype)
        first = self._first_positions(definition, index)
        initial = fills if first is None else (fills[0], "0")
        lanes = [self.accumulator("lane", axes, fill, tile.dtype) for tile, fill in zip(tiles, initial, strict=True)]
        names = [lane.text for lane in lanes]
        new = [self._lane(tile, axes, fill) for tile, fill in zip(tiles, fills, strict=True)]
        if first is None:
            self.update(", ".join(names), f"{function}({', '.join([*names, *new])})")
        else:
            # A lane sees its positions in order, so that of equals the one it has is the first.
            self._writer.before_loop(f"{names[1]} += {first}")
            self._keep_better(combine, names, new, axes, value.dtype)
        return lambda: self._reduce_pair(function, combine, names, axes, (value.dtype, index.dtype))

    def _keep_better(self, combine: str, names: list[str], new: list[str], axes: Axes, dtype: DType) -> None:
        """Writes the update of lanes of (value, position) that meet their positions in order."""
        better = f"{new[0]} {'>' if combine == 'argmax' else '<'} {names[0]}"
        if dtype.is_float:
            better = f"({better}) | (({new[0]} != {new[0]}) & ({names[0]} == {names[0]}))"
        moves = self.hold("moves", better, axes, BOOL).text
        for name, value in zip(names, new, strict=True):
            self.update(name, f"tl.where({moves}, {value}, {name})")

    def _first_positions(self, definition: Fold, index: Tile) -> str | None:
        """Returns the positions of the first block, or None where the index is not a position along the fold axis."""
        node = definition.bodies[1]
        rest = behind(node.args[0]) if node.op == "index" else None
        if rest is None:
            return None
        base = self._evaluator.offset(rest)
        lane = f"tl.arange(0, RBLOCK){self._space.expand('r')}"
        text = lane if base.literal == 0 else f"({lane} + {base.text})"
        return f"{text}.to({type_text(index.dtype)})" if index.dtype.bits != 32 else text

    def _open_moments(self, tile: Tile, axes: Axes) -> Callable[[], tuple[Tile, ...]]:
        # Source: Welford, "Note on a method for calculating corrected sums of squares and products" (1962).
        # All lanes count alike until the last block, so the count is one scalar of the loop.
        dtype = tile.dtype
        mean, m2 = (self.accumulator(prefix, axes, "0.0", dtype) for prefix in ("mean", "m2"))
        count = self.accumulator("count", NO_AXES, "0.0", dtype)
        self.update(count.text, f"{count.text} + 1.0")
        value = self.full(tile, axes).text
        delta = self.hold("delta", f"{value} - {mean.text}", axes, dtype).text
        moved = self.hold("moved", f"{mean.text} + {delta} * (1.0 / {count.text})", axes, dtype)
        grown = Tile(f"{m2.text} + {delta} * ({value} - {moved.text})", axes, dtype)
        self.update(m2.text, self.spread(grown, axes, m2.text))
        self.update(mean.text, self.spread(moved, axes, mean.text))

        def finish() -> tuple[Tile, ...]:
            weight = self.hold("weight", self._lane_counts(dtype), R, dtype)
            middle, squares = self._merged_lanes((mean.text, m2.text, weight.text), axes, dtype)
            return middle, squares, Tile(self._count(dtype), NO_AXES, dtype)

        return finish

    def _lane_counts(self, dtype: DType) -> str:
        """Returns how many points of the fold axis each lane has seen."""
        lane = f"tl.arange(0, RBLOCK){self._space.expand('r')}"
        size = self._space.params.text(self._size)
        return f"(({size} + RBLOCK - 1 - {lane}) // RBLOCK).to({type_text(dtype)})"

    def _open_merged_moments(self, tiles: tuple[Tile, ...], axes: Axes) -> Callable[[], tuple[Tile, ...]]:
        dtype = tiles[0].dtype
        mean, m2, weight = (self.accumulator(prefix, axes, "0.0", dtype).text for prefix in ("mean", "m2", "weight"))
        lanes = (mean, m2, weight)
        new = [self._lane(tile, axes, "0.0") for tile in tiles]
        self.update(", ".join(lanes), f"fmath.welford({', '.join([*lanes, *new])})")
        return lambda: self._merged_moments(lanes, axes, dtype)

    def _open_grouped_moments(self, tile: Tile, axes: Axes, groups: Grouping) -> Callable[[], tuple[Tile, ...]]:
        """Writes moments that take in, at each step, those of all points that a thread holds: two sums of them.

        Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
        (1979).
        """
        dtype, apart, size = tile.dtype, TakenApart.of(self._space, axes, groups), groups.count
        mean, m2 = self._group_states(apart, {"mean": "0.0", "m2": "0.0"}, dtype)
        count = self.accumulator("count", NO_AXES, "0.0", dtype).text
        group = self.hold("group", apart.group(self.full(tile, axes).text), axes, dtype).text
        own = self.hold("own", f"{apart.folded(group, SIMPLE['sum'].reduce)} * {1.0 / size}", axes, dtype).text
        delta = self.hold("delta", f"{group} - {apart.spread(own)}", axes, dtype).text
        squares = self.hold("squares", apart.folded(f"{delta} * {delta}", SIMPLE["sum"].reduce), axes, dtype).text
        moved = self.hold("moved", f"{own} - {mean}", axes, dtype).text
        share = self.hold("share", f"{size}.0 / ({count} + {size}.0)", NO_AXES | R, dtype).text
        self.update(m2, f"{m2} + {squares} + {moved} * {moved} * ({count} * {share})")
        self.update(mean, f"{mean} + {moved} * {share}")
        self.update(count, f"{count} + {size}.0")

        def finish() -> tuple[Tile, ...]:
            return (*self._merged_lanes((mean, m2, count), axes, dtype), Tile(self._count(dtype), NO_AXES, dtype))

        return finish

    def _group_states(self, apart: TakenApart, initial: dict[str, str], dtype: DType) -> list[str]:
        """Returns variables that a loop updates, one of each for each group, set before the loop."""
        names = [self._writer.fresh(prefix) for prefix in initial]
        for name, value in zip(names, initial.values(), strict=True):
            self._writer.before_loop(f"{name} = tl.full({apart.states}, {value}, {type_text(dtype)})")
        return names

    def _open_softmax(self, tiles: tuple[Tile, ...], axes: Axes) -> Callable[[], tuple[Tile, ...]]:
        dtype = tiles[0].dtype
        top = self.accumulator("max", axes, 'float("-inf")', dtype).text
        mass = self.accumulator("sumexp", axes, "0.0", dtype).text
        new = self._lane(tiles[0], axes, 'float("-inf")')
        if len(tiles) == 1:
            # One exponential per element, of its distance to the maximum so far: the new term, or the old sum's scale.
            distance = f"fmath.exp(-tl.abs({new} - {top}))"
            scale = self.hold("scale", f"tl.where({new} == {top}, 1.0, {distance})", axes, dtype).text
            self.update(mass, f"tl.where({new} > {top}, {mass} * {scale} + 1.0, {mass} + {scale})")
            self.update(top, f"fmath.maximum_nan({top}, {new})")
        else:
            weight = self._lane(tiles[1], axes, "0.0")
            self.update(f"{top}, {mass}", f"fmath.online_softmax({top}, {mass}, {new}, {weight})")
        return lambda: self._softmax(top, mass, axes, dtype)

    def _open_grouped_softmax(self, tile: Tile, axes: Axes, groups: Grouping) -> Callable[[], tuple[Tile, ...]]:
        """Writes a running maximum and sum for the points that a thread holds: one more exponential for each group."""
        dtype = tile.dtype
        apart = TakenApart.of(self._space, axes, groups)
        top, mass = self._group_states(apart, {"max": 'float("-inf")', "sumexp": "0.0"}, dtype)
        group = self.hold("group", apart.group(self._lane(tile, axes, 'float("-inf")')), axes, dtype).text
        highest = apart.folded(group, SIMPLE["max"].reduce)
        moved = self.hold("moved", f"fmath.maximum_nan({top}, {highest})", axes, dtype).text
        safe = self.hold("safe", f'tl.where({moved} == float("-inf"), 0.0, {moved})', axes, dtype).text
        # The fast function is off by so many roundings as the distance is long, and its result counts so much the less.
        exponential = "fmath.fast_exp" if dtype is F32 else "fmath.exp"
        terms = self.hold("exp", f"{exponential}({group} - {apart.spread(safe)})", axes, dtype).text
        total = apart.folded(terms, SIMPLE["sum"].reduce)
        self.update(mass, f"{mass} * {exponential}({top} - {safe}) + {total}")
        self.update(top, moved)
        return lambda: self._softmax(top, mass, axes, dtype)
