"""How the kernels of `hand_kernels.py` are called, and what with: see `hand_written.py`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.reference.hand_kernels import (
    copied,
    few_rows,
    few_rows_in_parts,
    held_columns,
    listed,
    prefetched_columns,
    scaled,
    scanned_held,
    scanned_part,
    scanned_prefetching,
    shared_columns,
    shared_rows,
    summed,
)
from benchmarks.tools.backends import compile_with

Row = tuple[str, Callable[[], Any], Callable[[], float]]
"""A variant: its name, a call, and the largest error of what the call has left."""


def distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


def ours(function: Callable[..., Tensor], *inputs: Tensor, sets: Sequence[Tensor] = (), **policy: Any) -> Row:
    """Returns what the compiler makes of a function; where there are ``sets``, they are its first input in turn."""
    torch._dynamo.reset()
    call = compile_with("ferrite", function, dynamic=False, policy=policy)
    exact = function(*(x.double() for x in inputs))
    name = ", ".join(["ferrite", *(f"{key}={value}" for key, value in policy.items())])
    turns = itertools.cycle(sets or inputs[:1])
    return name, lambda: call(next(turns), *inputs[1:]), lambda: distance(call(*inputs), exact)


def launched(
    kernel: Any,
    programs: int,
    *given: Any,
    warps: int,
    cleared: Tensor | None = None,
    registers: int | None = None,
    stages: int = 3,
    uses_pdl: bool = False,
) -> Callable[[], None]:
    """Returns a call that launches a kernel, after filling a tensor with zeros that it needs so.

    With ``uses_pdl`` the kernel starts before the one before has ended, and waits for that by itself.
    """

    def call() -> None:
        if cleared is not None:
            cleared.zero_()
        kernel[(programs,)](*given, num_warps=warps, maxnreg=registers, num_stages=stages, launch_pdl=uses_pdl)

    return call


ORDERED, ORDERED_BLOCK, STRETCHES = 1 << 25, 4096, 1024
"""Elements of a tensor that two kernels touch one after the other, of a program, and stretches that one adds up."""
LISTED = 1 << 18
"""Rows that are listed."""
SHARED: tuple[dict[str, Any], ...] = (
    {},
    {"grid_reductions": True},
    {
        "grid_reductions": True,
        "grid_reduction_rows": 256,
        "grid_reduction_points": 4096,
        "grid_reduction_minimum": 1 << 17,
    },
)
"""Policies with which rows are read twice, or shared."""
NARROW = ("in float32", "packed")
POLLED = ("by atomics", "by loads")


def softmax(dtype: torch.dtype) -> Iterator[Row]:
    rows, count = 4096, 16384
    x = torch.randn(rows, count, device="cuda", dtype=dtype)
    y, exact = torch.empty_like(x), torch.softmax(x.double(), 0)
    error = functools.partial(distance, y, exact)
    for policy in SHARED:
        yield ours(lambda x: torch.softmax(x, 0), x, **policy)
    for columns, warps in ((8, 16), (16, 32)):
        call = launched(held_columns, count // columns, x, y, count, columns, rows, warps=warps)
        yield f"{columns} columns held whole, {warps} warps", call, error
    prefetched = ("nothing ahead", "the next block, at last the last row", "the next block, at last the first")
    for ahead, name in enumerate((*prefetched, "the next block, at last one element for all programs")):
        call = launched(prefetched_columns, count // 32, x, y, count, 32, 1024, rows, ahead, warps=16)
        yield f"32 columns read twice by blocks of 1024 rows, prefetching {name}, 16 warps", call, error
    for columns, points, warps, keeps, loads in (
        (32, 512, 8, 0, 0),
        (32, 512, 8, 0, 1),
        (32, 256, 4, 0, 0),
        (64, 128, 4, 0, 0),
        *((32, 256, 4, 1, 0), (64, 128, 4, 1, 0)) * (dtype is torch.bfloat16),
    ):
        share = rows // points
        counts = torch.zeros(1 + count // columns, dtype=torch.int32, device="cuda")
        tops, masses = (torch.empty(share * count, device="cuda") for _ in range(2))
        given = (x, y, counts, tops, masses, count, columns, points, share, keeps, loads)
        call = launched(shared_columns, count // columns * share, *given, warps=warps, cleared=counts)
        name = f"{columns} columns held {NARROW[keeps]} by {share} programs, {warps} warps, polling {POLLED[loads]}"
        yield name, call, error


def long_softmax(dtype: torch.dtype) -> Iterator[Row]:
    rows, length = 2048, 131072
    x = torch.randn(rows, length, device="cuda", dtype=dtype)
    y, exact = torch.empty_like(x), torch.softmax(x.double(), 1)
    for policy in SHARED:
        yield ours(lambda x: torch.softmax(x, 1), x, **policy)
    for points, warps, keeps, loads in (
        (8192, 4, 0, 0),
        (8192, 4, 0, 1),
        (4096, 4, 0, 0),
        *((16384, 8, 1, 0), (8192, 4, 1, 0), (4096, 2, 1, 0)) * (dtype is torch.bfloat16),
    ):
        share = length // points
        counts = torch.zeros(1 + rows, dtype=torch.int32, device="cuda")
        tops, masses = (torch.empty(rows * share, device="cuda") for _ in range(2))
        given = (x, y, counts, tops, masses, length, points, share, keeps, loads)
        call = launched(shared_rows, rows * share, *given, warps=warps, cleared=counts)
        yield (
            f"rows held {NARROW[keeps]} by {share} programs, {warps} warps, polling {POLLED[loads]}",
            call,
            functools.partial(distance, y, exact),
        )


def scan(dtype: torch.dtype) -> Iterator[Row]:
    x = (torch.randn(1 << 26, device="cuda") / 64).to(dtype)
    y, exact = torch.empty_like(x), x.double().cumsum(0)
    error = functools.partial(distance, y, exact)
    yield ours(lambda x: x.cumsum(0), x)

    def workspace_of(parts: int) -> Tensor:
        return torch.zeros(1 + parts + -(-parts // 512), dtype=torch.int64, device="cuda")

    for points, warps in ((4096, 4), (8192, 4), (8192, 8), (16384, 8)):
        parts = x.numel() // points
        workspace = workspace_of(parts)
        for name, draws, waits in (
            ("drawn", 1, 1),
            ("drawn, polling for what is missing", 1, 2),
            ("that wait for nobody", 0, 0),
        ):
            given = (x, workspace, y, parts, points, draws, waits)
            call = launched(scanned_part, parts, *given, warps=warps, cleared=workspace)
            yield f"parts of {points} {name}, {warps} warps", call, error if waits else lambda: 0.0

    if dtype is not torch.bfloat16:
        return
    pairs, sums = x.view(torch.int32), y.view(torch.int32)
    for points, warps, registers, resident in ((4096, 4, 168, 3), (4096, 8, 80, 3), (2048, 4, 104, 4)):
        parts = pairs.numel() // points
        workspace = workspace_of(parts)
        for polls, when in enumerate(("where it is needed", "before")):
            given = (pairs, workspace, sums, parts, points, polls)
            programs = resident * torch.cuda.get_device_properties(0).multi_processor_count
            call = launched(scanned_prefetching, programs, *given, warps=warps, cleared=workspace, registers=registers)
            name = f"parts of {2 * points}, their sums one part ahead, polled {when}"
            yield f"{name}, {warps} warps, {resident} programs each", call, error
    for points, registers, draws, waits in (
        *((8192, 128, draws, 1) for draws in (1, 0)),
        *((4096, 72, draws, 1) for draws in (1, 0)),
        (4096, 72, 0, 0),
    ):
        parts = pairs.numel() // points
        workspace = workspace_of(parts)
        given = (pairs, workspace, sums, parts, points, draws, waits)
        call = launched(scanned_held, parts, *given, warps=4, cleared=workspace, registers=registers)
        order = "drawn" if draws else "in order"
        name = f"parts of {2 * points} held in pairs, 4 warps of {registers} registers, {order}"
        yield name + ", that wait for nobody" * (not waits), call, error if waits else lambda: 0.0


def products(dtype: torch.dtype) -> Iterator[Row]:
    """Two to sixteen rows by 14336 columns of 4096: half of what is "read and written once" is not written."""
    if dtype != torch.float32:
        return
    columns, depth = 14336, 4096
    w = torch.randn(columns, depth, device="cuda")
    for rows in (2, 4, 8, 16):
        x = torch.randn(rows, depth, device="cuda")
        y, exact = torch.empty(rows, columns, device="cuda"), F.linear(x.double(), w.double())
        error = functools.partial(distance, y, exact)
        yield f"{rows} rows, the library", functools.partial(torch.mm, x, w.t(), out=y), error
        for width, points, warps in ((1, 1024, 4), (2, 512, 4), (4, 256, 4), (8, 128, 4)):
            given = (x, w, y, rows, columns, depth, rows, width, points if rows <= 4 else points // 2)
            call = launched(few_rows, columns // width, *given, warps=warps, stages=1)
            yield f"{rows} rows, {width} columns, {given[-1]} points, {warps} warps", call, error
        for width, points, warps, stages in (
            *((32, 64, 2, stages) for stages in (3, 4, 6)),
            (32, 128, 2, 4),
            (32, 32, 1, 6),
            (16, 64, 1, 6),
            (16, 64, 2, 6),
            (16, 128, 2, 4),
            (64, 32, 4, 4),
            (64, 64, 4, 4),
        ):
            given = (x, w, y, rows, columns, depth, width, points)
            call = launched(few_rows_in_parts, columns // width, *given, warps=warps, stages=stages)
            name = f"{rows} rows on tensor cores in parts, {width} columns, {points} points, {stages} stages"
            yield f"{name}, {warps} warps", call, error


def beginning(dtype: torch.dtype) -> Iterator[Row]:
    """What it costs to let the next kernel start and to wait for the one before (decision 0014)."""
    count, every = 1 << 27, 1 << 30
    x = torch.randn(count, device="cuda", dtype=dtype)
    y, exact = torch.empty_like(x), x.double()
    error = functools.partial(distance, y, exact)
    for points, warps in ((1024, 4), (2048, 4), (8192, 8)):
        for name, lets, waits, uses_pdl in (
            ("neither lets nor waits", 0, False, False),
            ("all let", every, False, False),
            ("all wait", 0, True, False),
            ("all let and wait", every, True, False),
            ("all let and wait, and start early", every, True, True),
            ("the last 8192 let, all wait", 8192, True, False),
            ("the last 8192 let, all wait, and start early", 8192, True, True),
            ("the last 2048 let, all wait", 2048, True, False),
            ("the last 2048 let, all wait, and start early", 2048, True, True),
        ):
            call = launched(copied, count // points, x, y, lets, waits, points, warps=warps, uses_pdl=uses_pdl)
            yield f"programs of {points * 2 * dtype.itemsize >> 10} KiB, {warps} warps: {name}", call, error


def listing(dtype: torch.dtype) -> Iterator[Row]:
    """Rows listed by where they go, into 16 thousand places, as before decision 0016: what do the steps take?"""
    if dtype is not torch.bfloat16:
        return
    count, rows, capacity = LISTED, 16384, 64
    places = torch.randint(rows, (count,), device="cuda")
    expected = torch.sort(places, stable=True).indices
    counts, lists, ordered = (torch.empty(n, dtype=torch.int32, device="cuda") for n in (rows, rows * capacity, count))
    steps = ("read and written", "and sorted", "and runs found", "and their words", "and counted", "and listed")
    for tile, warps in ((1024, 8), (512, 4), (256, 1)):
        runs = torch.empty(rows * (count // tile), dtype=torch.int32, device="cuda")
        for number, name in enumerate(steps):
            given = (places, counts, lists, runs, ordered, count, capacity, tile, number)
            call = launched(listed, count // tile, *given, warps=warps, cleared=counts)

            def error() -> float:
                size = counts.clamp(max=capacity)[:, None]
                is_there = torch.arange(capacity, device="cuda") < size
                found = lists.view(rows, capacity).where(is_there, count).sort(1).values
                return float((found[is_there] != expected).sum()) if int(counts.max()) <= capacity else 1.0

            yield f"shares of {tile}, {warps} warps: {name}", call, error if name is steps[-1] else lambda: 0.0


def order(dtype: torch.dtype, *, sums: bool = False) -> Iterator[Row]:
    """Two kernels one after the other, the second one reading what the first one has written (decision 0015).

    Or what the first one has added up, in stretches, one for each of its programs. Four sets of tensors take turns, so
    that nothing is in the cache when the first kernel begins.
    """
    inputs = torch.randn(4, ORDERED, device="cuda", dtype=dtype)
    sets = [*zip(inputs, torch.empty_like(inputs), torch.empty_like(inputs), strict=True)]
    exact = [x.double() * (1.5 if sums else 2.25) for x in inputs]
    blocks = ORDERED // ORDERED_BLOCK
    orders = {"both forwards": 0, "the second backwards": 1}
    if sums:
        orders["the second from the ends of stretches"] = STRETCHES
    for name, count in orders.items():
        turns = itertools.cycle(sets)

        def call(turns: Iterator[tuple[Tensor, Tensor, Tensor]] = turns, count: int = count) -> None:
            x, y, z = next(turns)
            if sums:
                summed[(STRETCHES,)](x, y, blocks // STRETCHES, ORDERED_BLOCK)
                scaled[(blocks,)](x, z, count, ORDERED_BLOCK)
            else:
                scaled[(blocks,)](x, y, 0, ORDERED_BLOCK)
                scaled[(blocks,)](y, z, count, ORDERED_BLOCK)

        for _, _, z in sets:
            z.zero_()
            call()
        yield name, call, lambda: max(distance(z, wide) for (_, _, z), wide in zip(sets, exact, strict=True))


def one_after_another(calls: Iterable[Callable[[], Any]]) -> None:
    for call in calls:
        call()


CASES: dict[str, tuple[Callable[[torch.dtype], Iterator[Row]], int]] = {
    "softmax": (softmax, 4096 * 16384),
    "long_softmax": (long_softmax, 2048 * 131072),
    "scan": (scan, 1 << 26),
    "products": (products, 14336 * 4096 // 2),
    "beginning": (beginning, 1 << 27),
    "order": (order, 2 * ORDERED),
    "stretches": (functools.partial(order, sums=True), 3 * ORDERED // 2),
    "listing": (listing, 3 * LISTED),
}
"""The variants of a case, and the elements that are read and written once."""
