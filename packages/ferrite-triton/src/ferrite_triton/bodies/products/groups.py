"""Where the groups of a product lie, that only data knows: which rows a tile has, or what is summed over for it.

Rows of a group begin anywhere, and a tile has rows of one group. So groups have tiles of their own: group g, whose rows
begin at s and end at e, those numbered from ``s // YBLOCK + g`` to ``e // YBLOCK + g``. These are as many as it may
need, one more at most, and the next group's follow. Which group a tile is of is thus a count, without a list in memory:
of the groups that have only tiles with lower numbers.

    YBLOCK = 4, ends = 3 3 13        rows     0 1 2 | 3 4 5 6   7 8 9 10   11 12
                                     group    0     | 2
                                     tile     0     | 2         3          4        (1 is group 1's, 5 has no rows)

Rows of no group are one more group, of zeros. A tile without rows adds nothing up, and stores nothing.
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.dtypes import I32
from ferrite_ir.language.graph import Contract
from ferrite_ir.language.scalar import substitute_dims
from ferrite_triton.analysis.contraction_space import GROUPS_AXIS
from ferrite_triton.analysis.flat import FlatKernel
from ferrite_triton.analysis.space import NO_AXES, KernelAxis, flat_dim
from ferrite_triton.bodies.builder import AxisPosition, Builder
from ferrite_triton.bodies.indices import index_dtype
from ferrite_triton.bodies.positions import positions_from, write_axis_positions
from ferrite_triton.bodies.scalar_values import ScalarValues
from ferrite_triton.tile.build import add, apply, block_size, both, converted, lanes, quotient, sub, where
from ferrite_triton.tile.language import Cast, Expression, Literal, Reduce

G = frozenset((GROUPS_AXIS,))


class Groups:
    """Writes where the groups of a kernel's products lie; all of its products have the same."""

    def __init__(self, flat: FlatKernel, builder: Builder, width: int, contract: Contract) -> None:
        axis = flat.space.axis(GROUPS_AXIS)
        if axis is None or contract.segments is None:
            raise AssertionError("a product without groups")
        self._axis, self._builder, self._dtype = axis, builder, index_dtype(width)
        self._flat = replace(flat, space=replace(flat.space, order=(GROUPS_AXIS,)))
        self._width = width
        # Along the batch, groups are the points of it; where they end is looked at for all of them.
        batch = flat.space.axis("z")
        along = {} if batch is None else {flat_dim(batch): flat_dim(axis).index}
        self._ends = substitute_dims(contract.segments.ends, along)
        self._bounds: tuple[Expression, Expression] | None = None

    @property
    def bounds(self) -> tuple[Expression, Expression] | None:
        """Returns the first and the last point but one that is summed over for a tile, None where all are."""
        return self._bounds

    def place_rows(self, number: Expression, axis: KernelAxis) -> None:
        """Writes which rows the tile with a number along ``y`` has, and of which group they are."""
        builder, dtype = self._builder, self._dtype
        number = builder.let("number", number, NO_AXES).expression
        block, zero = block_size(axis.constant, dtype), Literal(0, dtype)
        ends, lane, rows = self._written_ends(axis)
        before = builder.let("before", apply("lt", add(quotient(ends, block), lane), number), G).expression
        group = self._reduced("group", "sum", converted(Cast(before, I32), I32, dtype))
        start = self._reduced("start", "max", where(before, ends, zero))
        end = self._reduced("end", "min", where(before, rows, ends))
        # No less than none: nothing is accessed that does not exist, whatever ends are given.
        nth = apply("greater", sub(sub(number, quotient(start, block)), group), zero)
        first = builder.let("yfirst", add(start, apply("mul", nth, block)), NO_AXES).expression
        count = int(self._axis.size)
        has_rows = both(apply("lt", first, end), apply("lt", group, Literal(count, dtype)))
        whole = self._flat.space.params.value(self._reduction.size, dtype)
        self._bounds = zero, builder.let("points", where(has_rows, whole, zero), NO_AXES).expression
        own = apply("lesser", group, Literal(count - 1, dtype))
        builder.positions[GROUPS_AXIS] = AxisPosition(builder.let("own", own, NO_AXES).expression)
        self._write_rows(axis, first, end)

    def place_sums(self) -> None:
        """Writes what is summed over for a tile of the group whose number is its position along ``z``."""
        builder, zero = self._builder, Literal(0, self._dtype)
        ends, lane, _ = self._written_ends(self._reduction)
        own = builder.position("z")
        start = self._reduced("start", "max", where(apply("lt", lane, own), ends, zero))
        end = self._reduced("end", "max", where(apply("le", lane, own), ends, zero))
        builder.positions[GROUPS_AXIS] = AxisPosition(own)
        self._bounds = start, end

    @property
    def _reduction(self) -> KernelAxis:
        axis = self._flat.space.reduction
        if axis is None:
            raise AssertionError("a contraction without a reduction axis")
        return axis

    def _written_ends(self, axis: KernelAxis) -> tuple[Expression, Expression, Expression]:
        """Writes where groups end along an axis: for lanes that are no groups, and at most, where the axis does.

        Returns these ends, the groups and the end of the axis.
        """
        builder, dtype, space = self._builder, self._dtype, self._flat.space
        write_axis_positions(builder, space, self._axis, converted(lanes(self._axis.constant), I32, dtype))
        tile = ScalarValues(self._flat, builder, self._width).tile(self._ends)
        whole = space.params.value(axis.size, dtype)
        ends: Expression = apply("lesser", converted(tile.expression, tile.dtype, dtype), whole)
        mask, lane = builder.mask(GROUPS_AXIS), builder.position(GROUPS_AXIS)
        ends = ends if mask is None else where(mask, ends, whole)
        named = builder.let("ends", ends, G).expression
        builder.forget(G)  # from here on the position along the axis is that of one group
        return named, lane, whole

    def _reduced(self, name: str, combine: str, value: Expression) -> Expression:
        return self._builder.let(name, Reduce((value,), combine, 0), NO_AXES).expression

    def _write_rows(self, axis: KernelAxis, first: Expression, end: Expression) -> None:
        space = replace(self._flat.space, order=("y", "x"))
        along, builder = frozenset(axis.name), self._builder
        vector = positions_from(first, axis.constant, self._dtype)
        rows = builder.let(axis.name, space.expand(axis.name, vector), along).expression
        mask = builder.let(f"{axis.name}mask", apply("lt", rows, end), along).expression
        builder.positions[axis.name] = AxisPosition(rows, mask)
