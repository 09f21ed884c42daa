"""Rows of long places brought in the order of their places, as device functions; see `row_lists`.

A radix sort from the lower digit to the higher one (Knuth, "The Art of Computer Programming" 3, 5.2.5), two digits in
all. Programs have equal *shares* of the rows, one after the other. Of each share it is counted how many rows have
which digit (`row_lists.list_rows` counts the lower one); what shares before have of a digit, and all shares of lower
ones, says where a program's rows go. A program takes its share by tiles and sorts each by digit and position with a
network, so that rows keep their order.

What is counted, and not who comes first, decides where a row goes: the order is the same in every run, and rows that
all go to one place cost as much as any others. If no place is long, programs return at once.

A row with its place is one i64, the place above 32 bits and the number of the row in them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.row_lists import find_places

_LINES = tl.constexpr(16)
"""Shares whose counts are read at a time."""


@triton.jit
def packed_row(place, row):
    """Returns a row with its place."""
    return (place.to(tl.int64) << 32) | row.to(tl.int64)


@triton.jit
def place_of(packed):
    """Returns the place of a row."""
    return (packed >> 32).to(tl.int32)


@triton.jit
def _starts(counted, program, programs: tl.constexpr, digits: tl.constexpr):
    """Returns where the first row of each digit in a share goes, and the number of all rows."""
    digit = tl.arange(0, digits)[None, :]
    before, found = tl.zeros([_LINES, digits], tl.int32), tl.zeros([_LINES, digits], tl.int32)
    for at in tl.range(0, programs, _LINES):
        line = at + tl.arange(0, _LINES)[:, None]
        part = tl.load(counted + line * digits + digit, (line < programs) & (digit < digits), other=0)
        found += part
        before += tl.where(line < program, part, 0)
    total = tl.sum(found, 0)
    return tl.cumsum(total, 0) - total + tl.sum(before, 0), tl.sum(total, 0)


@triton.jit
def _ordered(word, digit, is_moved, starts, digits: tl.constexpr, tile: tl.constexpr):
    """Returns the words of a tile by digit, where they go, which are moved at all, and the starts of the next tile."""
    lane = tl.arange(0, tile)
    key = tl.sort(tl.where(is_moved, digit, digits) * tile + lane)
    found = tl.histogram(digit, digits, is_moved)
    # In order, the words of a digit begin behind all of lower ones.
    first = starts - (tl.cumsum(found, 0) - found)
    goes = tl.gather(first, tl.minimum(key // tile, digits - 1), 0) + lane
    return tl.gather(word, key & (tile - 1), 0), goes, key < digits * tile, starts + found


@triton.jit
def order_low(
    places,
    counts,
    low_counts,
    high_counts,
    partly,
    count: tl.constexpr,
    rows: tl.constexpr,
    wraps: tl.constexpr,
    capacity: tl.constexpr,
    low: tl.constexpr,
    high: tl.constexpr,
    share: tl.constexpr,
    tile: tl.constexpr,
):
    """Stores all rows ordered by the lower digit, -1 for those of no long place, and counts the higher digit.

    Args:
        places: where rows go.
        counts: how many rows each place has, and how many places are long.
        low_counts: for each share and lower digit, how many rows there are (i32).
        high_counts: the same for the higher digit, of shares of what is stored; zero before.
        partly: what is stored.
        count: number of rows.
        rows: number of places.
        wraps: whether places may count from the end.
        capacity: rows of a place that is not long.
        low: how many values the lower digit has, which is the place modulo it; a power of two.
        high: the same for the higher digit.
        share: rows of a program.
        tile: rows that are sorted at once, a power of two that divides ``share``.
    """
    if tl.load(counts + (rows + 1)) != 0:
        program = tl.program_id(0)
        first = program * share
        starts, _ = _starts(low_counts, program, (count + share - 1) // share, low)
        for at in tl.range(first, tl.minimum(first + share, count), tile):
            lane = at + tl.arange(0, tile)
            known = lane < count
            place = find_places(places, lane, known, rows, wraps)
            is_long = known & (place < rows) & (tl.load(counts + place, known, other=0) > capacity)
            word = tl.where(is_long, packed_row(place, lane), -1)
            word, goes, is_moved, starts = _ordered(word, place & (low - 1), known, starts, low, tile)
            tl.store(partly + goes, word, is_moved)
            digit = goes // share * high + place_of(word) // low
            tl.atomic_add(high_counts + digit, 1, mask=is_moved & (word >= 0), sem="relaxed")


@triton.jit
def order_high(
    counts,
    high_counts,
    partly,
    packed,
    count: tl.constexpr,
    rows: tl.constexpr,
    low: tl.constexpr,
    high: tl.constexpr,
    share: tl.constexpr,
    tile: tl.constexpr,
    chunk: tl.constexpr,
):
    """Stores the rows of long places in the order of these, each place's in their own, and how many there are.

    Behind the last one come ``chunk + 1`` more, with the place -1. Else it takes what `order_low` does.
    """
    if tl.load(counts + (rows + 1)) != 0:
        program = tl.program_id(0)
        first = program * share
        starts, size = _starts(high_counts, program, (count + share - 1) // share, high)
        for at in tl.range(first, tl.minimum(first + share, count), tile):
            lane = at + tl.arange(0, tile)
            word = tl.load(partly + lane, lane < count, other=-1)
            digit = tl.maximum(place_of(word), 0) // low
            word, goes, is_moved, starts = _ordered(word, digit, word >= 0, starts, high, tile)
            tl.store(packed + goes, word, is_moved)
        if program == 0:
            tl.store(counts + (rows + 2), size)
            for at in tl.range(0, chunk + 1, tile):
                lane = at + tl.arange(0, tile)
                tl.store(packed + size + lane, packed_row(lane * 0 - 1, lane * 0), lane <= chunk)
