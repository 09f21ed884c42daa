"""How the kernels of `hand_kernels.py` are called, and what with: see `hand_written.py`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backends import compile_with
from hand_kernels import (
    asked_columns,
    copied,
    few_rows,
    few_rows_in_parts,
    held_columns,
    listed,
    met_columns,
    met_group_norm,
    met_rows,
    moments_of_groups,
    moments_of_parts,
    moments_of_stretches,
    normalised,
    normalised_behind,
    register_group_norm,
    scaled,
    scanned_held,
    scanned_part,
    scanned_prefetching,
    summed,
)

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

    If it ``follows``, the kernel starts before the one before has ended, and waits for that by itself.
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
NORM_ELEMENTS = 16 * 320 * 4096
"""Elements of the images of group norms."""
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
NARROW = ("in float32", "in halves")
ASKED = ("by atomics", "by loads")


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
    asked = ("nothing ahead", "the next block, at last the last row", "the next block, at last the first")
    for asks, name in enumerate((*asked, "the next block, at last one element for all programs")):
        call = launched(asked_columns, count // 32, x, y, count, 32, 1024, rows, asks, warps=16)
        yield f"32 columns read twice by blocks of 1024 rows, asking for {name}, 16 warps", call, error
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
        call = launched(met_columns, count // columns * share, *given, warps=warps, cleared=counts)
        name = f"{columns} columns held {NARROW[keeps]} by {share} programs, {warps} warps, asking {ASKED[loads]}"
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
        call = launched(met_rows, rows * share, *given, warps=warps, cleared=counts)
        yield (
            f"rows held {NARROW[keeps]} by {share} programs, {warps} warps, asking {ASKED[loads]}",
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
        status = workspace_of(parts)
        for name, draws, waits in (
            ("drawn", 1, 1),
            ("drawn, asking for what is missing", 1, 2),
            ("that wait for nobody", 0, 0),
        ):
            given = (x, status, y, parts, points, draws, waits)
            call = launched(scanned_part, parts, *given, warps=warps, cleared=status)
            yield f"parts of {points} {name}, {warps} warps", call, error if waits else lambda: 0.0

    if dtype is not torch.bfloat16:
        return
    pairs, sums = x.view(torch.int32), y.view(torch.int32)
    for points, warps, registers, resident in ((4096, 4, 168, 3), (4096, 8, 80, 3), (2048, 4, 104, 4)):
        parts = pairs.numel() // points
        status = workspace_of(parts)
        for asks, when in enumerate(("where it is needed", "before")):
            given = (pairs, status, sums, parts, points, asks)
            programs = resident * torch.cuda.get_device_properties(0).multi_processor_count
            call = launched(scanned_prefetching, programs, *given, warps=warps, cleared=status, registers=registers)
            name = f"parts of {2 * points}, their sums one part ahead, asking {when}"
            yield f"{name}, {warps} warps, {resident} programs each", call, error
    for points, registers, draws, waits in (
        *((8192, 128, draws, 1) for draws in (1, 0)),
        *((4096, 72, draws, 1) for draws in (1, 0)),
        (4096, 72, 0, 0),
    ):
        parts = pairs.numel() // points
        status = workspace_of(parts)
        given = (pairs, status, sums, parts, points, draws, waits)
        call = launched(scanned_held, parts, *given, warps=4, cleared=status, registers=registers)
        order = "drawn" if draws else "in order"
        name = f"parts of {2 * points} held in pairs, 4 warps of {registers} registers, {order}"
        yield name + ", that wait for nobody" * (not waits), call, error if waits else lambda: 0.0


HELD: dict[torch.dtype, tuple[tuple[int, int, int, int, int], ...]] = {
    torch.bfloat16: (
        *((256, 128, 0, 8, asks) for asks in (0, 1, 2)),
        (256, 128, 2, 8, 2),
        (256, 64, 0, 8, 2),
        (512, 128, 0, 16, 2),
        (512, 128, 8, 8, 2),
    ),
    torch.float32: ((256, 64, 0, 8, 0), (256, 64, 0, 8, 2), (512, 64, 2, 16, 2)),
}
"""Points of a program, of a tile, tiles in registers, warps, and how it asks for all of its elements before."""
ASKED_BEFORE = ("", ", sectors asked for before", ", asked for before at once")
PHASES = (": adding up alone", ": and meeting", "")


def normalised_images(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 32, weight, bias))


def group_norm(dtype: torch.dtype) -> Iterator[Row]:
    x = torch.randn(16, 320, 64, 64, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    weight, bias = (torch.randn(320, device="cuda", dtype=dtype) for _ in range(2))
    y, exact = torch.empty_like(x), F.silu(F.group_norm(x.double(), 32, weight.double(), bias.double()))
    error = functools.partial(distance, y, exact)
    yield ours(normalised_images, x, weight, bias)
    operands = (x, weight, bias, y)
    counts = torch.zeros(32, dtype=torch.int32, device="cuda")
    for number, (points, rows, held, warps, asks) in enumerate(HELD[dtype]):
        means, squares = torch.empty(2, 16 * 4096 // points * 320, device="cuda")
        lanes = 4 * warps // (dtype.itemsize // 2)
        registers = min(255, 4 * points // warps)
        share = 100 * held * rows // points // 5
        name = f"one kernel of {16 * 4096 // points} programs, tiles of {rows} points, {share} % in registers"
        for phases, what in enumerate(PHASES, 1):
            if phases == len(PHASES) or number == 0:
                given = (*operands, counts, means, squares, points, rows, held, lanes, asks, phases)
                call = launched(register_group_norm, 16 * 4096 // points, *given, warps=warps, registers=registers)
                judged = error if phases == len(PHASES) else lambda: 0.0
                yield f"{name}, {warps} warps{ASKED_BEFORE[asks]}{what}", call, judged
    if dtype != torch.bfloat16:
        return
    moments = torch.empty(16 * 64, device="cuda")

    def of_pieces(rows: int) -> tuple[Tensor, Tensor]:
        means, squares = torch.empty(2, 16 * 4096 // rows * 320, device="cuda")
        return means, squares

    for rows, warps in ((256, 8), (64, 4)):
        programs = 16 * 4096 // rows * 5
        means, squares = of_pieces(rows)
        for order, backwards, uses_pdl in (
            ("in the same order", 0, False),
            ("backwards", 1, False),
            ("in the same order, each begins before the one before has ended", 0, True),
            ("backwards, each begins before the one before has ended", 1, True),
        ):
            first = launched(moments_of_parts, programs, x, means, squares, rows, warps=warps, uses_pdl=uses_pdl)
            second = launched(moments_of_groups, 16 * 32, means, squares, moments, rows, warps=4, uses_pdl=uses_pdl)
            given = (*operands, moments, rows, programs, backwards)
            last = launched(normalised, programs, *given, warps=warps, uses_pdl=uses_pdl)
            call = functools.partial(one_after_another, (first, second, last))
            yield f"three kernels, {rows} rows, the last {order}, {warps} warps", call, error
    for groups in (2, 4):
        images, programs = 16 // groups, 4096 // 128 * 5 * 16 // groups
        means, squares = of_pieces(128)
        calls = []
        for part, own in zip(x.chunk(groups), y.chunk(groups), strict=True):
            calls += [
                launched(moments_of_parts, programs, part, means, squares, 128, warps=4),
                launched(moments_of_groups, images * 32, means, squares, moments, 128, warps=1),
                launched(normalised, programs, part, weight, bias, own, moments, 128, programs, 0, warps=4),
            ]
        call = functools.partial(one_after_another, tuple(calls))
        yield f"three kernels for {images} images, {groups} times, 128 rows, 4 warps", call, error
    for rows, warps, ahead in ((256, 8, 264), (64, 4, 1056)):
        each = 4096 // rows * 5
        behind = each + ahead
        given = (*operands, *of_pieces(rows), moments, counts, 16 * each, behind, rows, each)
        call = launched(normalised_behind, 16 * each + behind, *given, warps=warps, cleared=counts)
        yield f"one kernel, pieces of {rows} rows, {behind} behind, {warps} warps", call, error
    for rows, warps in ((64, 2), (64, 4), (128, 4), (128, 8), (256, 8)):
        each = 4096 // rows * 5
        status = torch.zeros(1 + 16 + 16 * each * 16, dtype=torch.int64, device="cuda")
        given = (*operands, status, status[17:], rows, each)
        call = launched(met_group_norm, 16 * each, *given, warps=warps, cleared=status)
        yield f"one kernel, {rows} rows held in halves until their image is there, {warps} warps", call, error


ORDERS: tuple[dict[str, Any], ...] = (
    *(
        {"programs_per_processor": programs, "programs_for_images": programs, "reverse_traversal": turns}
        for programs in (8, 16)
        for turns in (False, True)
    ),
    {"programs_per_processor": 40, "programs_for_images": 40},
)
"""Policies of how many programs a part of an image each is for, and which way the next kernel walks through images."""


def images(dtype: torch.dtype) -> Iterator[Row]:
    """Group norm by the compiler, with fewer and longer parts of images and with more of them (decision 0017)."""
    sets = torch.randn(6, 16, 64, 64, 320, device="cuda", dtype=dtype).permute(0, 1, 4, 2, 3)
    weight, bias = (torch.randn(320, device="cuda", dtype=dtype) for _ in range(2))
    for policy in ORDERS:
        yield ours(normalised_images, sets[0], weight, bias, sets=[*sets], **policy)


STRETCHED = (
    (256, 32, 64, 1, 1),
    (256, 32, 64, 1, 2),
    (256, 32, 64, 1, 3),
    (256, 32, 64, 1, 5),
    (128, 32, 64, 1, 1),
    (128, 32, 64, 1, 3),
    (512, 32, 64, 1, 4),
    (512, 64, 64, 2, 1),
    (256, 64, 64, 1, 1),
    (256, 64, 64, 2, 3),
    (256, 128, 64, 4, 1),
    (64, 64, 64, 2, 1),
    (256, 32, 32, 1, 1),
    (256, 16, 64, 1, 4),
    (256, 32, 128, 2, 1),
    (256, 32, 128, 2, 3),
    (256, 16, 512, 4, 1),
    (256, 16, 512, 4, 3),
    (128, 16, 512, 4, 1),
)
"""Points of a stretch, rows and channels at a time, warps, and stages of the loop."""


def stretched_moments(dtype: torch.dtype) -> Iterator[Row]:
    """The first kernel of a group norm alone, which only reads: why does it take longer than its bytes?"""
    sets = torch.randn(6, 16 * 4096, 320, device="cuda", dtype=dtype)
    for points, rows, width, warps, stages in STRETCHED:
        means, squares = torch.empty(2, 16 * 4096 // points, 320, device="cuda")
        programs = 16 * 4096 // points * -(-320 // width)
        lanes = 4 * warps // (dtype.itemsize // 2) * 64 // width or 1
        given = (means, squares, points, rows, width, min(lanes, rows), stages)
        calls = [launched(moments_of_stretches, programs, x, *given, warps=warps) for x in sets]
        turns = itertools.cycle(calls)

        def error(call=calls[0], means=means, squares=squares, points=points) -> float:
            call()
            exact = sets[0].double().view(-1, points, 320)
            away = exact.var(1, correction=0) * points
            return max(distance(means, exact.mean(1)), distance(squares, away))

        name = f"{points} points, {rows} by {width} at a time, {warps} warps, {stages} stages"
        yield name, lambda turns=turns: next(turns)(), error


HINTS = (
    ("", "", ""),
    ("evict_first", "", ""),
    ("evict_first", "evict_first", ""),
    ("evict_first", "", ".cs"),
)
"""Eviction policy of loads and of stores, and the modifier of these."""
KEPT = (
    *((128, True, -1, hints, 0) for hints in range(4)),
    *((128, True, kept, 2, 1) for kept in (-1, 100, 75, 50, 25)),
    (128, True, 50, 2, 0),
    *((points, uses_pdl, -1, 2, 0) for points, uses_pdl in ((128, False), (256, True), (256, False))),
)
"""Points of a program of the first kernel, whether it follows, per cent of what it reads that should stay in the cache,
and the hints of the last kernel and its direction."""


def kept_images(dtype: torch.dtype) -> Iterator[Row]:
    """Group norm of three kernels: does it help to say what should stay in the cache?"""
    sets = torch.randn(6, 16, 64, 64, 320, device="cuda", dtype=dtype).permute(0, 1, 4, 2, 3)
    weight, bias = (torch.randn(320, device="cuda", dtype=dtype) for _ in range(2))
    y, exact = torch.empty_like(sets[0]), normalised_images(*(t.double() for t in (sets[0], weight, bias)))
    moments = torch.empty(16 * 64, device="cuda")
    rows, programs = 64 // dtype.itemsize, 16 * 4096 // 64 * dtype.itemsize * 5
    yield ours(normalised_images, sets[0], weight, bias, sets=[*sets])
    for points, uses_pdl, kept, hints, backwards in KEPT:
        means, squares = torch.empty(2, 16 * 4096 // points * 320, device="cuda")
        calls = []
        for x in sets:
            given = (x, means, squares, points, 32, 64, 4 // (dtype.itemsize // 2), 1, kept)
            kernels = [launched(moments_of_stretches, 16 * 4096 // points * 5, *given, warps=1, uses_pdl=uses_pdl)]
            given = (means, squares, moments, points)
            kernels += [launched(moments_of_groups, 16 * 32, *given, warps=1, uses_pdl=True)]
            given = (x, weight, bias, y, moments, rows, programs, backwards, *HINTS[hints])
            kernels += [launched(normalised, programs, *given, warps=4, uses_pdl=True)]
            calls.append(functools.partial(one_after_another, kernels))
        turns = itertools.cycle(calls)

        def error(call=calls[0]) -> float:
            call()
            return distance(y, exact)

        first = f"{points} points, {'follows' if uses_pdl else 'does not follow'}, {kept} % stay"
        last = f"then {HINTS[hints]}, {'backwards' if backwards else 'forwards'}"
        yield f"{first}, {last}", lambda turns=turns: next(turns)(), error


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
            ("all let and wait, and follow", every, True, True),
            ("the last 8192 let, all wait", 8192, True, False),
            ("the last 8192 let, all wait, and follow", 8192, True, True),
            ("the last 2048 let, all wait", 2048, True, False),
            ("the last 2048 let, all wait, and follow", 2048, True, True),
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
    "group_norm": (group_norm, NORM_ELEMENTS),
    "images": (images, NORM_ELEMENTS),
    "kept": (kept_images, NORM_ELEMENTS),
    "moments": (stretched_moments, NORM_ELEMENTS // 2),
    "products": (products, 14336 * 4096 // 2),
    "beginning": (beginning, 1 << 27),
    "order": (order, 2 * ORDERED),
    "stretches": (functools.partial(order, sums=True), 3 * ORDERED // 2),
    "listing": (listing, 3 * LISTED),
}
"""The variants of a case, and the elements that are read and written once."""
