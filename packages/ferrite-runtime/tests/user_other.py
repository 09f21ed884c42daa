"""A second module of user kernels, with names that the first has, too."""

from __future__ import annotations

import triton
import triton.language as language

ALPHA = language.constexpr(10.0)
LIMIT = float("inf")


@triton.jit
def load(pointer, mask):
    return language.load(pointer, mask) + ALPHA


@triton.jit
def clipped(v):
    return language.minimum(v, LIMIT)
