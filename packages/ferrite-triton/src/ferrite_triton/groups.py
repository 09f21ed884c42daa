"""Neighbours along the fold axis that one thread holds: folded among themselves they share what a loop carries.

A thread reads 16 bytes at a time. Where the elements in them lie next to each other along the fold axis, a tile
``[…, RBLOCK]`` is ``[…, RBLOCK // n, n]`` without moving anything between threads.
"""

from __future__ import annotations

from ferrite_ir.graph import Fold
from ferrite_ir.index import Atom, Dim, Index, atom_dims
from ferrite_ir.sizes import is_provably_at_most, quotient

from .flat import FlatKernel, memory_loads

WIDEST_ACCESS = 16
SHORTEST = 1024
"""Fewest points of a fold axis whose blocks are surely wide enough to be grouped."""


def neighbours(flat: FlatKernel, fold: Fold) -> int:
    """Returns how many neighbours along the fold axis a thread reads at once; 1 where they do not lie together."""
    space = flat.space
    axis = space.fold
    if axis is None or space.order[-1:] != ("r",) or not is_provably_at_most(SHORTEST, axis.size):
        return 1
    found = 0
    for load in memory_loads(flat, fold.bodies):
        offset = flat.offset(load.source, load.indices)
        if not any(dim.name == "r" for dim in offset.dims):
            continue
        width = WIDEST_ACCESS // flat.param_of(load.source).dtype.bytes
        if quotient(axis.size, width) is None or not is_aligned_row(offset, width):
            return 1
        found = min(found or width, width)
    return max(1, found)


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
