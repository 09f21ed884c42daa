"""Formulas of special functions in terms of the scalar vocabulary."""

from __future__ import annotations

import math

from ferrite_ir.scalar import Scalar
from ferrite_torch.lowering.expressions import (
    absolute,
    add,
    call,
    choose,
    div,
    eq,
    gt,
    is_infinite,
    is_nan,
    log,
    lt,
    mul,
    neg,
    sub,
)


def entropy(x: Scalar) -> Scalar:
    """Returns ``-x * log(x)``; 0 at 0, ``-inf`` below, NaN for NaN."""
    below = choose(eq(x, 0), 0, choose(is_nan(x), x, -math.inf))
    return choose(gt(x, 0), neg(mul(x, log(x))), below)


def sinc(x: Scalar) -> Scalar:
    """Returns ``sin(πx) / (πx)``; 1 at 0."""
    angle = mul(x, math.pi)
    return choose(eq(x, 0), 1, div(call("sin", angle), angle))


def spherical_bessel_j0(x: Scalar) -> Scalar:
    """Returns ``sin(x) / x``, near 0 by its series; 0 at the infinities."""
    square = mul(x, x)
    series = add(mul(square, add(mul(square, add(mul(square, -1 / 5040), 1 / 120)), -1 / 6)), 1)
    far = choose(is_infinite(x), 0, div(call("sin", x), x))
    return choose(lt(absolute(x), 0.5), series, far)


def normal_cdf(x: Scalar) -> Scalar:
    """Returns the cumulative distribution of the standard normal, without cancellation in the left tail."""
    return mul(call("erfc", mul(x, -math.sqrt(0.5))), 0.5)


def radians(x: Scalar) -> Scalar:
    return mul(x, math.pi / 180)


def degrees(x: Scalar) -> Scalar:
    return mul(x, 180 / math.pi)


def multigamma(x: Scalar, p: int) -> Scalar:
    """Returns the logarithm of the multivariate gamma function of ``p`` dimensions."""
    total: Scalar | None = None
    for step in range(p):
        term = call("lgamma", sub(x, step / 2))
        total = term if total is None else add(total, term)
    assert total is not None
    return add(total, p * (p - 1) / 4 * math.log(math.pi))
