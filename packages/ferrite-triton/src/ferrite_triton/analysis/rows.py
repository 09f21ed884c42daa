"""Rows in an index: where a position along an axis counts elements that lie next to each other."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from ferrite_ir.language.index import Atom, Dim, FloorDiv, Index, Indirect, Mod, atom_dims
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_ir.language.sizes import Size, add, is_provably_at_most, is_static, quotient


def is_aligned_row(offset: Index, width: int, axis: str = "r", row: Size = 0) -> bool:
    """Returns whether an offset counts along an axis, from a multiple of ``width`` elements on.

    ``row`` is a symbolic size that such a multiple is known to be.
    """
    rest = behind(offset, axis)
    numbers = () if rest is None else (*(coefficient for _, coefficient in rest.terms), rest.const)
    return rest is not None and all(_is_multiple(number, width, row) for number in numbers)


def _is_multiple(number: Size, width: int, row: Size) -> bool:
    if width == 1:
        return True
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


def row_start(index: Index) -> Index | None:
    """Returns where the row begins that an index lies in, if it is one of several."""
    start = None if index.is_indirect else behind(index)
    return None if start is None or start.is_constant else start


def column_start(index: Index) -> Index | None:
    """Returns where the column begins that an index walks down in steps of symbolic length, None for another index."""
    step, start = _steps(index, "r")
    return None if start is None or start.is_indirect or is_static(step) else start


def behind(index: Index, axis: str = "r") -> Index | None:
    """Returns what is added to an axis's position in an index that grows by one along it, or None for another index."""
    step, start = _steps(index, axis)
    return start if step == 1 else None


def step_along(index: Index, axis: str) -> Size:
    """Returns by how much an index grows along an axis, 0 if in no even steps."""
    return _steps(index, axis)[0]


def varies_along_reduction(indices: Iterable[Index]) -> bool:
    """Returns whether one of the indices depends on the position along the reduction axis."""
    return any(dim.name == "r" for index in indices for dim in index.dims)


def _steps(index: Index, axis: str) -> tuple[Size, Index | None]:
    """Returns by how much an index grows along an axis, and where it begins; 0 and None if in no even steps."""
    along = [(atom, coefficient) for atom, coefficient in index.terms if _depends_on(atom, axis)]
    if len(along) != 1 or not isinstance(along[0][0], Dim):
        return 0, None
    dim, step = along[0]
    return step, index - dim.index * step


def _depends_on(atom: Atom, axis: str) -> bool:
    return any(dim.name == axis for dim in atom_dims(atom))


def is_made_of_floats(value: Scalar) -> bool:
    """Returns whether an integer is converted from floats that are computed."""
    return any(node.dtype.is_float and node.op != "load" for node in postorder((value,)))


def equal_neighbours(value: Scalar, axis: str) -> int:
    """Returns for how many positions along an axis, from each multiple of so many on, a value is the same.

    A power of two: the largest that divides whatever the position is divided by where the value depends on it. 1 where
    it depends on the position in other ways, or not at all.
    """
    reads = (node for node in postorder((value,)) if node.op in ("load", "index"))
    run = gcd(*(_equal_neighbours(index, axis) for node in reads for index in node.indices))
    return run & -run or 1


def _equal_neighbours(index: Index, axis: str) -> int:
    """Returns what all divisors of the position along an axis have in common; 0 if the index does not depend on it."""
    common = 0
    for atom, _ in index.terms:
        match atom:
            case Dim():
                found = 1 if atom.name == axis else 0
            case FloorDiv():
                is_cut = is_static(atom.divisor) and any(
                    dim.index is atom.numerator for dim in atom_dims(atom) if dim.name == axis
                )
                found = int(atom.divisor) if is_cut else _equal_neighbours(atom.numerator, axis)
            case Mod():
                found = _equal_neighbours(atom.numerator, axis)
            case Indirect():
                found = equal_neighbours(atom.value, axis) if any(dim.name == axis for dim in atom.value.dims) else 0
            case _:
                raise TypeError(f"not an index atom: {atom!r}")
        common = gcd(common, found)
    return common
