"""Special functions that Python's math module lacks, in double precision."""

from __future__ import annotations

import math
from statistics import NormalDist

_EULER = 0.57721566490153286061
_FAR = 1e4
"""Beyond this the Bessel functions are given by the leading term of their expansion."""


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


def _bessel(order: int, x: float) -> float:
    """Returns ``J_order(x)`` as the mean of ``cos(order*t - x*sin(t))`` over a period.

    The trapezoidal rule converges faster than any power there, as for every analytic periodic function. Source:
    Trefethen, Weideman, "The exponentially convergent trapezoidal rule" (2014).
    """
    points = 2 * (order + int(abs(x)) + 32)
    return math.fsum(
        math.cos(order * t - x * math.sin(t)) for t in (math.pi * k / points for k in range(2 * points))
    ) / (2 * points)


def _far(order: int, x: float, *, second: bool) -> float:
    phase = x - order * math.pi / 2.0 - math.pi / 4.0
    return math.sqrt(2.0 / (math.pi * x)) * (math.sin(phase) if second else math.cos(phase))


def j0(x: float) -> float:
    """Returns the Bessel function of the first kind of order 0."""
    if math.isnan(x) or math.isinf(x):
        return x if math.isnan(x) else 0.0
    return _far(0, abs(x), second=False) if abs(x) > _FAR else _bessel(0, abs(x))


def j1(x: float) -> float:
    """Returns the Bessel function of the first kind of order 1."""
    if math.isnan(x) or math.isinf(x):
        return x if math.isnan(x) else 0.0
    size = _far(1, abs(x), second=False) if abs(x) > _FAR else _bessel(1, abs(x))
    return math.copysign(1.0, x) * size


def y0(x: float) -> float:
    """Returns the Bessel function of the second kind of order 0: -inf at 0 and NaN below.

    Source: Abramowitz, Stegun, 9.1.89.
    """
    if math.isnan(x) or x <= 0:
        return -math.inf if x == 0 else math.nan
    if x > _FAR:
        return 0.0 if math.isinf(x) else _far(0, x, second=True)
    count = int(x) // 2 + int(8 * x ** (1 / 3)) + 20
    series = math.fsum((-1) ** (k + 1) * _bessel(2 * k, x) / k for k in range(1, count))
    return 2.0 / math.pi * (math.log(x / 2.0) + _EULER) * _bessel(0, x) + 4.0 / math.pi * series


def y1(x: float) -> float:
    """Returns the Bessel function of the second kind of order 1 (the negated derivative of `y0`).

    -inf at 0 and NaN below.
    """
    if math.isnan(x) or x <= 0:
        return -math.inf if x == 0 else math.nan
    if x > _FAR:
        return 0.0 if math.isinf(x) else _far(1, x, second=True)
    count = int(x) // 2 + int(8 * x ** (1 / 3)) + 20
    orders = [_bessel(order, x) for order in range(2 * count + 2)]
    series = math.fsum((-1) ** (k + 1) * (orders[2 * k - 1] - orders[2 * k + 1]) / (2 * k) for k in range(1, count))
    head = 2.0 / math.pi * (orders[0] / x - (math.log(x / 2.0) + _EULER) * orders[1])
    return -(head + 4.0 / math.pi * series)
