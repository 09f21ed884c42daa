"""Halves that stay halves: those that are used twice a compiler would widen once, and hold in twice the registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unknown_zero(status):
    """Returns a zero that no compiler knows, made of the counter at the beginning of a status."""
    return (tl.load(status, volatile=True) >> 62).to(tl.int16)


@triton.jit
def kept(narrow, zero):
    """Returns a tile of halves as it is; whatever is computed of the result is not what was computed of them before."""
    return (narrow.to(tl.int16, bitcast=True) ^ zero).to(narrow.dtype, bitcast=True)
