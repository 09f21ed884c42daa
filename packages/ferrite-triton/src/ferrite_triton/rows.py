"""Rows in an index: where a position along an axis counts elements that lie next to each other."""

from __future__ import annotations

from ferrite_ir.index import Atom, Dim, Index, atom_dims
from ferrite_ir.sizes import Size, add, is_provably_at_most, is_static, quotient

WIDEST_ACCESS = 16
"""Bytes that a thread reads or writes at a time, at most."""


def is_aligned_row(offset: Index, width: int, axis: str = "r", row: Size = 0) -> bool:
    """Returns whether an offset counts along an axis, from a multiple of ``width`` elements on.

    ``row`` is a symbolic size that such a multiple is known to be.
    """
    rest = behind(offset, axis)
    numbers = () if rest is None else (*(coefficient for _, coefficient in rest.terms), rest.const)
    return rest is not None and all(_is_multiple(number, width, row) for number in numbers)


def _is_multiple(number: Size, width: int, row: Size) -> bool:
    if isinstance(number, int):
        return number % width == 0
    return not is_static(row) and quotient(number, row) is not None


def padded_extent(offset: Index, extent: Size, width: int, elements: Size) -> int | None:
    """Returns the next multiple of ``width`` after a row's end if rows can be read up to there, else None.

    They can where they begin at multiples of ``width`` and memory goes on behind the last one. A mask that ends at such
    a multiple lets a thread read ``width`` elements at a time; what lies behind the end has to be dropped afterwards.

    Args:
        offset: of an element, with the position in its row as dim ``r``.
        extent: of rows, in elements.
        width: elements read at a time.
        elements: that the memory holds.
    """
    if type(extent) is not int or offset.hi is None:
        return None
    end = -(-extent // width) * width
    if end == extent or not is_aligned_row(offset, width):
        return None
    return end if is_provably_at_most(add(offset.hi, end - extent + 1), elements) else None


def row_start(index: Index, length: Size) -> Index | None:
    """Returns where the row begins that an index lies in, if it is one of several, of a symbolic length."""
    start = None if is_static(length) or index.is_indirect else behind(index)
    return None if start is None or start.is_constant else start


def column_start(index: Index, axis: str = "r") -> Index | None:
    """Returns where the column begins that an index walks down in steps of symbolic length, None for another index."""
    along = [(atom, step) for atom, step in index.terms if _depends_on(atom, axis)]
    if len(along) != 1 or index.is_indirect or not isinstance(along[0][0], Dim) or is_static(along[0][1]):
        return None
    step: Index = along[0][0].index * along[0][1]
    return index - step


def behind(index: Index, axis: str = "r") -> Index | None:
    """Returns what is added to an axis's position in an index that grows by one along it, or None for another index."""
    along = [(atom, coefficient) for atom, coefficient in index.terms if _depends_on(atom, axis)]
    if len(along) != 1 or not isinstance(along[0][0], Dim) or along[0][1] != 1:
        return None
    return index - along[0][0].index


def _depends_on(atom: Atom, axis: str) -> bool:
    return any(dim.name == axis for dim in atom_dims(atom))
