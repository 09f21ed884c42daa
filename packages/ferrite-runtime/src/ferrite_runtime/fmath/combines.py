"""Combines for reductions and scans, as device functions: what two values, or two states of several, become."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.elementary import exp, log1p

_INF = tl.constexpr(float("inf"))


@triton.jit
def _flipped(x):
    """Returns 32-bit integers as unsigned ones in the same order, or those as the integers again.

    ptxas 12.8 and 12.9 build instructions of three signed operands for sm_90 out of two comparisons, and lose the minus
    before one: of ``min(min(x, -y), z)`` remains ``min(x, y, z)``. Unsigned operands keep theirs.
    """
    if x.dtype == tl.int32:
        return (x ^ -0x80000000).to(tl.uint32, bitcast=True)
    else:
        return x.to(tl.int32, bitcast=True) ^ -0x80000000


@triton.jit
def maximum_nan(a, b):
    """Combines by the larger value; NaN wins."""
    if a.dtype == tl.int32:
        return _flipped(tl.maximum(_flipped(a), _flipped(b)))
    else:
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum_nan(a, b):
    """Combines by the smaller value; NaN wins."""
    if a.dtype == tl.int32:
        return _flipped(tl.minimum(_flipped(a), _flipped(b)))
    else:
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def argmax_nan(value_a, index_a, value_b, index_b):
    """Combines (value, index) pairs by the larger value; NaN wins, the lowest index breaks ties."""
    nan_a = value_a != value_a
    nan_b = value_b != value_b
    tie = (value_a == value_b) | (nan_a & nan_b)
    first = (nan_a & (nan_b == 0)) | ((value_a > value_b) & (nan_b == 0)) | (tie & (index_a < index_b))
    return tl.where(first, value_a, value_b), tl.where(first, index_a, index_b)


@triton.jit
def argmin_nan(value_a, index_a, value_b, index_b):
    """Combines (value, index) pairs by the smaller value; NaN wins, the lowest index breaks ties."""
    nan_a = value_a != value_a
    nan_b = value_b != value_b
    tie = (value_a == value_b) | (nan_a & nan_b)
    first = (nan_a & (nan_b == 0)) | ((value_a < value_b) & (nan_b == 0)) | (tie & (index_a < index_b))
    return tl.where(first, value_a, value_b), tl.where(first, index_a, index_b)


@triton.jit
def welford(mean_a, m2_a, weight_a, mean_b, m2_b, weight_b):
    """Merges (mean, sum of squared deviations, count) triples; empty ones, of count 0, are neutral.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    """
    delta = mean_b - mean_a
    weight = weight_a + weight_b
    share = tl.where(weight == 0.0, 0.0, weight_b / weight)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * weight_a * share, weight


@triton.jit
def online_softmax(max_a, sum_a, max_b, sum_b):
    """Merges (maximum, sum of exp(x - maximum)) pairs; (-inf, 0) is neutral.

    Source: Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    top = maximum_nan(max_a, max_b)
    # Both empty or all -inf: the difference would be NaN, and there is nothing to rescale.
    safe = tl.where(top == -_INF, 0.0, top)
    scale_a = tl.where(top == -_INF, 1.0, exp(max_a - safe))
    scale_b = tl.where(top == -_INF, 1.0, exp(max_b - safe))
    return top, sum_a * scale_a + sum_b * scale_b


@triton.jit
def any_(a, b):
    """Combines by or."""
    return a | b


@triton.jit
def all_(a, b):
    """Combines by and."""
    return a & b


@triton.jit
def xor(a, b):
    """Combines by exclusive or."""
    return a ^ b


@triton.jit
def prod(a, b):
    """Combines by multiplication."""
    return a * b


@triton.jit
def _log1p_exp(x):
    """Returns log(1 + exp(x)) of what is not above 0.

    Of float32 by the hardware's exponential to base 2, whose errors of a few units in the last place are next to a
    larger number here, and a polynomial for log(1 + e) / e: interpolation at Chebyshev points of 0 to 1, of degree 8,
    off by 1.7e-7 of the value at most, roundings included.
    """
    if x.dtype == tl.float32:
        e = tl.exp2(x * 1.4426950408889634)
        p = e * 0.005253457929939032 - 0.02958850748836994
        p = p * e + 0.07836166769266129
        p = p * e - 0.13674770295619965
        p = p * e + 0.19111430644989014
        p = p * e - 0.24844369292259216
        p = p * e + 0.33319270610809326
        p = p * e - 0.49999502301216125
        return e * (p * e + 1.0)
    else:
        return log1p(exp(x))


@triton.jit
def logaddexp(a, b):
    """Combines by log(exp(a) + exp(b)), without overflow; NaN wins."""
    top = maximum_nan(a, b)
    return tl.where(tl.abs(top) == _INF, top, top + _log1p_exp(-tl.abs(a - b)))


@triton.jit
def combined(a, b, mode: tl.constexpr):
    """Returns two tiles combined: ``add``, ``max`` or ``min``; NaN is the largest and the smallest."""
    if mode == "add":
        return a + b
    elif mode == "max":
        return maximum_nan(a, b)
    else:
        return minimum_nan(a, b)


@triton.jit
def reduced(parts, mode: tl.constexpr, axis: tl.constexpr):
    """Returns a tile combined along an axis."""
    if mode == "add":
        return tl.sum(parts, axis)
    elif mode == "max":
        return tl.reduce(parts, axis, maximum_nan)
    else:
        return tl.reduce(parts, axis, minimum_nan)


@triton.constexpr_function
def neutral_of(mode):
    """Returns what changes nothing that it is combined with."""
    return {"add": 0.0, "max": float("-inf"), "min": float("inf")}[mode]
