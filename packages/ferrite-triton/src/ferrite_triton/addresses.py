"""Addresses of elements in memory, and the masks under which they are accessed."""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.dtypes import DType
from ferrite_ir.index import Index
from ferrite_ir.scalar import Scalar
from ferrite_ir.sizes import Size, is_static

from .flat import ParamText
from .indices import IndexText
from .rows import WIDEST_ACCESS, behind, column_start, padded_extent, row_start, step_along
from .space import NO_AXES, Axes, Skew, Space, flat_dim
from .writer import Tile, Writer


class AddressText:
    """Writes the addresses of one kernel.

    Args:
        writer: takes the lines.
        space: the axes.
        index: writes offsets.
        dtype: of the address arithmetic.
        has_column: whether a single tensor is read along the fold axis, and nothing written, in a loop.
        has_rows: whether rows have addresses of their own even if their length is a number: no register should hold
            those of their elements.
        in_tiles: whether lines say where a tile begins (``rfirst``, ``xfirst``) and which of its lanes it has.
    """

    def __init__(
        self,
        writer: Writer,
        space: Space,
        index: IndexText,
        dtype: DType,
        *,
        has_column: bool = False,
        has_rows: bool = False,
        in_tiles: bool = False,
    ) -> None:
        self._writer = writer
        self._space = space
        self._index = index
        self._dtype = dtype
        self._has_column = has_column
        self._in_tiles = in_tiles
        self._has_rows = has_rows or (space.fold is not None and not is_static(space.fold.size))

    def place(self, param: ParamText, index: Index, value: Callable[[Scalar], Tile] | None = None) -> Tile:
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
            return self._behind(param, "row", start, Tile("r", frozenset("r"), self._dtype), value)
        column = column_start(index) if self._has_column else None
        if column is not None:
            # With an address of its own for each column the compiler orders the loads of a step before their use, where
            # otherwise it saves the registers and waits for each. Offsets that several operands share are cheaper.
            return self._behind(param, "column", column, self._index.tile(index - column, value), value)
        offset, skew = self._index.tile(index, value), self._space.skew
        return place_at(param, offset if skew is None else self._vectors(offset, skew))

    def _in_tile(self, param: ParamText, index: Index, value: Callable[[Scalar], Tile] | None) -> Tile | None:
        """Returns an address as that of a tile's first element and what is added in the tile, which are constants.

        None for an index that does not grow evenly along the fold axis and ``x``.
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
        params, key = self._space.params, ("first", param.text, index)
        first = self._writer.find(key)
        if first is None:
            start = place_at(param, self._index.tile(rest, value))
            text = " + ".join(f"{name}first * {params.operand(step)}" for name, step in steps.items())
            held = self._writer.hold("first", f"{start.text} + {text}", start.axes, self._dtype)
            first = self._writer.remember(key, held)
        text = " + ".join(f"{name}lane * {params.operand(step)}" for name, step in steps.items())
        return Tile(f"{first.text} + ({text})", first.axes.union(steps), self._dtype)

    def _behind(
        self, param: ParamText, name: str, start: Index, step: Tile, value: Callable[[Scalar], Tile] | None
    ) -> Tile:
        """Returns an address a step behind the first one of a row or column, which a line holds."""
        key = (name, param.text, start)
        first = self._writer.find(key)
        if first is None:
            offset = self._index.tile(start, value)
            text = place_at(param, offset).text
            first = self._writer.remember(key, self._writer.hold(name, text, offset.axes, self._dtype))
        return Tile(f"{first.text} + {step.text}", first.axes | step.axes, first.dtype)

    def _vectors(self, offset: Tile, skew: Skew) -> Tile:
        """Returns offsets as those of vectors where they lie along the fold axis: in skewed rows, that is."""
        if "r" not in offset.axes:
            return offset
        return Tile(f"tl.multiple_of({offset.text}, {self._along_row(skew.width)})", offset.axes, offset.dtype)

    def in_pieces(self, pointer: str, width: int) -> str:
        """Returns pointers along the fold axis of which a thread takes no more than so many next to each other."""
        return f"tl.max_contiguous({pointer}, {self._along_row(width)})"

    def _along_row(self, width: int) -> str:
        """Returns a list with a number for the fold axis, and ones for the others."""
        return f"[{', '.join(str(width) if name == 'r' else '1' for name in self._space.order)}]"

    def ask_ahead(self, param: ParamText, index: Index) -> None:
        """Writes that the cache gets the next block of columns, while this one is worked on.

        Args:
            param: the parameter that the columns are read from, as `passes.read_ahead` allows.
            index: where an element is, counted from the first one.
        """
        fold, columns = self._space.fold, self._space.axis(self._space.order[-1])
        rows = None if columns is None else behind(index, columns.name)
        if fold is None or columns is None or rows is None:
            raise AssertionError("no columns side by side")
        params, key = self._space.params, ("sectors", columns.name, param.dtype.bytes)
        sectors = self._writer.find(key)
        if sectors is None:
            text = f"fmath.sectors({columns.name}, {param.dtype.bytes})"
            held = self._writer.hold("sector", text, frozenset((columns.name,)), self._dtype)
            sectors = self._writer.remember(key, held)
        # The last block asks for the first one, which is read next, and again: an element that all share, of the matrix
        # or of their columns, would make them queue.
        step, size = params.operand(step_along(index, "r")), params.operand(fold.size)
        ahead = f"tl.where(rstart + RBLOCK < {size}, RBLOCK, -rstart)"
        if fold.masked:
            ahead = f"(tl.minimum(r + {ahead}, {self._last(fold.size)}) - r)"
        offset = f"{self._index.tile(rows).text} + {ahead} * {step}"
        column = f"tl.minimum({sectors.text}, {self._last(columns.size)})" if columns.masked else sectors.text
        self._writer.line(f"fmath.prefetch({param.text} + {offset} + {column})", frozenset("r"))

    def ask_for(self, param: ParamText, start: Index, later: str, size: int, condition: str) -> None:
        """Writes that the cache gets so many bytes that lie in a row, where a condition holds.

        Args:
            param: the parameter that they are read from.
            start: index of an element, the same for all threads of the program.
            later: text of how many elements behind it they begin.
            size: number of bytes, a multiple of 16.
            condition: text of a condition under which they all exist.
        """
        place = place_at(param, self._index.tile(start))
        self._writer.line(f"if {condition}: fmath.prefetch_bytes({place.text} + {later}, {size})", NO_AXES)

    def _last(self, size: Size) -> str:
        """Returns the last position of an axis of this size, without a param of its own."""
        return str(int(size) - 1) if is_static(size) else f"{self._space.params.operand(size)} - 1"

    def row_mask(self, param: ParamText, offset: Index) -> str:
        """Returns the mask of the fold axis for a load: up to where whole vectors of floats can be read."""
        axis, skew = self._space.fold, self._space.skew
        if skew is not None:
            return "lanes < vectors_end"
        if axis is None or not param.dtype.is_float:
            return "rmask"
        end = padded_extent(offset, axis.size, WIDEST_ACCESS // param.dtype.bytes, param.param.type.storage_size)
        return "rmask" if end is None else f"r < {end}"

    def access(
        self, place: Tile, conditions: list[Tile], axes: Axes = NO_AXES, row_mask: str = "rmask"
    ) -> tuple[str, str, Axes]:
        """Returns the pointer text, the mask text ("" for none) and the axes of an access to memory.

        Args:
            place: the addresses of the elements.
            conditions: under which they are.
            axes: those that it varies along beside those of the addresses and the conditions.
            row_mask: the mask along the fold axis.
        """
        axes = axes.union(place.axes, *(condition.axes for condition in conditions))
        names = [axis.name for axis in self._space.axes if axis.name in axes and axis.masked]
        masks = [row_mask if name == "r" else f"{name}mask" for name in names]
        masks += [condition.text for condition in conditions]
        if len(masks) > 1:
            masks = [f"({mask})" if " " in mask else mask for mask in masks]
        pointer = place.text
        if self._space.tiled(axes) != self._space.tiled(place.axes):
            pointer = f"tl.broadcast_to({pointer}, {self._space.shape(axes)})"
        return pointer, " & ".join(masks), axes


def place_at(param: ParamText, offset: Tile) -> Tile:
    """Returns the address of the element of a parameter at an offset."""
    text = param.text if offset.literal == 0 else f"{param.text} + {offset.text}"
    return Tile(text, offset.axes, offset.dtype)


def plain_load(pointer: str, mask: str, other: str | None, eviction_policy: str) -> str:
    """Returns the text of a load; what stands for elements that the ``mask`` leaves out may be anything, if None."""
    arguments = [pointer, *([mask] if mask else []), *([f"other={other}"] if mask and other is not None else [])]
    if eviction_policy:
        arguments.append(f'eviction_policy="{eviction_policy}"')
    return f"tl.load({', '.join(arguments)})"


def own_row_load(pointer: str, mask: str, other: str | None, eviction_policy: str) -> str:
    """Returns the text of a load of rows of which each thread gets one; see `walked`."""
    return f'fmath.load_rows({pointer}, {mask}, {other}, "{eviction_policy}")'
