"""Special functions from our own fits and from series: Bessel, Airy, the normal quantile, zeta, digamma.

What is fitted computes in float64, also for float32 numbers: one table is then right to the last bit of either type,
over the whole domain, where float32 arithmetic would lose the phase of a large argument. GPUs for data centres have
half as many units for float64 as for float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath import tables
from ferrite_runtime.fmath.elementary import cos, exp, floor, i0, i1, log, pow, sin, tan, trunc

_INF = tl.constexpr(float("inf"))


@triton.jit
def chebyshev_sum(t, terms: tl.constexpr):
    """Returns the sum of Chebyshev polynomials of t in [-1, 1], by Clenshaw's recurrence."""
    twice = t + t
    upper = t * 0.0
    current = t * 0.0 + terms[len(terms) - 1]
    for i in tl.static_range(len(terms) - 2, 0, -1):
        following = twice * current + (terms[i] - upper)
        upper = current
        current = following
    return t * current + (terms[0] - upper)


@triton.jit
def horner(t, terms: tl.constexpr):
    """Returns a polynomial of t, terms from the highest power down."""
    total = t * 0.0 + terms[0]
    for i in tl.static_range(1, len(terms)):
        total = total * t + terms[i]
    return total


@triton.jit
def spread(x, beside):
    """Returns ``x`` broadcast against another operand, whose values do not matter."""
    return tl.where(beside == beside, x, x)  # sums with a multiple of zero would spread NaN


@triton.jit
def largest(x):
    """Returns the largest element of a tile, or the number itself where there is no tile."""
    if x.type.is_block():
        return tl.max(x, axis=None)
    else:
        return x


# --- Bessel functions -----------------------------------------------------------------------------------------------


@triton.jit
def _bessel(x, order: tl.constexpr, second: tl.constexpr):
    # Up to 5 from the fits in x*x, beyond from Hankel's expansion (DLMF 10.17.3), whose cosine and sine of x - pi/4 are
    # written in those of x, which are exact.
    w = x * x
    near = tl.minimum(w, 25.0)
    t = near * 0.08 - 1.0
    far = tl.maximum(x, 5.0)
    inverse = 5.0 / far
    u = 2.0 * inverse * inverse - 1.0
    s = sin(far)
    c = cos(far)
    root = 1.0 / tl.sqrt(3.141592653589793 * far)
    if order == 0:
        first = (near - 5.783185962946784) * chebyshev_sum(t, tables.J0_NEAR)
        even = chebyshev_sum(u, tables.BESSEL0_EVEN)
        odd = chebyshev_sum(u, tables.BESSEL0_ODD) / far
        wave = even * (c + s) - odd * (s - c)
        quarter = even * (s - c) + odd * (c + s)
    else:
        first = x * (near - 14.681970642123893) * chebyshev_sum(t, tables.J1_NEAR)
        even = chebyshev_sum(u, tables.BESSEL1_EVEN)
        odd = chebyshev_sum(u, tables.BESSEL1_ODD) / far
        wave = even * (s - c) + odd * (c + s)
        quarter = odd * (s - c) - even * (c + s)
    if second:
        logarithm = 0.6366197723675814 * log(x)
        if order == 0:
            close = logarithm * first + chebyshev_sum(t, tables.Y0_NEAR)
        else:
            close = logarithm * first - 0.6366197723675814 / x + x * chebyshev_sum(t, tables.Y1_NEAR)
        value = tl.where(x <= 5.0, close, quarter * root)
        value = tl.where(x == 0.0, -_INF, value)
        value = tl.where(x < 0.0, float("nan"), value)
    else:
        value = tl.where(x <= 5.0, first, wave * root)
    # torch has no limits at infinity.
    return tl.where((x == _INF) | (x != x), float("nan"), value)


@triton.jit
def j0(x):
    """Returns the Bessel function of the first kind of order 0; NaN at the infinities, as in torch."""
    return _bessel(tl.abs(x.to(tl.float64)), 0, False).to(x.dtype)


@triton.jit
def j1(x):
    """Returns the Bessel function of the first kind of order 1; NaN at the infinities, as in torch."""
    magnitude = _bessel(tl.abs(x.to(tl.float64)), 1, False).to(x.dtype)
    return tl.where(x < 0, -magnitude, magnitude)


@triton.jit
def y0(x):
    """Returns the Bessel function of the second kind of order 0: -inf at 0, NaN below and at infinity."""
    return _bessel(x.to(tl.float64), 0, True).to(x.dtype)


@triton.jit
def y1(x):
    """Returns the Bessel function of the second kind of order 1: -inf at 0, NaN below and at infinity."""
    return _bessel(x.to(tl.float64), 1, True).to(x.dtype)


@triton.jit
def _modified(x, order: tl.constexpr, scaled: tl.constexpr):
    # Up to 2 by the logarithm and a fit, beyond by a fit of what the exponential and the root leave (DLMF 10.31, .40).
    near = tl.minimum(x, 2.0)
    w = near * near
    t = w * 0.5 - 1.0
    far = tl.maximum(x, 2.0)
    u = 4.0 / far - 1.0
    if order == 0:
        close = chebyshev_sum(t, tables.K0_NEAR) - log(near * 0.5) * chebyshev_sum(t, tables.I0_NEAR)
        beyond = chebyshev_sum(u, tables.K0_FAR)
    else:
        close = log(near * 0.5) * near * chebyshev_sum(t, tables.I1_NEAR) + chebyshev_sum(t, tables.K1_NEAR) / near
        beyond = chebyshev_sum(u, tables.K1_FAR)
    beyond = beyond / tl.sqrt(far)
    if scaled:
        close = close * exp(near)
    else:
        beyond = beyond * exp(-far)
    value = tl.where(x <= 2.0, close, beyond)
    value = tl.where(x == 0.0, _INF, value)
    return tl.where((x < 0.0) | (x != x), float("nan"), value)


@triton.jit
def k0(x):
    """Returns the modified Bessel function of the second kind of order 0: infinite at 0, NaN below."""
    return _modified(x.to(tl.float64), 0, False).to(x.dtype)


@triton.jit
def k1(x):
    """Returns the modified Bessel function of the second kind of order 1: infinite at 0, NaN below."""
    return _modified(x.to(tl.float64), 1, False).to(x.dtype)


@triton.jit
def k0e(x):
    """Returns ``exp(x) * k0(x)``."""
    return _modified(x.to(tl.float64), 0, True).to(x.dtype)


@triton.jit
def k1e(x):
    """Returns ``exp(x) * k1(x)``."""
    return _modified(x.to(tl.float64), 1, True).to(x.dtype)


@triton.jit
def airy_ai(x):
    """Returns Airy's function of the first kind; NaN at the infinities, as in torch."""
    wide = x.to(tl.float64)
    near = tl.minimum(tl.maximum(wide, -4.0), 2.0)
    close = chebyshev_sum((near + 1.0) / 3.0, tables.AIRY_NEAR)
    # Both expansions are in z = 2/3 |x|**(3/2) (DLMF 9.7.5, 9.7.9).
    right = tl.maximum(wide, 2.0)
    root = tl.sqrt(right)
    z = 0.6666666666666666 * right * root
    decay = exp(-z) * 0.28209479177387814 / tl.sqrt(root)
    decay = decay * chebyshev_sum(3.771236166328253 / z - 1.0, tables.AIRY_FAR)
    left = tl.maximum(-wide, 4.0)
    root = tl.sqrt(left)
    z = 0.6666666666666666 * left * root
    inverse = 5.333333333333333 / z
    u = 2.0 * inverse * inverse - 1.0
    s = sin(z)
    c = cos(z)
    wave = (c + s) * chebyshev_sum(u, tables.AIRY_EVEN) + (s - c) * (chebyshev_sum(u, tables.AIRY_ODD) / z)
    wave = wave * 0.3989422804014327 / tl.sqrt(root)
    value = tl.where(wide > 2.0, decay, tl.where(wide < -4.0, wave, close))
    return tl.where((tl.abs(wide) == _INF) | (wide != wide), float("nan"), value).to(x.dtype)


# --- statistics -----------------------------------------------------------------------------------------------------


@triton.jit
def ndtri(p):
    """Returns the quantile of the normal distribution: infinite at 0 and 1, NaN outside."""
    wide = p.to(tl.float64)
    y = wide - 0.5
    square = tl.minimum(y * y, 0.1225)
    centre = y * chebyshev_sum(square * 16.3265306122449 - 1.0, tables.QUANTILE_CENTRE)
    tail = tl.where(y > 0.0, 1.0 - wide, wide)
    t = tl.sqrt(-2.0 * log(tl.where((tail > 0.0) & (tail < 0.15), tail, 0.15)))
    inverse = 1.0 / t
    close = chebyshev_sum((inverse - 0.3225) / 0.1975, tables.QUANTILE_TAIL)
    beyond = chebyshev_sum((inverse - 0.075) / 0.05, tables.QUANTILE_FAR)
    far = t - (log(t) + tl.where(t < 8.0, close, beyond)) * inverse
    far = tl.where(tail == 0.0, _INF, far)
    value = tl.where(tl.abs(y) <= 0.35, centre, tl.where(y < 0.0, -far, far))
    return tl.where((wide >= 0.0) & (wide <= 1.0), value, float("nan")).to(p.dtype)


# --- Hurwitz's zeta function ----------------------------------------------------------------------------------------


@triton.jit
def _hurwitz(s, q):
    # Euler and Maclaurin's summation: ten terms, the integral, and twelve corrections (DLMF 25.11.5), for q > 0.
    total = q * 0.0
    for k in range(10):
        total += pow(q + k, -s)
    w = q + 10.0
    last = pow(w, -s)
    inverse = 1.0 / w
    square = inverse * inverse
    factor = s * inverse
    correction = factor * 0.08333333333333333
    for k in tl.static_range(1, 12):
        factor *= (s + (2 * k - 1)) * (s + 2 * k) * square
        correction += factor * tables.EULER_MACLAURIN[k]
    # Where the rest is below a rounding of the sum, its factors may have overflowed. Elsewhere s is small beside w.
    rest = last * (w / (s - 1.0) + 0.5 + correction)
    return tl.where(last * (1.0 + w) > total * 1e-18, total + rest, total)


@triton.jit
def zeta(x, q):
    """Returns Hurwitz's zeta function, the sum of ``(q + k)**-x`` over all k >= 0.

    Infinite for x = 1 and where q is 0 or a negative integer, NaN for x < 1, and for a negative q unless x is an
    integer. Source of the reflection: the terms with a negative base are a finite sum, and so a difference of two
    values at positive ones.
    """
    s = spread(x.to(tl.float64), q)
    a = spread(q.to(tl.float64), x)
    negative = a < 0.0
    below = -a - floor(-a)
    odd = s != 2.0 * floor(s * 0.5)
    # One evaluation, or three where some base is negative, in a loop: its body is large.
    value = spread(0.0, s).to(tl.float64)
    for side in range(1 + 2 * largest(negative.to(tl.int32))):
        first = side == 0
        mirrored = tl.where(side == 1, below, 1.0 - a)
        start = tl.where(first, tl.where(negative, 1.0 - below, a), tl.where(negative, mirrored, 1.0))
        piece = _hurwitz(s, start)
        minus = (odd == (side == 1)) & (side != 0)
        value += tl.where(negative | first, tl.where(minus, -piece, piece), 0.0)
    value = tl.where(negative & (s != floor(s)), float("nan"), value)
    # A pole decides also where the other operand is NaN, as in torch.
    value = tl.where((s != s) | (a != a), float("nan"), value)
    value = tl.where((s == 1.0) | ((a <= 0.0) & (a == floor(a))), _INF, value)
    return tl.where(s < 1.0, float("nan"), value).to((x + q).dtype)


@triton.jit
def _bessel_tail(x, four_nu_squared: tl.constexpr):
    # Hankel's expansion of exp(-x) I_nu(x) for large x (DLMF 10.40.1); at x >= 30 its smallest term is below 1e-20.
    term = 1.0
    total = 1.0
    for k in tl.static_range(1, 26):
        term = term * (((2 * k - 1) * (2 * k - 1) - four_nu_squared) / (8.0 * k)) / x
        total += term
    return total * tl.rsqrt(6.283185307179586 * x)


@triton.jit
def i0e(x):
    a = tl.abs(x)
    near = tl.minimum(a, 30.0)
    small = i0(near) * exp(-near)
    return tl.where(a <= 30.0, small, _bessel_tail(tl.maximum(a, 30.0, propagate_nan=tl.PropagateNan.ALL), 0))


@triton.jit
def i1e(x):
    a = tl.abs(x)
    near = tl.minimum(a, 30.0)
    small = i1(near) * exp(-near)
    magnitude = tl.where(a <= 30.0, small, _bessel_tail(tl.maximum(a, 30.0, propagate_nan=tl.PropagateNan.ALL), 4))
    return tl.where(x < 0, -magnitude, magnitude)


@triton.jit
def digamma(x):
    # In float64 whatever the type of x: near a pole, and near the zeros between them, terms cancel.
    return _digamma(x.to(tl.float64)).to(x.dtype)


@triton.jit
def _digamma(x):
    # Reflection for negative arguments, recurrence up to 10, then the asymptotic series (DLMF 5.5.4, 5.5.2, 5.11.2).
    fraction = x - trunc(x)
    negative = x < 0
    reflected = tl.where(negative, 3.141592653589793 / tan(3.141592653589793 * fraction), 0.0)
    y = tl.where(negative, 1.0 - x, x)
    shift = 0.0
    for _ in tl.static_range(10):
        small = y < 10.0
        shift += tl.where(small, 1.0 / y, 0.0)
        y = tl.where(small, y + 1.0, y)
    w = 1.0 / (y * y)
    tail = 1.0 / 240 - w * (1.0 / 132 - w * (691.0 / 32760 - w / 12))
    series = w * (1.0 / 12 - w * (1.0 / 120 - w * (1.0 / 252 - w * tail)))
    value = log(y) - 0.5 / y - series - shift - reflected
    value = tl.where(y == _INF, y, value)
    # The pole at zero has a sign; those at the negative integers, and minus infinity, have none.
    value = tl.where(x == 0, -1.0 / x, value)
    return tl.where(negative & ((fraction == 0) | (y == _INF)), float("nan"), value)
