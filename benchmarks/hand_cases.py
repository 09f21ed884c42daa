"""Kernels written by hand for cases of `kernels.py` that miss their bars, and how they are called: see `by_hand.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from backends import compile_with
from ferrite_runtime import fmath

Row = tuple[str, Callable[[], Any], Callable[[], float]]
"""A variant: its name, a call, and the largest error of what the call has left."""


@triton.jit
def held_columns(x, y, count: tl.constexpr, XBLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Softmax of columns that a program holds whole, so that they are read once."""
    column = (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK))[None, :]
    row = tl.arange(0, ROWS)[:, None]
    value = tl.load(x + row * count + column, eviction_policy="evict_first").to(tl.float32)
    mass = tl.exp(value - tl.max(value, 0, keep_dims=True))
    share = mass * (1.0 / tl.sum(mass, 0, keep_dims=True))
    tl.store(y + row * count + column, share.to(y.dtype.element_ty))


@triton.jit
def scanned_part(x, status, y, PARTS: tl.constexpr, RBLOCK: tl.constexpr, DRAWS: tl.constexpr, WAITS: tl.constexpr):
    """A part of a long sum: its number is drawn, or the program's; without waiting the parts before it are missing."""
    part = fmath.draw_part(status, PARTS) if DRAWS else tl.program_id(0)
    place = part * RBLOCK + tl.arange(0, RBLOCK)
    value = tl.load(x + place, eviction_policy="evict_first").to(tl.float32)
    if WAITS:
        total = tl.sum(value, 0)
        fmath.publish_part(status, 0, 1, part, PARTS, total)
        running = tl.cumsum(value, 0) + fmath.sum_before(status, 0, 1, part, PARTS, total)
    else:
        running = tl.cumsum(value, 0)
    tl.store(y + place, running.to(y.dtype.element_ty), eviction_policy="evict_first")


@triton.jit
def normalised_behind(
    x, weight, bias, y, means, squares, moments, counts,
    PIECES: tl.constexpr, BEHIND: tl.constexpr, ROWS: tl.constexpr, EACH: tl.constexpr
):  # fmt: skip
    """Group norm with silu of 16 images of 4096 points and 320 channels in one kernel.

    A program adds up a piece of one image, and the last one of an image combines its 32 groups; then it waits for the
    moments of the image that the piece ``BEHIND`` pieces before lies in, and reads that again from the cache.
    """
    pieces_of_image: tl.constexpr = 4096 // ROWS
    program = tl.program_id(0)
    lane = tl.arange(0, 64)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    if program < PIECES:
        image = program // EACH
        piece = program % EACH // 5
        channel = program % 5 * 64 + lane
        value = tl.load(x + (image * 4096 + piece * ROWS + row) * 320 + channel, eviction_policy="evict_last")
        value = value.to(tl.float32)
        mean = tl.sum(value, 0, keep_dims=True) * (1.0 / ROWS)
        off = value - mean
        place = (image * pieces_of_image + piece) * 320 + channel
        tl.store(means + place, mean)
        tl.store(squares + place, tl.sum(off * off, 0, keep_dims=True))
        tl.debug_barrier()
        if tl.atomic_add(counts + image, 1, sem="acq_rel") == EACH - 1:
            part = tl.arange(0, pieces_of_image)[:, None, None]
            group = tl.arange(0, 32)
            member = tl.arange(0, 16)[None, None, :]
            places = (image * pieces_of_image + part) * 320 + group[None, :, None] * 10 + member
            is_there = (member < 10) & (part >= 0) & (group[None, :, None] >= 0)
            mean_of_part = tl.load(means + places, is_there, other=0.0, volatile=True)
            square = tl.load(squares + places, is_there, other=0.0, volatile=True)
            mean_of_group = tl.sum(tl.sum(mean_of_part, 0), 1) * (1.0 / (pieces_of_image * 10))
            apart = tl.where(is_there, mean_of_part - mean_of_group[None, :, None], 0.0)
            variance = tl.sum(tl.sum(square + apart * apart * ROWS, 0), 1) * (1.0 / 40960)
            tl.store(moments + image * 64 + group, mean_of_group)
            tl.store(moments + image * 64 + 32 + group, tl.rsqrt(variance + 1e-5))
            tl.debug_barrier()
            tl.atomic_xchg(counts + 16 + image, 1, sem="release")
    if program >= BEHIND:
        image = (program - BEHIND) // EACH
        while tl.atomic_add(counts + 16 + image, 0, sem="acquire") == 0:
            pass
        channel = (program - BEHIND) % 5 * 64 + lane
        place = (image * 4096 + (program - BEHIND) % EACH // 5 * ROWS + row) * 320 + channel
        value = tl.load(x + place, eviction_policy="evict_first").to(tl.float32)
        mean = tl.load(moments + image * 64 + channel // 10, volatile=True)
        scale = tl.load(moments + image * 64 + 32 + channel // 10, volatile=True) * tl.load(weight + channel)
        value = (value - mean) * scale + tl.load(bias + channel)
        tl.store(y + place, (value / (1.0 + tl.exp(-value))).to(tl.bfloat16), eviction_policy="evict_first")


def distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


def ours(function: Callable[..., Tensor], *inputs: Tensor) -> Row:
    call = compile_with("ferrite", function, dynamic=False)
    exact = function(*(x.double() for x in inputs))
    return "ferrite", lambda: call(*inputs), lambda: distance(call(*inputs), exact)


def softmax(dtype: torch.dtype) -> Iterator[Row]:
    rows, count = 4096, 16384
    x = torch.randn(rows, count, device="cuda", dtype=dtype)
    y, exact = torch.empty_like(x), torch.softmax(x.double(), 0)
    yield ours(lambda x: torch.softmax(x, 0), x)
    for columns, warps in ((8, 16), (8, 32), (16, 32)):
        yield (
            f"{columns} columns held whole, {warps} warps",
            lambda c=columns, w=warps: held_columns[(count // c,)](x, y, count, c, rows, num_warps=w),
            lambda: distance(y, exact),
        )


def scan(dtype: torch.dtype) -> Iterator[Row]:
    x = (torch.randn(1 << 26, device="cuda") / 64).to(dtype)
    y, exact = torch.empty_like(x), x.double().cumsum(0)
    yield ours(lambda x: x.cumsum(0), x)
    for points, warps in ((4096, 4), (8192, 4), (8192, 8), (16384, 8)):
        parts = x.numel() // points
        status = torch.zeros(1 + parts + -(-parts // 512), dtype=torch.int64, device="cuda")
        for name, draws, waits in (("drawn", 1, 1), ("in the order of programs", 0, 1), ("that wait for nobody", 0, 0)):

            def call(
                points: int = points,
                warps: int = warps,
                status: Tensor = status,
                draws: int = draws,
                waits: int = waits,
            ) -> None:
                status.zero_()
                parts = x.numel() // points
                scanned_part[(parts,)](x, status, y, parts, points, draws, waits, num_warps=warps)

            error = (lambda: distance(y, exact)) if waits else (lambda: 0.0)
            yield f"parts of {points} {name}, {warps} warps", call, error


def group_norm(dtype: torch.dtype) -> Iterator[Row]:
    if dtype != torch.bfloat16:
        return
    x = torch.randn(16, 320, 64, 64, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    weight, bias = (torch.randn(320, device="cuda", dtype=dtype) for _ in range(2))
    y, exact = torch.empty_like(x), F.silu(F.group_norm(x.double(), 32, weight.double(), bias.double()))
    yield ours(lambda x, weight, bias: F.silu(F.group_norm(x, 32, weight, bias)), x, weight, bias)
    counts = torch.zeros(32, dtype=torch.int32, device="cuda")
    moments = torch.empty(16 * 64, device="cuda")
    for rows, warps, ahead in ((256, 8, 132), (256, 8, 264), (128, 4, 528)):
        each = 4096 // rows * 5
        means, squares = (torch.empty(16 * 4096 // rows * 320, device="cuda") for _ in range(2))

        def call(
            rows: int = rows, warps: int = warps, behind: int = each + ahead, each: int = each, means: Tensor = means,
            squares: Tensor = squares,
        ) -> None:  # fmt: skip
            counts.zero_()
            normalised_behind[(16 * each + behind,)](
                x, weight, bias, y, means, squares, moments, counts, 16 * each, behind, rows, each, num_warps=warps
            )

        name = f"one kernel, pieces of {rows} rows, {each + ahead} behind, {warps} warps"
        yield name, call, lambda: distance(y, exact)


CASES: dict[str, tuple[Callable[[torch.dtype], Iterator[Row]], int]] = {
    "softmax": (softmax, 4096 * 16384),
    "scan": (scan, 1 << 26),
    "group_norm": (group_norm, 16 * 320 * 4096),
}
"""The variants of a case, and the elements that are read and written once."""
