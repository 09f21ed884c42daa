"""Orthogonal polynomials of a run-time degree, by their recurrences (DLMF 18.9), as torch evaluates them.

A degree is a float; its fraction is dropped. Below zero, and where it is no finite number, the value is 0, as in torch
on the CPU. Each element stops at its own degree, the tile at the largest of them: an element that takes no part must
have the degree 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.elementary import acos, cos, sin, trunc
from ferrite_runtime.fmath.special import largest, spread

_STEPS = tl.constexpr(2147483647.0)


@triton.jit
def _degree(n):
    # What is no finite number of steps has no degree: -1. As a float, which holds every degree that n does.
    whole = trunc(n)
    return tl.where((whole >= 0.0) & (whole < float("inf")), whole, -1.0)


@triton.jit
def _steps(degree):
    return tl.minimum(degree, _STEPS).to(tl.int32)


@triton.jit
def _one(like):
    return spread(1.0, like).to(like.dtype)


@triton.jit
def _is_odd(degree):
    half = degree * 0.5
    return half != trunc(half)


@triton.jit
def _chebyshev(x, n, kind: tl.constexpr):
    # p(0) = 1, p(1) = 2 x + shift (x itself for the first kind), p(k) = 2 x p(k-1) - p(k-2). Within the interval by the
    # angle from degree 7 on, in float64, so that the degree multiplies no rounding but that of x.
    degree = spread(_degree(n), x)
    point = spread(x, n)
    closed = (degree > 6.0) & (tl.abs(point) < 1.0)
    ends = tl.abs(point) == 1.0
    steps = _steps(tl.where(closed | ends, 0.0, degree))
    twice = point + point
    before = _one(point)
    current = point if kind == "t" else (twice if kind == "u" else (twice - 1.0 if kind == "v" else twice + 1.0))
    for k in range(1, largest(steps)):
        following = twice * current - before
        active = k < steps
        before = tl.where(active, current, before)
        current = tl.where(active, following, current)
    wide = tl.where(closed, point, 0.0).to(tl.float64)
    order = tl.where(closed, degree, 0.0).to(tl.float64)
    angle = acos(wide)
    at_one = _one(degree)
    at_minus_one = at_one
    if kind == "t":
        round_value = cos(order * angle)
    elif kind == "u":
        round_value = sin((order + 1.0) * angle) / tl.sqrt((1.0 - wide) * (1.0 + wide))
        at_one = degree + 1.0
        at_minus_one = at_one
    elif kind == "v":
        round_value = cos((order + 0.5) * angle) / tl.sqrt((1.0 + wide) * 0.5)
        at_minus_one = degree + degree + 1.0
    else:
        round_value = sin((order + 0.5) * angle) / tl.sqrt((1.0 - wide) * 0.5)
        at_one = degree + degree + 1.0
    value = tl.where(closed, round_value.to(current.dtype), tl.where(degree == 0.0, 1.0, current))
    at_end = tl.where(point > 0.0, at_one, tl.where(_is_odd(degree), -at_minus_one, at_minus_one))
    return tl.where(degree < 0.0, 0.0, tl.where(ends, at_end, value))


@triton.jit
def chebyshev_t(x, n):
    """Returns the Chebyshev polynomial of the first kind of degree n."""
    return _chebyshev(x, n, "t")


@triton.jit
def chebyshev_u(x, n):
    """Returns the Chebyshev polynomial of the second kind of degree n."""
    return _chebyshev(x, n, "u")


@triton.jit
def chebyshev_v(x, n):
    """Returns the Chebyshev polynomial of the third kind of degree n."""
    return _chebyshev(x, n, "v")


@triton.jit
def chebyshev_w(x, n):
    """Returns the Chebyshev polynomial of the fourth kind of degree n."""
    return _chebyshev(x, n, "w")


@triton.jit
def _recurrence(x, n, kind: tl.constexpr):
    # p(k+1) from p(k) and p(k-1), beginning with 1 and a linear p(1).
    degree = spread(_degree(n), x)
    point = spread(x, n)
    steps = _steps(degree)
    limit: tl.constexpr = 512 if point.dtype == tl.float64 else 128
    if kind == "h" or kind == "he":
        steps = tl.where(steps > limit, 0, steps)
    before = _one(point)
    current = point + point if kind == "h" else (1.0 - point if kind == "l" else point)
    for k in range(1, largest(steps)):
        step = (steps * 0 + k).to(point.dtype)  # the counter is a plain number in the interpreter
        if kind == "h":
            following = (point + point) * current - (step + step) * before
        elif kind == "he":
            following = point * current - step * before
        elif kind == "l":
            following = ((step + step + (1.0 - point)) * current - step * before) / (step + 1.0)
        else:
            following = ((step + step + 1.0) * point * current - step * before) / (step + 1.0)
        active = k < steps
        before = tl.where(active, current, before)
        current = tl.where(active, following, current)
    value = tl.where(degree == 0.0, 1.0, current)
    if kind == "h" or kind == "he":
        value = tl.where(degree > limit, float("nan"), value)
    elif kind == "l":
        value = tl.where(point == 0.0, 1.0, value)
    else:
        value = tl.where(tl.abs(point) == 1.0, tl.where((point > 0.0) | ~_is_odd(degree), 1.0, -1.0), value)
    return tl.where(degree < 0.0, 0.0, value)


@triton.jit
def hermite_h(x, n):
    """Returns the physicists' Hermite polynomial of degree n; NaN beyond 128 (512 in float64), as in torch."""
    return _recurrence(x, n, "h")


@triton.jit
def hermite_he(x, n):
    """Returns the probabilists' Hermite polynomial of degree n; NaN beyond 128 (512 in float64), as in torch."""
    return _recurrence(x, n, "he")


@triton.jit
def laguerre_l(x, n):
    """Returns the Laguerre polynomial of degree n."""
    return _recurrence(x, n, "l")


@triton.jit
def legendre_p(x, n):
    """Returns the Legendre polynomial of degree n."""
    return _recurrence(x, n, "p")
