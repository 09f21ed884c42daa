"""Rows of a matrix listed by where they go, and combined from such lists, as device functions.

Which row goes to which *place* is only known when the kernels run. Each place has a list of a fixed ``capacity``, so
that one kernel makes all of them: a row counts itself at its place, and how many came before it is where it is
written. Programs come in any order; whoever combines a list sorts it in registers first, and so combines the rows of a
place in their own order, whenever they came. Rows of a *long* place, one with more than fit in its list, are left to
`ferrite_runtime.fmath.row_order`. With a capacity of 0 there are no lists, and all places that have rows are long.

Places are numbers from 0 up to ``rows``, which stands for none. ``counts`` (i32, ``rows + 3``, zero before) holds how
many rows a place has, or at least more than ``capacity``; nothing for none; the number of long places, or more than
none; and that of their rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.row_sums import combined, folded, neutral_of

_NO_ROW = tl.constexpr(0x7FFFFFFF)
_EARLY = tl.constexpr(32)
"""One row in so many counts itself before it looks whether its place is long."""


@triton.jit
def find_places(places, lane, known, rows: tl.constexpr, wraps: tl.constexpr):
    """Returns places as they are counted; those that lie outside are none, as is the lowest number of all."""
    given = tl.load(places + lane, known, other=0).to(tl.int64)
    place = given
    if wraps:
        place = tl.where(given < 0, given + rows, given)
    inside = (place >= 0) & (place < rows)
    is_none = given == -9223372036854775808
    tl.device_assert(inside | is_none, "index out of bounds of the rows that others are combined into", mask=known)
    return tl.where(inside & known, place, rows).to(tl.int32)


@triton.jit
def _list(counts, lists, place, row, mask, rows: tl.constexpr, capacity: tl.constexpr):
    """Counts rows at their places, and lists those that there is room for."""
    before = tl.atomic_add(counts + place, 1, mask=mask, sem="relaxed")
    tl.store(lists + place.to(tl.int64) * capacity + before, row, mask & (before < capacity))
    # Of a long place one row is the first that its list has no room for.
    tl.atomic_add(counts + (rows + 1) + row * 0, 1, mask=mask & (before == capacity), sem="relaxed")


@triton.jit
def list_rows(
    places,
    counts,
    lists,
    low_counts,
    count: tl.constexpr,
    rows: tl.constexpr,
    wraps: tl.constexpr,
    capacity: tl.constexpr,
    low: tl.constexpr,
    share: tl.constexpr,
    block: tl.constexpr,
):
    """Counts the rows of each place and the places that are long, and lists rows.

    Args:
        places: where rows go.
        counts: how many rows each place has, and how many places are long.
        lists: the rows of each place, as many as there is room for; None with a capacity of 0.
        low_counts: how many rows of a share have which lower digit, as `row_order.order_low` takes it; zero before.
        count: number of rows.
        rows: number of places.
        wraps: whether places may count from the end.
        capacity: rows of a list.
        low: how many values the lower digit has.
        share: rows of a share.
        block: rows of a program, a power of two that divides ``share``.
    """
    first = tl.program_id(0) * block
    lane = first + tl.arange(0, block)
    known = lane < count
    place = find_places(places, lane, known, rows, wraps)
    digit = tl.arange(0, low)
    found = tl.histogram(place & (low - 1), low, known)
    tl.atomic_add(low_counts + first // share * low + digit, found, mask=found != 0, sem="relaxed")
    is_placed = known & (place < rows)
    if capacity == 0:
        tl.store(counts + place, 1, is_placed)
        tl.store(counts + (rows + 1), 1)
    else:
        # Thousands of additions to one word wait for each other: few rows tell of most places that they are long.
        is_early = lane < first + block // _EARLY
        _list(counts, lists, place, lane, is_placed & is_early, rows, capacity)
        tl.debug_barrier()
        size = tl.load(counts + place, is_placed, other=0, cache_modifier=".cg")
        _list(counts, lists, place, lane, is_placed & ~is_early & (size <= capacity), rows, capacity)


@triton.jit
def _fold_list(
    listed,
    size,
    source,
    column,
    mode: tl.constexpr,
    width: tl.constexpr,
    stride: tl.constexpr,
    batch: tl.constexpr,
    compute: tl.constexpr,
):
    """Returns so many listed rows combined in their own order."""
    neutral: tl.constexpr = neutral_of(mode)
    ordered = tl.where(tl.arange(0, listed.shape[0]) < size, listed, _NO_ROW)
    if size > 1:
        ordered = tl.sort(ordered)
    total = tl.full(column.shape, neutral, compute)
    for first in tl.range(0, size, batch):
        number = first + tl.arange(0, batch)
        row = tl.gather(ordered, number, 0).to(tl.int64)
        value = tl.load(
            source + row[:, None] * stride + column[None, :],
            (number < size)[:, None] & (column < width)[None, :],
            other=neutral,
            eviction_policy="evict_first",
        )
        total = combined(total, folded(value.to(compute), mode), mode)
    return total


@triton.jit
def combine_lists(
    counts,
    lists,
    source,
    base,
    out,
    program,
    mode: tl.constexpr,
    initial: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    stride: tl.constexpr,
    capacity: tl.constexpr,
    batch: tl.constexpr,
    block: tl.constexpr,
    compute: tl.constexpr,
):
    """Combines the rows of one place with what it is before, unless it is long; rows are combined in their own order.

    Args:
        counts: how many rows each place has.
        lists: the rows of each place, in any order.
        source: the first element of the matrix of rows.
        base: the first element of what the places are before, None where it is one number.
        out: the first element of what they are after.
        program: number of the place, and within it of the ``block`` columns.
        mode: ``add``, ``max`` or ``min``.
        initial: what the places are before, where they are one number.
        rows: number of places.
        width: elements of a row.
        stride: elements from a row to the next one in ``source``.
        capacity: rows of a list, a power of two.
        batch: rows that are on their way at once, a power of two, at most half a list.
        block: columns of a program.
        compute: the type that is computed in.
    """
    blocks: tl.constexpr = (width + block - 1) // block
    half: tl.constexpr = capacity // 2
    place = (program // blocks).to(tl.int64)
    column = program % blocks * block + tl.arange(0, block)
    inside = column < width
    # Read before it is known how much of it counts, as is what the place is before: nothing waits for anything else.
    listed = tl.load(lists + place * capacity + tl.arange(0, half))
    size = tl.load(counts + place)
    if base is None:
        total = tl.full([block], initial, compute)
    else:
        total = tl.load(base + place * width + column, inside, other=0.0).to(compute)
    if size <= capacity:
        # Most lists are half empty, and half as many rows are sorted in half the time.
        if size <= half:
            own = _fold_list(listed, size, source, column, mode, width, stride, batch, compute)
        else:
            whole = tl.load(lists + place * capacity + tl.arange(0, capacity))
            own = _fold_list(whole, size, source, column, mode, width, stride, batch, compute)
        total = combined(total, own, mode)
        tl.store(out + place * width + column, total.to(out.dtype.element_ty), inside)
