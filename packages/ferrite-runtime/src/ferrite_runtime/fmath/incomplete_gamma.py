"""The regularised incomplete gamma functions, in float64 whatever the type of the operands.

Four ways to one of the two functions P and Q = 1 - P, each where it neither cancels nor takes long:

- a >= 100 and x within 30 % of a: Temme's expansion, uniform in the transition (DLMF 8.12);
- x <= 1.1: the series of P; that of Q without its first term, the rest of which does not cancel (DLMF 8.7.1, 8.7.3);
- x < a: the series of P (DLMF 8.11.4);
- otherwise: the continued fraction of Q (DLMF 8.9.2).

The last three run in one loop, from the last term to the first, of a number of terms that each element knows before.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath import tables
from ferrite_runtime.fmath.elementary import ceil, erfc, exp, expm1, lgamma, log
from ferrite_runtime.fmath.special import chebyshev_sum, horner, largest, spread

_INF = tl.constexpr(float("inf"))


@triton.jit
def _decrement(mu):
    # mu - log(1 + mu) for |mu| <= 0.3: the logarithm is 2 atanh(s), and 2 s - mu = -mu s.
    s = mu / (2.0 + mu)
    square = s * s
    return s * (mu - 2.0 * square * horner(square, tables.ATANH))


@triton.jit
def _power(a, x):
    # x**a exp(-x) / gamma(a + 1): from logarithms for small a, else by Stirling's series, where nothing large cancels.
    small = a < 10.0
    big = tl.where(small, 10.0, a)
    ratio = x / big
    mu = (x - big) / big
    close = tl.abs(mu) <= 0.3
    decrement = tl.where(close, _decrement(tl.where(close, mu, 0.0)), mu - log(ratio))
    inverse = 1.0 / big
    stirling = inverse * horner(inverse * inverse, tables.STIRLING)
    above = exp(-big * decrement - stirling) / tl.sqrt(6.283185307179586 * big)
    low = tl.where(small, a, 1.0)
    below = exp(low * log(x) - x - lgamma(low + 1.0))
    return tl.where(small, below, above)


@triton.jit
def _uniform(a, x, upper: tl.constexpr):
    mu = (x - a) / a
    decrement = _decrement(tl.minimum(tl.maximum(mu, -0.3), 0.3))
    root = tl.sqrt(2.0 * decrement)
    eta = tl.where(mu < 0.0, -root, root)
    inverse = 1.0 / a
    total = horner(eta, tables.TEMME7)
    total = total * inverse + horner(eta, tables.TEMME6)
    total = total * inverse + horner(eta, tables.TEMME5)
    total = total * inverse + horner(eta, tables.TEMME4)
    total = total * inverse + horner(eta, tables.TEMME3)
    total = total * inverse + horner(eta, tables.TEMME2)
    total = total * inverse + horner(eta, tables.TEMME1)
    total = total * inverse + horner(eta, tables.TEMME0)
    rest = exp(-a * decrement) / tl.sqrt(6.283185307179586 * a) * total
    scaled = eta * tl.sqrt(0.5 * a)
    return 0.5 * erfc(scaled) + rest if upper else 0.5 * erfc(-scaled) - rest


@triton.jit
def _terms(a, x, series, little):
    # How many terms give 1e-17: bounds of the tails, the continued fraction's measured against four thousand terms.
    root = tl.sqrt(a)
    of_series = tl.where(little, 22.0, tl.minimum(18.0 + 8.5 * root, 112.0))
    of_fraction = 5.0 + 96.0 / x + tl.minimum(4.0 * root, 40.0)
    return ceil(tl.where(series, of_series, of_fraction))


@triton.jit
def _incomplete(a, x, upper: tl.constexpr):
    little = x <= 1.1
    series = little | (x < a)
    uniform = (a >= 100.0) & (tl.abs(x - a) <= 0.3 * a)
    remainder = little & upper
    terms = tl.where(uniform, 0.0, _terms(a, x, series, little))
    total = tl.where(remainder, 0.0, tl.where(series, 1.0, x + 2.0 * terms + 1.0 - a))
    for step in range(largest(terms).to(tl.int32)):
        k = terms - step
        above = tl.where(remainder, 1.0, tl.where(series, x * total, k * (k - a)))
        quotient = above / tl.where(series, a + k, total)
        following = tl.where(series, 1.0 + quotient, x + 2.0 * k - 1.0 - a - quotient)
        following = tl.where(remainder, quotient - x * total / (k + 1.0), following)
        total = tl.where(k > 0.0, following, total)
    power = _power(a, x)
    direct = tl.where(series, power * total, power * a / total)
    if upper:
        value = tl.where(series, 1.0 - direct, direct)
        short = tl.minimum(a, 1.0)
        logarithm = tl.where(a <= 1.0, short * chebyshev_sum(2.0 * short - 1.0, tables.LOG_GAMMA), lgamma(a + 1.0))
        exponent = a * log(x) - logarithm
        value = tl.where(remainder, exp(exponent) * a * x * total - expm1(exponent), value)
    else:
        value = tl.where(series, direct, 1.0 - direct)
    return tl.where(uniform, _uniform(tl.maximum(a, 100.0), x, upper), value)


@triton.jit
def _regularised(a, x, upper: tl.constexpr):
    p = spread(a.to(tl.float64), x)
    y = spread(x.to(tl.float64), a)
    inside = (p > 0.0) & (y > 0.0) & (p < _INF) & (y < _INF)
    # What is outside of the domain takes part with harmless numbers.
    value = _incomplete(tl.where(inside, p, 1.0), tl.where(inside, y, 1.0), upper)
    none = 1.0 if upper else 0.0
    at_ends = tl.where((y == 0.0) | (p == _INF), none, 1.0 - none)
    at_ends = tl.where(((p == 0.0) & (y == 0.0)) | ((p == _INF) & (y == _INF)), float("nan"), at_ends)
    # An end of one operand decides also where the other one is NaN, as in torch.
    unknown = ((p != p) & (y > 0.0) & (y < _INF)) | ((y != y) & ~(p == _INF))
    at_ends = tl.where((p < 0.0) | (y < 0.0) | unknown, float("nan"), at_ends)
    return tl.where(inside, value, at_ends).to((a + x).dtype)


@triton.jit
def igamma(a, x):
    """Returns the regularised lower incomplete gamma function P(a, x); NaN for negative operands."""
    return _regularised(a, x, False)


@triton.jit
def igammac(a, x):
    """Returns the regularised upper incomplete gamma function Q(a, x); NaN for negative operands."""
    return _regularised(a, x, True)
