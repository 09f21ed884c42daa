"""Hand-written Triton kernels, as a user would have them in a module."""

from __future__ import annotations

import triton
import triton.language as tl

ALPHA = tl.constexpr(2.0)
NAMES = ["not", "a", "constant"]


@triton.jit
def doubled(v):
    return v * ALPHA


@triton.jit
def saxpy(x, y, out, n, a, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, a * doubled(tl.load(x + i, i < n)) + tl.load(y + i, i < n), i < n)


@triton.jit
def outer(x, y, out, m, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1)
    tl.store(out + j * n + i, tl.load(x + j) * tl.load(y + i, i < n), i < n)


@triton.jit
def powered(x, n, BLOCK: tl.constexpr, TIMES: tl.constexpr, NEGATE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, i < n)
    result = value
    for _ in tl.static_range(TIMES - 1):
        result *= value
    tl.store(x + i, -result if NEGATE else result, i < n)


@triton.jit
def listed(x, BLOCK: tl.constexpr):
    tl.store(x, len(NAMES))


@triton.jit
def trapped(x, out, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """Doubles; with FAULT it also writes where nothing is."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * 2.0, i < n)
    if FAULT:
        tl.store(out + i + (1 << 44), 1.0, i < n)
