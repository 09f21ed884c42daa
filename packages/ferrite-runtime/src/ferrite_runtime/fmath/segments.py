"""Segments of a tile: sorted rows combined first with each other, then into rows of memory; see `fmath`.

Each function takes the first element's pointer, offsets and values of full extent, the destinations and whether a
destination ends with a row (one column), a mask (or None), and the axis along which rows follow each other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.atomics import atomic_max_nan, atomic_min_nan
from ferrite_runtime.fmath.combines import maximum_nan, minimum_nan


@triton.jit
def _add_pair(destination_a, a, destination_b, b):
    return destination_b, tl.where(destination_a == destination_b, a + b, b)


@triton.jit
def _maximum_pair(destination_a, a, destination_b, b):
    return destination_b, tl.where(destination_a == destination_b, maximum_nan(a, b), b)


@triton.jit
def _minimum_pair(destination_a, a, destination_b, b):
    return destination_b, tl.where(destination_a == destination_b, minimum_nan(a, b), b)


@triton.jit
def _is_one(destination, mask):
    """Returns whether all rows of a tile go to one destination."""
    if mask is None:
        return tl.min(destination, None) == tl.max(destination, None)
    else:
        return False


@triton.jit
def _ends(ends, mask):
    if mask is None:
        return ends
    else:
        return ends & mask


@triton.jit
def add_segments(first, offset, value, destination, ends, mask, axis: tl.constexpr):
    """Adds rows to rows of memory, with one atomic addition for rows that go to one destination."""
    if _is_one(destination, mask):
        total = tl.sum(value, axis, keep_dims=True)
        tl.atomic_add(first + tl.max(offset, axis, keep_dims=True), total, sem="relaxed")
    else:
        destinations = tl.broadcast_to(destination, value.shape)
        _, totals = tl.associative_scan((destinations, value), axis, _add_pair)
        tl.atomic_add(first + offset, totals, mask=_ends(ends, mask), sem="relaxed")


@triton.jit
def maximum_segments(first, offset, value, destination, ends, mask, axis: tl.constexpr):
    """Replaces rows of memory by the larger of themselves and the rows that go there; NaN wins."""
    if _is_one(destination, mask):
        total = tl.reduce(value, axis, maximum_nan, keep_dims=True)
        atomic_max_nan(first, tl.max(offset, axis, keep_dims=True), total, None)
    else:
        destinations = tl.broadcast_to(destination, value.shape)
        _, totals = tl.associative_scan((destinations, value), axis, _maximum_pair)
        atomic_max_nan(first, offset, totals, _ends(ends, mask))


@triton.jit
def minimum_segments(first, offset, value, destination, ends, mask, axis: tl.constexpr):
    """Replaces rows of memory by the smaller of themselves and the rows that go there; NaN wins."""
    if _is_one(destination, mask):
        total = tl.reduce(value, axis, minimum_nan, keep_dims=True)
        atomic_min_nan(first, tl.max(offset, axis, keep_dims=True), total, None)
    else:
        destinations = tl.broadcast_to(destination, value.shape)
        _, totals = tl.associative_scan((destinations, value), axis, _minimum_pair)
        atomic_min_nan(first, offset, totals, _ends(ends, mask))
