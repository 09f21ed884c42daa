"""Rows of long places combined, in the order of their places, as device functions; see `row_order`.

Each program takes a *chunk* of the rows, as many as any other, combines rows that follow each other in registers and
stores the result where their place is, rounded once. A program stores a place of which it had all rows. Of others, at
either end of its chunk, it leaves the part that it had at an *edge*, and one more kernel combines those parts, in the
order of the chunks.

No element is combined in memory, so that rows which all go to one place do not wait for each other.

``rows`` is the number of places, ``width`` that of the elements of a row. Behind the last row come more with the place
-1: no program has to look where to stop.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.row_order import place_of
from ferrite_runtime.fmath.row_sums import combined, folded, neutral_of


@triton.jit
def _store_places(base, out, initial: tl.constexpr, offset, mask, total, mode: tl.constexpr):
    """Stores places of which all rows have been combined."""
    if base is None:
        before = tl.full(total.shape, initial, total.dtype)
    else:
        before = tl.load(base + offset, mask).to(total.dtype)
    tl.store(out + offset, combined(before, total, mode).to(out.dtype.element_ty), mask)


@triton.jit
def fill_places(
    counts,
    base,
    out,
    program,
    initial: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    tile: tl.constexpr,
    block: tl.constexpr,
):
    """Stores the places that no row goes to, of a program's ``tile`` of places, ``block`` columns at a time.

    Else it takes what `combine_rows` does.
    """
    place = program * tile + tl.arange(0, tile)
    is_empty = tl.load(counts + place, place < rows, other=1) == 0
    if tl.max(is_empty.to(tl.int32), 0) != 0:
        for start in tl.range(0, width, block):
            column = start + tl.arange(0, block)
            mask = is_empty[:, None] & (column < width)[None, :]
            offset = place.to(tl.int64)[:, None] * width + column[None, :]
            if base is None:
                value = tl.full([tile, block], initial, out.dtype.element_ty)
            else:
                value = tl.load(base + offset, mask).to(out.dtype.element_ty)
            tl.store(out + offset, value, mask)


@triton.jit
def _place(packed, at, known=None):
    """Returns the place of the row at a position; -1 where it is not known."""
    if known is None:
        return place_of(tl.load(packed + at))
    else:
        return place_of(tl.load(packed + at, known, other=-1))


@triton.jit
def combine_rows(
    counts,
    packed,
    source,
    base,
    out,
    edges,
    program,
    mode: tl.constexpr,
    initial: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    stride: tl.constexpr,
    chunk: tl.constexpr,
    batch: tl.constexpr,
    block: tl.constexpr,
):
    """Combines a chunk of the rows of long places, in their order.

    Args:
        counts: where `order_high` has stored how many such rows there are.
        packed: these rows and their places, in order.
        source: the first element of the matrix of rows.
        base: the first element of what the places are before, None where it is one number.
        out: the first element of what they are after.
        edges: for each chunk two rows (of the type that is computed in): what it had of the place that it begins
            with, and of the place that it ends with where that began in it, unless all of their rows are its own.
        program: number of the chunk, and within it of the ``block`` columns.
        mode: ``add``, ``max`` or ``min``.
        initial: what the places are before, where they are one number.
        rows: number of places.
        width: elements of a row.
        stride: elements from a row to the next one in ``source``.
        chunk: rows of a program.
        batch: rows that are on their way at once; divides ``chunk``.
        block: columns of a program.
    """
    blocks: tl.constexpr = (width + block - 1) // block
    neutral: tl.constexpr = neutral_of(mode)
    number = program // blocks
    first = number * chunk
    count = tl.load(counts + (rows + 2))
    if first < count:
        column = program % blocks * block + tl.arange(0, block)
        inside = column < width
        total = tl.full([block], neutral, edges.dtype.element_ty)
        # Whether all rows of the place have been met that are before this one.
        is_whole = _place(packed, first) != _place(packed, first - 1, first > 0)
        for step in tl.range(0, chunk, batch):
            places = ()
            values = ()
            # All loads of a batch come first: no store holds up the ones behind it.
            for lane in tl.static_range(batch):
                word = tl.load(packed + (first + step + lane))
                value = tl.load(
                    source + word.to(tl.int32).to(tl.int64) * stride + column, inside, eviction_policy="evict_first"
                )
                places += (place_of(word),)  # type: ignore[assignment]
                values += (value,)  # type: ignore[assignment]
            places += (_place(packed, first + step + batch),)  # type: ignore[assignment]
            for lane in tl.static_range(batch):
                total = combined(total, values[lane].to(total.dtype), mode)
                place = places[lane]
                if place != places[lane + 1]:
                    if is_whole:
                        offset = place.to(tl.int64) * width + column
                        _store_places(base, out, initial, offset, inside, total, mode)
                    else:
                        tl.store(edges + (number * 2).to(tl.int64) * width + column, total, inside)
                    total = tl.full([block], neutral, total.dtype)
                    is_whole = True
        end = first + chunk
        if (end < count) & (_place(packed, end - 1) == _place(packed, end)):
            edge = tl.where(is_whole, number * 2 + 1, number * 2).to(tl.int64)
            tl.store(edges + edge * width + column, total, inside)


@triton.jit
def combine_edges(
    counts,
    packed,
    base,
    out,
    edges,
    mode: tl.constexpr,
    initial: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    chunk: tl.constexpr,
    ends: tl.constexpr,
    parts: tl.constexpr,
    block: tl.constexpr,
):
    """Combines what chunks had of one place, by the program of the chunk that the place began in.

    It takes what `combine_rows` does. A program has so many ``ends`` of chunks; most places have two parts, and where
    there are more they are read so many ``parts`` at a time.
    """
    blocks: tl.constexpr = (width + block - 1) // block
    program = tl.program_id(0)
    first = program // blocks * ends
    count = tl.load(counts + (rows + 2))
    if (first + 1) * chunk < count:
        column = program % blocks * block + tl.arange(0, block)
        inside = column < width
        lanes = tl.arange(0, ends)
        number = first + lanes
        end = (number + 1) * chunk
        known = end < count
        place = _place(packed, end - 1, known)
        # Read at once with what tells whether it counts.
        edge = edges + (number * 2 + 1).to(tl.int64)[:, None] * width + column[None, :]
        mask = known[:, None] & inside[None, :]
        total = combined(tl.load(edge, mask), tl.load(edge + width, mask), mode)
        # It goes on in the next chunk, and there were none of its rows in the one before.
        is_cut = known & (place == _place(packed, end, known))
        is_cut = is_cut & (place != _place(packed, end - chunk - 1, known & (number > 0)))
        is_long = is_cut & (place == _place(packed, end + chunk, end + chunk < count))
        offset = place.to(tl.int64)[:, None] * width + column[None, :]
        _store_places(base, out, initial, offset, mask & (is_cut & ~is_long)[:, None], total, mode)
        if tl.max(is_long.to(tl.int32), 0) != 0:
            for lane in tl.range(0, ends):
                if tl.max((is_long & (lanes == lane)).to(tl.int32), 0) != 0:
                    at = (first + lane + 1) * chunk
                    _combine_long(packed, base, out, edges, mode, initial, count, width, chunk, parts, at, column)


@triton.jit
def _combine_long(
    packed,
    base,
    out,
    edges,
    mode: tl.constexpr,
    initial: tl.constexpr,
    count,
    width: tl.constexpr,
    chunk: tl.constexpr,
    parts: tl.constexpr,
    end,
    column,
):
    """Combines the parts of the place that a chunk ends with, which began there and has three or more."""
    neutral: tl.constexpr = neutral_of(mode)
    inside = column < width
    place = _place(packed, end - 1)
    total = tl.load(edges + (end // chunk * 2 - 1).to(tl.int64) * width + column, inside)
    goes_on, at = end < count, end
    while goes_on:
        lane = at + tl.arange(0, parts) * chunk
        known = lane < count
        offset = (lane // chunk * 2).to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(edges + offset, known[:, None] & inside[None, :], other=neutral)
        is_same = _place(packed, lane, known) == place
        total = combined(total, folded(tl.where(is_same[:, None], value, neutral), mode), mode)
        goes_on = tl.min(is_same.to(tl.int32), 0) != 0
        at += parts * chunk
    _store_places(base, out, initial, place.to(tl.int64) * width + column, inside, total, mode)
