"""Hand-written Triton kernels, as a user would have them in a module."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import arange as numbers
from triton.language import float32 as REAL
from triton.language import maximum, program_id
from triton.language.math import exp2

import user_other as other
from user_other import clipped as other_clipped

ALPHA = tl.constexpr(2.0)
NAMES = ["not", "a", "constant"]
NAN = float("nan")


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


# --- names ------------------------------------------------------------------------------------------------------------


def load(path):
    """Has a name that kernels use as an attribute, and is no concern of theirs."""
    return path


dot = store = arange = mask = load


@triton.jit
def beside_functions(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, i < n)


FACTOR = 3
WIDTH = 64


@triton.jit
def same_names(x, out, n, BLOCK: tl.constexpr = WIDTH):
    """Calls a load of its own and another module's, whose ALPHA is another; ``x`` is loaded first: é, tl.load."""
    i = program_id(0) * BLOCK + numbers(0, BLOCK)
    loaded = other.load(x + i, i < n) * ALPHA * FACTOR  # 10 more, twice, thrice
    clipped = other_clipped(exp2(loaded - loaded).to(REAL) * loaded)
    tl.store(out + i, clipped + maximum(loaded, loaded) * 0, i < n)


def make_closure(factor: int):
    shift = tl.constexpr(factor + 1)

    @triton.jit
    def closed(x, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, doubled(tl.load(x + i, i < n)) * factor + shift, i < n)

    return closed


@triton.jit
def undefined(x, BLOCK: tl.constexpr):
    tl.store(x, NAN)


@triton.autotune([triton.Config({"BLOCK": 64})], key=[])
@triton.jit
def autotuned(x, BLOCK: tl.constexpr):
    tl.store(x, 1)


@triton.jit
def tiled(x, ROWS: tl.constexpr, out, rows, columns, COLUMNS: tl.constexpr, KIND: tl.constexpr = tl.float32):
    """Doubles tiles; constants stand between other parameters."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    at, inside = row * columns + column, (row < rows) & (column < columns)
    tl.store(out + at, tl.load(x + at, inside).to(KIND) * 2, inside)


@triton.jit
def _underscored(x, out, n, BLOCK: tl.constexpr):
    """Has a name as people give to kernels that only a function beside them launches."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, doubled(tl.load(x + at, at < n)), at < n)


@triton.jit
def host(x, out, n, BLOCK: tl.constexpr):
    """Has a name that the text of host functions has a meaning for."""
    underscored = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + underscored, doubled(tl.load(x + underscored, underscored < n)), underscored < n)
