"""Loads of several neighbouring elements at once: how those of a block of points lie, along one of its axes.

A convolution loads its windows (steps ``r0``, ``r1``) so, or not, as its images lie:

    x[n, h, w, c] at w = o + r0, c = r1     channels lie side by side, and all else moves by whole vectors
    x[n, c, h, w] at w = o + r0, c = r1     positions lie side by side, but each step of a window shifts them by one
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrite_ir.language.index import Dim, linearize
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size

VECTOR_BYTES = 16
"""The most that a thread of a GPU loads or stores at once."""


def is_in_vectors(load: Scalar, strides: Sequence[Size]) -> bool:
    """Returns whether a load of a value that lies with such strides takes whole vectors along one dim.

    Those begin at multiples of a vector: one dim, itself of whole vectors, moves by one element, all others by
    multiples. Where symbolic sizes, or indices that are read from memory, leave that open it is False.
    """
    vector = VECTOR_BYTES // load.dtype.bytes
    place = linearize(load.indices, tuple(strides))
    if not _is_multiple(place.const, vector):
        return False
    single = [
        atom
        for atom, coefficient in place.terms
        if not _is_multiple(coefficient, vector) and not (isinstance(atom, Dim) and atom.size == 1)
    ]
    if len(single) != 1:
        return False
    (atom,) = single
    coefficients = dict(place.terms)
    return isinstance(atom, Dim) and coefficients[atom] == 1 and _is_multiple(atom.size, vector)


def _is_multiple(number: Size, vector: int) -> bool:
    return isinstance(number, int) and number % vector == 0
