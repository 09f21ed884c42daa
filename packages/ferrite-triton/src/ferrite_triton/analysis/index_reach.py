"""How far indices reach: bounds of their magnitude, and of everything that is computed on the way to them."""

from __future__ import annotations

from ferrite_ir.language.index import FloorDiv, Index, Mod
from ferrite_ir.language.sizes import Size, maximum
from ferrite_triton.analysis.size_params import magnitude

# Texts of 32-bit address arithmetic keep everything, lanes past the end included, below this.
INDEX_LIMIT = 2**31 - 2**16


def reaches_of(index: Index) -> list[Size]:
    """Returns upper bounds of the magnitude of an index and of everything computed on the way to it."""
    pending = [index]
    found: list[Size] = []
    while pending:
        current = pending.pop()
        found.append(_reach(current))
        pending += [atom.numerator for atom, _ in current.terms if isinstance(atom, (FloorDiv, Mod))]
    return found


def _reach(index: Index) -> Size:
    """Returns an upper bound of the magnitude of an index; indices nest as deeply as users write divisions."""
    largest = magnitude(index.const)
    for atom, coefficient in index.terms:
        low, high = atom.lo, atom.hi
        if isinstance(atom, FloorDiv) and (low is None or high is None):
            bound = _reach(atom.numerator)  # of unknown sign, such as that of a number that changes from call to call
        else:
            bound = maximum(magnitude(low), magnitude(high))
        largest = largest + bound * magnitude(coefficient)
    return largest
