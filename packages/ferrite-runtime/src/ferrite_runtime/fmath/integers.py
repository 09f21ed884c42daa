"""Functions of integers."""

from __future__ import annotations

from typing import Any

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


@triton.jit
def magnitude_short(x):
    """Returns 16-bit integers without their sign; the least one stays.

    By way of floats, which hold them exactly: ptxas 12.8 takes ``-x`` and ``abs(x)`` of 16 bits for numbers of 32 bits
    where they are compared or widened next, and so loses that the least one stays.
    """
    return tl.abs(x.to(tl.float32)).to(tl.int32).to(tl.int16)


@triton.jit
def negative_short(x):
    """Returns 16-bit integers with the opposite sign; the least one stays, for which see `magnitude_short`."""
    return tl.where(x < 0, magnitude_short(x), -x)


@triton.jit
def truncdiv(a, b):
    """Divides, rounding towards zero, as C does."""
    return a // b


@triton.jit
def floordiv(a, b):
    """Divides, rounding towards minus infinity, as Python does."""
    quotient = a // b
    remainder = a % b
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def floormod(a, b):
    """Returns the remainder of floor division: it has the sign of the divisor, as in Python."""
    remainder = a % b
    return tl.where((remainder != 0) & ((remainder < 0) != (b < 0)), remainder + b, remainder)


def equal_neighbours(x: Any, axis: Any, count: Any, _semantic: Any = None) -> Any:
    """Returns a tile of which the compiler is told that so many neighbours along an axis are equal.

    That is Triton's own hint where the tile has as many positions: with more of them than positions Triton 3.6 does not
    compile. The compiler runs it where it is called, as a builtin: a hint on the parameter of a function is gone when
    the function is inlined. Interpreted, it says nothing.
    """
    if _semantic is None:
        return x
    numbers = [min(count.value, size) if dim == axis.value else 1 for dim, size in enumerate(x.shape)]
    return tl.max_constancy(x, [tl.constexpr(number) for number in numbers], _semantic=_semantic)


# As `tl.core.builtin` marks functions, whose own refuse to be called by an interpreter.
setattr(equal_neighbours, tl.core.TRITON_BUILTIN, True)
