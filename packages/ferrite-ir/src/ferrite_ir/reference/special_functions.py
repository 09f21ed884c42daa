"""Special functions that Python's math module lacks, in double precision."""

from __future__ import annotations

import math
from statistics import NormalDist


def logaddexp(x: float, y: float) -> float:
    """Returns the logarithm of the sum of two numbers' exponentials; NaN wins."""
    if math.isnan(x) or math.isnan(y):
        return math.nan
    top = max(x, y)
    return top if math.isinf(top) else top + math.log1p(math.exp(-abs(x - y)))


def erfinv(x: float) -> float:
    """Returns the inverse of the error function: NaN outside of [-1, 1]."""
    if not -1.0 <= x <= 1.0:
        return math.nan
    if abs(x) == 1.0:
        return math.copysign(math.inf, x)
    y = NormalDist().inv_cdf((1.0 - abs(x)) / 2.0) / -math.sqrt(2.0)
    for _ in range(2):
        # Newton steps; the error is taken from erfc in the tail, where erf is flat.
        error = (math.erf(y) - abs(x)) if y < 1.0 else (1.0 - abs(x)) - math.erfc(y)
        y -= error * math.sqrt(math.pi) / 2.0 * math.exp(y * y)
    return math.copysign(y, x)


def digamma(x: float) -> float:
    """Returns the logarithmic derivative of the gamma function.

    Source: Abramowitz, Stegun, "Handbook of Mathematical Functions", 6.3.5, 6.3.7 and 6.3.18.
    """
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == math.inf:
        return x
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if x == math.floor(x):
            return math.nan
        return digamma(1.0 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1.0))
    total = 0.0
    while x < 10.0:
        total -= 1.0 / x
        x += 1.0
    inverse = 1.0 / (x * x)
    terms = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
    series = 0.0
    for term in reversed(terms):
        series = (series + term) * inverse
    return total + math.log(x) - 0.5 / x - series


def _modified(order: int, x: float) -> float:
    """Returns ``exp(-|x|) * I_order(x)`` for order 0 and 1.

    Source: Abramowitz, Stegun, 9.6.10 (series) and 9.7.1 (large arguments).
    """
    y = abs(x)
    if math.isnan(x):
        return x
    if y > 40.0:
        term = total = 1.0
        for k in range(1, 30):
            step = -(4.0 * order * order - (2 * k - 1) ** 2) / (8.0 * k * y)
            if abs(step) >= 1.0:
                break
            term *= step
            total += term
        size = 0.0 if math.isinf(y) else total / math.sqrt(2.0 * math.pi * y)
    else:
        term = total = (y / 2.0) ** order
        k = 1
        while term > total * 1e-18:
            term *= (y / 2.0) ** 2 / (k * (k + order))
            total += term
            k += 1
        size = total * math.exp(-y)
    return -size if order == 1 and x < 0 else size


def i0e(x: float) -> float:
    """Returns the exponentially scaled modified Bessel function of order 0."""
    return _modified(0, x)


def i1e(x: float) -> float:
    """Returns the exponentially scaled modified Bessel function of order 1."""
    return _modified(1, x)


def i0(x: float) -> float:
    """Returns the modified Bessel function of order 0; infinite where it exceeds the doubles."""
    return _unscaled(0, x)


def i1(x: float) -> float:
    """Returns the modified Bessel function of order 1; infinite where it exceeds the doubles."""
    return _unscaled(1, x)


def _unscaled(order: int, x: float) -> float:
    if math.isnan(x):
        return x
    if abs(x) > 720.0:
        return math.copysign(math.inf, x) if order else math.inf
    half = math.exp(abs(x) / 2.0)
    return _modified(order, x) * half * half
