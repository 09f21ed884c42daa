"""Orthogonal polynomials of a degree that is a number, by their recurrences, with torch's values at the edges.

Source of the recurrences: DLMF, table 18.9.1 and 18.9.2. A degree loses its fraction; below zero, and where it is no
finite number, the value is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ferrite_ir.language.dtypes import DType

Step = Callable[[float, int, float, float], float]
"""Gives the polynomial of degree k + 1 from x, k and those of degrees k and k - 1."""


def _degree(n: float) -> int:
    return int(n) if math.isfinite(n) else -1


def _run(x: float, degree: int, first: float, step: Step) -> float:
    if degree < 0:
        return 0.0
    before, current = 1.0, first
    for k in range(1, degree):
        before, current = current, step(x, k, current, before)
        if math.isnan(current):
            break
    return current if degree else 1.0


def _chebyshev_step(x: float, _: int, current: float, before: float) -> float:
    return 2.0 * x * current - before


def chebyshev_t(x: float, n: float) -> float:
    """Returns the Chebyshev polynomial of the first kind."""
    degree = _degree(n)
    if abs(x) < 1.0 and degree > 6:
        return math.cos(degree * math.acos(x))
    return _run(x, degree, x, _chebyshev_step)


def chebyshev_u(x: float, n: float) -> float:
    """Returns the Chebyshev polynomial of the second kind."""
    degree = _degree(n)
    if abs(x) < 1.0 and degree > 6:
        return math.sin((degree + 1) * math.acos(x)) / math.sqrt((1.0 - x) * (1.0 + x))
    return _run(x, degree, 2.0 * x, _chebyshev_step)


def chebyshev_v(x: float, n: float) -> float:
    """Returns the Chebyshev polynomial of the third kind."""
    degree = _degree(n)
    if abs(x) < 1.0 and degree > 6:
        return math.cos((degree + 0.5) * math.acos(x)) / math.sqrt((1.0 + x) / 2.0)
    return _run(x, degree, 2.0 * x - 1.0, _chebyshev_step)


def chebyshev_w(x: float, n: float) -> float:
    """Returns the Chebyshev polynomial of the fourth kind."""
    degree = _degree(n)
    if abs(x) < 1.0 and degree > 6:
        return math.sin((degree + 0.5) * math.acos(x)) / math.sqrt((1.0 - x) / 2.0)
    return _run(x, degree, 2.0 * x + 1.0, _chebyshev_step)


def hermite_h(x: float, n: float, dtype: DType) -> float:
    """Returns the physicists' Hermite polynomial; NaN beyond the degree at which torch gives up."""
    degree = _degree(n)
    if degree > _last_hermite(dtype):
        return math.nan
    return _run(x, degree, 2.0 * x, lambda x, k, current, before: 2.0 * x * current - 2.0 * k * before)


def hermite_he(x: float, n: float, dtype: DType) -> float:
    """Returns the probabilists' Hermite polynomial; NaN beyond the degree at which torch gives up."""
    degree = _degree(n)
    if degree > _last_hermite(dtype):
        return math.nan
    return _run(x, degree, x, lambda x, k, current, before: x * current - k * before)


def _last_hermite(dtype: DType) -> int:
    return 512 if dtype.bits == 64 else 128


def laguerre_l(x: float, n: float) -> float:
    """Returns the Laguerre polynomial."""
    degree = _degree(n)
    if x == 0.0 and degree >= 0:
        return 1.0
    return _run(x, degree, 1.0 - x, lambda x, k, current, before: ((2 * k + 1 - x) * current - k * before) / (k + 1))


def legendre_p(x: float, n: float) -> float:
    """Returns the Legendre polynomial."""
    degree = _degree(n)
    if abs(x) == 1.0 and degree >= 0:
        return 1.0 if x > 0 or degree % 2 == 0 else -1.0
    return _run(x, degree, x, lambda x, k, current, before: ((2 * k + 1) * x * current - k * before) / (k + 1))
