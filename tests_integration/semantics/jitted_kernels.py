"""Triton kernels as people write them beside their models, for tests of programs that call them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled_sum(x, y, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor + tl.load(y + at, at < n), at < n)


@triton.jit
def add_in_place(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def neighbours(x, low, high, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n)
    tl.store(low + at, value - 1, at < n)
    tl.store(high + at, value + 1, at < n)


@triton.jit
def running_sum(x, out, n):
    """Adds to each element the one before it, in order: where both are one tensor, the sum runs on."""
    for at in range(1, n):
        tl.store(out + at, tl.load(x + at - 1) + tl.load(x + at))


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=2)], key=["n"])
@triton.jit
def doubled_tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * 2, at < n)


@triton.heuristics({"EVEN": lambda values: values["n"] % values["BLOCK"] == 0})
@triton.jit
def doubled_by_heuristics(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at) * 2)
    else:
        tl.store(out + at, tl.load(x + at, at < n) * 2, at < n)


@triton.jit
def shifted(x, out, n, shift=1.5, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + shift, at < n)


@triton.jit
def scaled_columns(x, out, rows, columns, row_step, column_step, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    value = tl.load(x + row * row_step + at * column_step, at < columns)
    tl.store(out + row * columns + at, value * (tl.program_id(1) + at), at < columns)


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, maxnreg=64), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def doubled_with_few_registers(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * 2, at < n)


BINS = tl.constexpr(16)
BLOCKS = [triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128})]


@triton.jit
def summed_in_bins(x, out, n, BLOCK: tl.constexpr):
    """Adds what is there already: each launch that times a config would count again."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at % BINS, tl.load(x + at, at < n, other=0.0), at < n)


def large_blocks(configs, arguments, **constants):
    """Leaves configs of a kernel out before these are timed."""
    return [config for config in configs if config.kwargs["BLOCK"] > 32]


summed_and_reset = triton.autotune(configs=BLOCKS, key=["n"], reset_to_zero=["out"])(summed_in_bins)
summed_and_restored = triton.autotune(configs=BLOCKS, key=["n"], restore_value=["out"])(summed_in_bins)
summed_by_large_blocks = triton.autotune(
    configs=BLOCKS, key=["n"], reset_to_zero=["out"], prune_configs_by={"early_config_prune": large_blocks}
)(summed_in_bins)
summed_by_the_best_blocks = triton.autotune(
    configs=BLOCKS, key=["n"], prune_configs_by={"perf_model": lambda **given: -given["BLOCK"], "top_k": 2}
)(summed_in_bins)


@triton.autotune(configs=BLOCKS, key=["n"], reset_to_zero=["out"])
@triton.heuristics({"EVEN": lambda values: values["n"] % values["BLOCK"] == 0})
@triton.jit
def summed_by_heuristics(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.atomic_add(out + at % BINS, tl.load(x + at))
    else:
        tl.atomic_add(out + at % BINS, tl.load(x + at, at < n, other=0.0), at < n)


@triton.jit
def doubled_by_descriptors(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Takes descriptors that were made on the host."""
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    out.store([row, column], x.load([row, column]) * 2)


@triton.jit
def doubled_by_own_descriptors(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [ROWS, COLUMNS])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [ROWS, COLUMNS])
    target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def doubled_by_descriptors_of_rows(x, out, rows, COLUMNS: tl.constexpr):
    for row in range(rows):
        source = tl.make_tensor_descriptor(x + row * COLUMNS, [1, COLUMNS], [COLUMNS, 1], [1, COLUMNS])
        target = tl.make_tensor_descriptor(out + row * COLUMNS, [1, COLUMNS], [COLUMNS, 1], [1, COLUMNS])
        target.store([0, 0], source.load([0, 0]) * 2)


SCALE = tl.constexpr(2.5)


@triton.jit
def scaled(value, KIND: tl.constexpr):
    return value.to(KIND) * SCALE


@triton.jit
def scaled_by_a_helper(x, KIND: tl.constexpr, out, n, BLOCK: tl.constexpr):
    """Has a constant between its other parameters, and one that is a type."""
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n)
    tl.store(out + at, scaled(value, KIND), at < n)


@triton.jit
def doubled_by_tiles(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    at = row * columns + column
    tl.store(out + at, tl.load(x + at, inside) * 2, inside)


@triton.jit
def doubled_aloud(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.static_print("compiled for blocks of", BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * 2, at < n)


@triton.jit
def _doubled(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * 2, at < n)


def launch_doubled(x, out):
    """Launches a kernel whose name begins with an underscore, as people call those that have such a function."""
    _doubled[(1,)](x, out, x.numel(), BLOCK=128)
