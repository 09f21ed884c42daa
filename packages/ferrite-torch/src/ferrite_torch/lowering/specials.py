"""Formulas of special functions in terms of the scalar vocabulary."""

from __future__ import annotations

import math

from ferrite_ir.scalar import Scalar
from ferrite_torch.lowering.expressions import call, choose, div, eq, gt, is_nan, log, mul, neg, sub


def entropy(x: Scalar) -> Scalar:
    """Returns ``-x * log(x)``; 0 at 0, ``-inf`` below, NaN for NaN."""
    below = choose(eq(x, 0), 0, choose(is_nan(x), x, -math.inf))
    return choose(gt(x, 0), neg(mul(x, log(x))), below)


def sinc(x: Scalar) -> Scalar:
    """Returns ``sin(πx) / (πx)``; 1 at 0."""
    angle = mul(x, math.pi)
    return choose(eq(x, 0), 1, div(call("sin", angle), angle))


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
        total = term if total is None else call("add", total, term)
    assert total is not None
    return call("add", total, p * (p - 1) / 4 * math.log(math.pi))
