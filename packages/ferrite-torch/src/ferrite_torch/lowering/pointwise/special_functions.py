"""Formulas of special functions in terms of the scalar vocabulary."""

from __future__ import annotations

import math

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F64
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Unlowered
from ferrite_torch.lowering.expressions import (
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
    """Returns ``sin(x) / x``: 1 at 0 and 0 at the infinities."""
    far = choose(is_infinite(x), 0, div(call("sin", x), x))
    return choose(eq(x, 0), 1, far)


def normal_cdf(x: Scalar) -> Scalar:
    """Returns the cumulative distribution of the standard normal, without cancellation in the left tail."""
    return mul(call("erfc", mul(x, -math.sqrt(0.5))), 0.5)


def log_normal_cdf(x: Scalar) -> Scalar:
    """Returns the logarithm of `normal_cdf`; in the left tail without its underflow, by the scaled function."""
    t = mul(x, math.sqrt(0.5))
    left = sub(log(mul(call("erfcx", neg(t)), 0.5)), mul(t, t))
    return choose(lt(x, -1), left, call("log1p", mul(call("erfc", t), -0.5)))


def polygamma(order: int, x: Scalar) -> Scalar:
    """Returns the derivative of digamma of this order: ``(-1)**(n+1) n! zeta(n+1, x)`` (DLMF 25.11.12).

    In f64, in which zeta is computed anyway: the factorial alone leaves the range of f32 at 35.
    """
    if order == 0:
        return call("digamma", x)
    if order < 0:
        raise Unlowered("polygamma of a negative order")
    sign = 1.0 if order % 2 else -1.0
    try:
        factor = sign * math.gamma(order + 1.0)
    except OverflowError:
        factor = sign * math.inf
    return sc.cast(mul(call("zeta", sc.const(order + 1.0, F64), sc.cast(x, F64)), factor), x.dtype)


def shifted(name: str, x: Scalar, degree: Scalar) -> Scalar:
    """Returns a polynomial on [-1, 1] moved to [0, 1]."""
    return call(name, sub(add(x, x), 1), degree)


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
