"""Products on tensor cores that round no more than float32 does, as device functions; see `fmath`."""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.machine import is_for_nvidia


@triton.jit
def dot_in_parts(left, right, total):
    """Returns ``total`` and the product of two float32 matrices, ``[m, k]`` and ``[k, n]``.

    NVIDIA's tensor cores take factors of eleven bits. Each factor is cut in two that have as many, and three of the
    four products of parts are added: the fourth is 2^-22 of the whole at most. On other machines factors are whole.
    """
    if is_for_nvidia():
        total = tl.dot(left, right, total, input_precision="tf32x3")
    else:
        total = tl.dot(left, right, total, input_precision="ieee")
    return total
