"""Special functions that are easier to say in multiprecision arithmetic than in doubles: what rare operations mean.

mpmath is SymPy's arithmetic, and like it imported where it is first needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def _evaluated(formula: Callable[[Any], Any], digits: int = 40) -> float:
    """Returns what a formula gives in so many digits, as a double; poles are infinities, what has no value is NaN."""
    import mpmath

    with mpmath.workdps(digits):
        try:
            value = formula(mpmath)
        except (ZeroDivisionError, OverflowError):
            return math.inf
        return math.nan if isinstance(value, mpmath.mpc) else float(value)


def erfcx(x: float) -> float:
    """Returns ``exp(x*x) * erfc(x)``."""
    if math.isnan(x):
        return x
    if x < -27.0:
        return math.inf
    return _evaluated(lambda mp: mp.exp(mp.mpf(x) ** 2) * mp.erfc(x)) if x < 1e8 else 1.0 / (x * math.sqrt(math.pi))


def ndtri(p: float) -> float:
    """Returns the quantile of the standard normal distribution: infinite at 0 and 1, NaN outside."""
    if not 0.0 <= p <= 1.0:
        return math.nan
    if p in (0.0, 1.0):
        return math.inf if p else -math.inf
    if p > 0.5:
        return -_quantile(1.0 - p)
    return _quantile(p)


def _quantile(p: float) -> float:
    """Returns the quantile of p <= 1/2, by Halley's steps from a bound of the tail."""

    def solve(mp: Any) -> Any:
        x = -mp.sqrt(-2 * mp.log(p)) if p < 0.1 else mp.mpf(0)
        for _ in range(80):
            step = (mp.ncdf(x) - p) / mp.npdf(x)
            x -= step / (1 + x * step / 2)
            if abs(step) < mp.mpf(10) ** -30:
                break
        return x

    return _evaluated(solve)


def airy_ai(x: float) -> float:
    """Returns Airy's function of the first kind; NaN at the infinities, as in torch."""
    return math.nan if math.isnan(x) or math.isinf(x) else _evaluated(lambda mp: mp.airyai(x))


def j0(x: float) -> float:
    """Returns the Bessel function of the first kind of order 0; NaN at the infinities, as in torch."""
    return math.nan if math.isnan(x) or math.isinf(x) else _evaluated(lambda mp: mp.besselj(0, x))


def j1(x: float) -> float:
    """Returns the Bessel function of the first kind of order 1; NaN at the infinities, as in torch."""
    return math.nan if math.isnan(x) or math.isinf(x) else _evaluated(lambda mp: mp.besselj(1, x))


def _oscillating(order: int, x: float) -> float:
    if math.isnan(x) or math.isinf(x) or x <= 0.0:
        return -math.inf if x == 0.0 else math.nan
    return _evaluated(lambda mp: mp.bessely(order, x))


def y0(x: float) -> float:
    """Returns the Bessel function of the second kind of order 0: -inf at 0, NaN below and at infinity, as in torch."""
    return _oscillating(0, x)


def y1(x: float) -> float:
    """Returns the Bessel function of the second kind of order 1: -inf at 0, NaN below and at infinity, as in torch."""
    return _oscillating(1, x)


def _second(order: int, x: float, *, scaled: bool) -> float:
    if math.isnan(x) or x <= 0.0:
        return math.inf if x == 0.0 else math.nan
    if math.isinf(x) or x > 1e8:
        return math.sqrt(math.pi / (2.0 * x)) if scaled else 0.0
    return _evaluated(lambda mp: (mp.exp(x) if scaled else 1) * mp.besselk(order, x))


def k0(x: float) -> float:
    """Returns the modified Bessel function of the second kind of order 0: infinite at 0, NaN below."""
    return _second(0, x, scaled=False)


def k1(x: float) -> float:
    """Returns the modified Bessel function of the second kind of order 1: infinite at 0, NaN below."""
    return _second(1, x, scaled=False)


def k0e(x: float) -> float:
    """Returns ``exp(x) * k0(x)``."""
    return _second(0, x, scaled=True)


def k1e(x: float) -> float:
    """Returns ``exp(x) * k1(x)``."""
    return _second(1, x, scaled=True)


def zeta(x: float, q: float) -> float:
    """Returns Hurwitz's zeta function, the sum of ``(q + k)**-x`` over all k >= 0, with torch's values at the edges."""
    if x < 1.0:
        return math.nan
    if x == 1.0 or (q <= 0.0 and (math.isinf(q) or q == math.floor(q))):
        return math.inf
    if math.isnan(x) or math.isnan(q):
        return math.nan
    if math.isinf(q):
        return 0.0
    if math.isinf(x):
        return math.nan if q < 0 else (math.inf if q < 1.0 else float(q == 1.0))
    if q > 0.0:
        return _hurwitz(x, q)
    if x != math.floor(x):
        return math.nan
    # The terms with a negative base are a finite sum: a difference of two values at positive arguments.
    below = -q - math.floor(-q)
    mirrored = _hurwitz(x, below) - _hurwitz(x, 1.0 - q)
    return _hurwitz(x, 1.0 - below) + (-mirrored if x % 2.0 == 1.0 else mirrored)


def _hurwitz(x: float, q: float) -> float:
    """Returns zeta for q > 0, to forty digits of its value, not of one."""
    smallness = x * math.log10(q) if q > 1.0 else 0.0
    if smallness > 400.0:
        return 0.0
    return _evaluated(lambda mp: mp.zeta(x, q), 40 + int(smallness))


def igamma(a: float, x: float) -> float:
    """Returns the regularised lower incomplete gamma function, with torch's values at the edges."""
    return _regularised(a, x, lambda mp: mp.gammainc(a, 0, x, regularized=True), 1.0)


def igammac(a: float, x: float) -> float:
    """Returns the regularised upper incomplete gamma function, with torch's values at the edges."""
    return _regularised(a, x, lambda mp: mp.gammainc(a, x, mp.inf, regularized=True), 0.0)


def _regularised(a: float, x: float, formula: Callable[[Any], Any], far: float) -> float:
    if a < 0.0 or x < 0.0 or (a == x and (a == 0.0 or math.isinf(a))):
        return math.nan
    if x == 0.0 or math.isinf(a):
        return 1.0 - far
    if math.isnan(x):
        return math.nan
    if a == 0.0 or math.isinf(x):
        return far
    return math.nan if math.isnan(a) else _evaluated(formula)
