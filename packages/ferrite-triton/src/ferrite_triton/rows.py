"""Rows in an index: where a position along an axis counts elements that lie next to each other."""

from __future__ import annotations

from ferrite_ir.index import Atom, Dim, Index, atom_dims


def is_aligned_row(offset: Index, width: int, axis: str = "r") -> bool:
    """Returns whether an offset counts along an axis, from a multiple of ``width`` elements on."""
    rest = behind(offset, axis)
    numbers = () if rest is None else (*(coefficient for _, coefficient in rest.terms), rest.const)
    return rest is not None and all(type(number) is int and number % width == 0 for number in numbers)


def behind(index: Index, axis: str = "r") -> Index | None:
    """Returns what is added to an axis's position in an index that grows by one along it, or None for another index."""
    along = [(atom, coefficient) for atom, coefficient in index.terms if _depends_on(atom, axis)]
    if len(along) != 1 or not isinstance(along[0][0], Dim) or along[0][1] != 1:
        return None
    return index - along[0][0].index


def _depends_on(atom: Atom, axis: str) -> bool:
    return any(dim.name == axis for dim in atom_dims(atom))
