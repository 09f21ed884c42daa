"""Rows combined by pairs and by tiles, as device functions; see `row_bins` and `segmented_reductions`."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.combines import maximum_nan, minimum_nan


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
