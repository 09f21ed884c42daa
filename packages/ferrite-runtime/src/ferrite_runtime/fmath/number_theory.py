"""Functions of integers that need a loop."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.special import largest, spread


@triton.jit
def gcd(a, b):
    """Returns the greatest common divisor of integers of one type, by Euclid's algorithm; never negative, 0 of zeros.

    The lowest number of a signed type is its own magnitude, as everywhere in two's complement.
    """
    x = spread(tl.abs(a), b)
    y = spread(tl.abs(b), a)
    while largest((y != 0).to(tl.int32)) != 0:
        busy = y != 0
        rest = tl.where(busy, x % tl.where(busy, y, 1), 0).to(x.dtype)
        x = tl.where(busy, y, x)
        y = rest
    return x
