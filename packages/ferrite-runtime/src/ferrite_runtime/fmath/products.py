"""Products of float32 on tensor cores, as device functions; see `fmath`."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.machine import is_for_nvidia


@triton.jit
def dot_in_parts(left, right, total):
    """Returns ``total`` and the product of two float32 matrices, ``[m, k]`` and ``[k, n]``.

    NVIDIA's tensor cores take factors of eleven bits. Each factor is cut in two, and three of the four products of
    parts are added (``tf32x3``): what is left out of a product is 3e-7 of it on average. Elsewhere factors are whole.
    """
    if is_for_nvidia():
        total = tl.dot(left, right, total, input_precision="tf32x3")
    else:
        total = tl.dot(left, right, total, input_precision="ieee")
    return total
