"""Addresses of elements in memory, the masks under which they are accessed, and loads."""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, is_static
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_scheduler.model.target import SECTOR_BYTES
from ferrite_triton.analysis.accesses import unit_stride_axis, unit_stride_run
from ferrite_triton.analysis.flat import KernelParam
from ferrite_triton.analysis.rows import behind, column_start, padded_extent, row_start, step_along
from ferrite_triton.analysis.space import NO_AXES, Axes, KernelAxis, Space, flat_dim
from ferrite_triton.analysis.traversal import Misalignment
from ferrite_triton.bodies.builder import Builder, Tile
from ferrite_triton.bodies.indices import Indices
from ferrite_triton.tile.build import add, all_of, apply, block_size, converted, mul, sub, where
from ferrite_triton.tile.language import (
    Block,
    Broadcast,
    Call,
    Constant,
    Expression,
    Hint,
    Literal,
    Name,
    Offset,
    Prefetch,
    TileType,
)


class Addresses:
    """Writes the addresses of one kernel.

    Args:
        builder: takes the statements.
        space: the axes.
        index: writes offsets.
        dtype: of the address arithmetic.
        has_column: whether a single tensor is read along the reduction axis, and nothing written, in a loop.
        has_rows: whether rows have addresses of their own even if their length is a number: no register should hold
            those of their elements.
        in_tiles: whether statements say where a tile begins (``rfirst``, ``xfirst``) and which of its lanes it has.
    """

    def __init__(
        self,
        builder: Builder,
        space: Space,
        index: Indices,
        dtype: DType,
        *,
        has_column: bool = False,
        has_rows: bool = False,
        in_tiles: bool = False,
    ) -> None:
        self._builder = builder
        self._space = space
        self._index = index
        self._dtype = dtype
        self._has_column = has_column
        self._in_tiles = in_tiles
        self._has_rows = has_rows or (space.reduction is not None and not is_static(space.reduction.size))

    def address(self, param: KernelParam, index: Index, value: Callable[[Scalar], Tile] | None = None) -> Tile:
        """Returns the address of an element of a parameter.

        Args:
            param: the parameter.
            index: where the element is, counted from the first one.
            value: gives the tile of the scalar in an indirect index; it is computed already.
        """
        if self._in_tiles and (found := self._in_tile(param, index, value)) is not None:
            return found
        start = row_start(index) if self._has_rows else None
        if start is not None:
            # The compiler adds positions in a row to its address as constants, which it cannot do with offsets of 32
            # bits: it does not know that they never wrap, and computes the address of each element by itself.
            step = Tile(self._builder.position("r"), frozenset("r"), self._dtype)
            return self._behind(param, "row", start, step, value)
        column = column_start(index) if self._has_column else None
        if column is not None:
            # With an address of its own for each column the compiler orders the loads of a step before their use, where
            # otherwise it saves the registers and waits for each. Offsets that several operands share are cheaper.
            return self._behind(param, "column", column, self._index.tile(index - column, value), value)
        offset, misalignment = self._index.tile(index, value), self._space.misalignment
        if misalignment is not None:
            return address_at(param, self._vectors(offset, misalignment))
        return address_at(param, self._side_by_side(offset) if self._lies_in_odd_runs(index) else offset)

    def _in_tile(self, param: KernelParam, index: Index, value: Callable[[Scalar], Tile] | None) -> Tile | None:
        """Returns an address as that of a tile's first element and what is added in the tile, which are constants.

        None for an index that does not grow evenly along the reduction axis and ``x``.
        """
        steps = {name: step_along(index, name) for name in ("r", "x")}
        if not all(steps.values()):
            return None
        rest = index
        for name, step in steps.items():
            axis = self._space.axis(name)
            if axis is None:
                return None
            rest -= flat_dim(axis).index * step
        key = ("first", param.text, index)
        first = self._builder.find(key)
        if first is None:
            start = address_at(param, self._index.tile(rest, value))
            address = start.expression
            for step in self._steps(steps, "first"):
                address = Offset(address, step)
            first = self._builder.remember(key, self._builder.hold("first", address, start.axes))
        inside = Offset(first.expression, add(*self._steps(steps, "lane")))
        return Tile(inside, first.axes.union(steps), param.dtype)

    def _steps(self, steps: dict[str, Size], of: str) -> list[Expression]:
        """Returns how far the begin of a tile, or its lanes, lie behind the first element, by steps along its axes."""
        addresses = self._builder.positions
        return [mul(addresses[name + of].position, self._number(step)) for name, step in steps.items()]

    def _number(self, size: Size) -> Expression:
        return self._space.params.value(size, self._dtype)

    def _behind(
        self, param: KernelParam, name: str, start: Index, step: Tile, value: Callable[[Scalar], Tile] | None
    ) -> Tile:
        """Returns an address a step behind the first one of a row or column, which has a name."""
        key = (name, param.text, start)
        first = self._builder.find(key)
        if first is None:
            offset = self._index.tile(start, value)
            address = address_at(param, offset).expression
            first = self._builder.remember(key, self._builder.hold(name, address, offset.axes))
        return Tile(Offset(first.expression, step.expression), first.axes | step.axes, first.dtype)

    def _vectors(self, offset: Tile, misalignment: Misalignment) -> Tile:
        """Returns offsets as those of vectors where they lie along the reduction axis: in misaligned rows, that is."""
        if "r" not in offset.axes:
            return offset
        return Tile(
            Hint(offset.expression, "multiple_of", self._along("r", misalignment.width)), offset.axes, offset.dtype
        )

    def _lies_in_odd_runs(self, index: Index) -> bool:
        """Returns whether neighbours along a tile's fastest axis are neighbours in memory, an odd number at a time."""
        run, order = unit_stride_run(index), self._space.order
        return run is not None and run % 2 == 1 and len(order) > 1 and unit_stride_axis(index) == order[-1]

    def _side_by_side(self, offset: Tile) -> Tile:
        """Returns offsets that the compiler takes for neighbours along the fastest axis, as most of them are.

        It knows of no neighbours where they come an odd number at a time, and gives those along the first axis to
        neighbouring threads instead (Triton's coalescing pass takes the first of axes that are alike). It still loads
        no vectors, as none begins at a multiple of two elements that it knows of.
        """
        hint = Hint(offset.expression, "max_contiguous", self._along(self._space.order[-1], 2))
        return Tile(hint, offset.axes, offset.dtype)

    def in_pieces(self, pointer: Expression, width: int) -> Expression:
        """Returns pointers along the reduction axis of which a thread takes no more than so many next to each other."""
        return Hint(pointer, "max_contiguous", self._along("r", width))

    def _along(self, axis: str, number: int) -> tuple[int, ...]:
        """Returns a number for one axis of a tile, and ones for the others."""
        return tuple(number if name == axis else 1 for name in self._space.order)

    def prefetch(self, param: KernelParam, index: Index) -> None:
        """Writes a prefetch of the next block of columns, while this one is worked on.

        Args:
            param: the parameter that the columns are read from, as `loop_plan.prefetched_loads` allows.
            index: where an element is, counted from the first one.
        """
        reduction, columns = self._space.reduction, self._space.axis(self._space.order[-1])
        rows = None if columns is None else behind(index, columns.name)
        if reduction is None or columns is None or rows is None:
            raise AssertionError("no columns side by side")
        sectors = self._sectors(columns, param.dtype.bytes)
        # The last block prefetches the first one, which is read next and again: an element that all share, of the
        # matrix or of their columns, would make them queue.
        step, size = self._number(step_along(index, "r")), self._number(reduction.size)
        start = self._builder.positions["rstart"].position
        start = converted(start, self._builder.type_of(start).dtype, self._dtype)
        block = block_size("RBLOCK", self._dtype)
        ahead = where(apply("lt", add(start, block), size), block, apply("neg", start))
        if reduction.masked:
            rows_ = self._builder.position("r")
            ahead = sub(apply("lesser", add(rows_, ahead), self._last(reduction.size)), rows_)
        column = apply("lesser", sectors, self._last(columns.size)) if columns.masked else sectors
        address: Expression = Name(param.text)
        for elements in (self._index.tile(rows).expression, mul(ahead, step), column):
            address = Offset(address, elements)
        self._builder.do(Prefetch(address), frozenset("r"))

    def _sectors(self, columns: KernelAxis, width: int) -> Expression:
        """Returns the columns of a tile with which a sector of memory begins, of elements of so many bytes."""
        key = ("sectors", columns.name, width)
        found = self._builder.find(key)
        if found is None:
            kind = TileType(self._dtype, (1, Block(columns.constant, SECTOR_BYTES // width)))
            operands = (self._builder.position(columns.name), Constant(width))
            held = self._builder.call("sector", "sectors", operands, kind, frozenset((columns.name,)))
            found = self._builder.remember(key, held)
        return found.expression

    def prefetch_bytes(
        self, param: KernelParam, start: Index, later: Expression, size: int, condition: Expression
    ) -> None:
        """Writes a prefetch of so many contiguous bytes into the cache, where a condition holds.

        Args:
            param: the parameter that they are read from.
            start: index of an element, the same for all threads of the program.
            later: how many elements behind it they begin.
            size: number of bytes, a multiple of 16.
            condition: under which they all exist.
        """
        address = address_at(param, self._index.tile(start))
        request = Call("prefetch_bytes", (Offset(address.expression, later), Constant(size)))
        self._builder.do_if(condition, request, NO_AXES)

    def _last(self, size: Size) -> Expression:
        """Returns the last position of an axis of this size, without a param of its own."""
        if is_static(size):
            return Literal(int(size) - 1, self._dtype)
        return sub(self._number(size), Literal(1, self._dtype))

    def row_mask(self, param: KernelParam, offset: Index) -> Expression | None:
        """Returns the mask of the reduction axis for a load: up to where whole vectors of floats can be read."""
        axis, misalignment = self._space.reduction, self._space.misalignment
        if misalignment is not None and "lanes" in self._builder.positions:
            return apply("lt", self._builder.position("lanes"), self._builder.position("vectors_end"))
        own = self._builder.positions["r"].mask if "r" in self._builder.positions else None
        if axis is None or not param.dtype.is_float:
            return own
        end = padded_extent(offset, axis.size, VECTOR_BYTES // param.dtype.bytes, param.param.type.storage_size)
        return own if end is None else apply("lt", self._builder.position("r"), Literal(end, self._dtype))

    def access(
        self,
        address: Tile,
        conditions: list[Tile],
        axes: Axes = NO_AXES,
        row_mask: Expression | None = None,
    ) -> tuple[Expression, Expression | None, Axes]:
        """Returns the pointers, the mask (None for none) and the axes of an access to memory.

        Args:
            address: the addresses of the elements.
            conditions: under which they are.
            axes: those that it varies along beside those of the addresses and the conditions.
            row_mask: the mask along the reduction axis; None for its own.
        """
        mask, axes = self.mask_of(axes | address.axes, conditions, row_mask)
        pointer = address.expression
        if self._space.tiled(axes) != self._space.tiled(address.axes):
            pointer = Broadcast(pointer, self._space.shape(axes))
        return pointer, mask, axes

    def mask_of(
        self, axes: Axes, conditions: list[Tile], row_mask: Expression | None = None
    ) -> tuple[Expression | None, Axes]:
        """Returns the mask of positions along axes under conditions, and all axes that it is for."""
        axes = axes.union(*(condition.axes for condition in conditions))
        names = [axis.name for axis in (*self._space.axes, *self._space.inner) if axis.name in axes and axis.masked]
        masks = [row_mask if name == "r" and row_mask is not None else self._builder.mask(name) for name in names]
        masks += [condition.expression for condition in conditions]
        return all_of(mask for mask in masks if mask is not None), axes


def address_at(param: KernelParam, offset: Tile) -> Tile:
    """Returns the address of the element of a parameter at an offset."""
    pointer = Name(param.text)
    address = pointer if offset.literal == 0 else Offset(pointer, offset.expression)
    return Tile(address, offset.axes, param.dtype)
