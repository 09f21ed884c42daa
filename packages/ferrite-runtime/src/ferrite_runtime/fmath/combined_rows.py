"""Rows of a matrix combined into the rows of another, as device functions; kernels reach them through `fmath`.

Which row goes to which *place* is only known when the kernels run. A counting sort (Knuth, "The Art of Computer
Programming" 3, 5.2) brings rows of one place together: programs count the rows of each place, learn where the first one
of a place goes, and write the rows down in that order. Then each program takes a *chunk* of them, as many as any
other, combines rows that follow each other in registers and stores the result where their place is, rounded once. A
program stores a place of which it had all rows. Of others, at either end of its chunk, it leaves the part that it had
at an *edge*, and one more kernel combines those parts, in the order of the chunks.

No element is combined in memory, so that rows which all go to one place do not wait for each other. The order of the
rows of a place is that in which programs come to count them; where results must not depend on it, `narrow_places` and
`pack_rows` stand before and after a stable sort of the places.

Places are numbers from 0 up to ``rows``, which stands for none. ``count`` rows of ``width`` elements are combined. A
row with its place is one i64, the place above 32 bits and the number of the row in them. After the last one come more
with the place -1, up to a multiple of the rows of a chunk and one further: no program has to look where to stop.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.elementary import maximum_nan, minimum_nan


@triton.jit
def _places(places, lane, known, rows: tl.constexpr, wraps: tl.constexpr):
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
def _counted(counts, place, known, left, block: tl.constexpr):
    """Counts the rows of each place in a block, where so many are ``left``; returns their numbers among their like."""
    lowest = tl.min(place, 0)
    if lowest == tl.max(place, 0):
        # Thousands of additions to one word wait for each other; one for a block of equal places does not.
        together = tl.maximum(tl.minimum(left, block), 0)
        rank = tl.atomic_add(counts + lowest, together, sem="relaxed") + tl.arange(0, block)
    else:
        rank = tl.atomic_add(counts + place, 1, mask=known, sem="relaxed")
    return rank


@triton.jit
def count_places(
    places, counts, ranks, count: tl.constexpr, rows: tl.constexpr, wraps: tl.constexpr, block: tl.constexpr
):
    """Counts the rows of each place, and numbers them; ``counts`` (i32, ``rows + 1``) must be zero before."""
    first = tl.program_id(0) * block
    lane = first + tl.arange(0, block)
    known = lane < count
    place = _places(places, lane, known, rows, wraps)
    tl.store(ranks + lane, _counted(counts, place, known, count - first, block), known)


@triton.jit
def start_places(counts, starts, rows: tl.constexpr, block: tl.constexpr, ahead: tl.constexpr):
    """Stores how many rows belong to places before each one (i32, ``rows + 1``); programs add up what is before them.

    Args:
        counts: rows of each place.
        starts: what is stored.
        rows: number of places.
        block: places of a program.
        ahead: places before it that it reads at a time.
    """
    first = tl.program_id(0) * block
    before = tl.zeros([ahead], tl.int32)
    at = first * 0
    while at < first:
        lane = at + tl.arange(0, ahead)
        before += tl.load(counts + lane, lane < first, other=0)
        at += ahead
    lane = first + tl.arange(0, block)
    own = tl.load(counts + lane, lane <= rows, other=0)
    tl.store(starts + lane, tl.sum(before, 0) + tl.cumsum(own, 0) - own, lane <= rows)


@triton.jit
def _packed(place, row):
    return (place.to(tl.int64) << 32) | row.to(tl.int64)


@triton.jit
def order_rows(
    places,
    ranks,
    starts,
    packed,
    count: tl.constexpr,
    rows: tl.constexpr,
    wraps: tl.constexpr,
    end: tl.constexpr,
    block: tl.constexpr,
):
    """Stores the rows in the order of their places, with these, ``end`` in all."""
    lane = tl.program_id(0) * block + tl.arange(0, block)
    known = lane < count
    place = _places(places, lane, known, rows, wraps)
    rank = tl.load(starts + place, known, other=0) + tl.load(ranks + lane, known, other=0)
    word = tl.where(known, _packed(place, lane), _packed(lane * 0 - 1, lane * 0))
    tl.store(packed + tl.where(known, rank, lane), word, lane < end)


@triton.jit
def narrow_places(
    places,
    counts,
    keys,
    count: tl.constexpr,
    rows: tl.constexpr,
    wraps: tl.constexpr,
    end: tl.constexpr,
    block: tl.constexpr,
):
    """Counts the rows of each place, and stores these in fewer bits, to be sorted: ``end`` in all."""
    first = tl.program_id(0) * block
    lane = first + tl.arange(0, block)
    known = lane < count
    place = _places(places, lane, known, rows, wraps)
    _counted(counts, place, known, count - first, block)
    tl.store(keys + lane, tl.where(known, place, rows + 1).to(keys.dtype.element_ty), lane < end)


@triton.jit
def pack_rows(ranked, order, packed, count: tl.constexpr, end: tl.constexpr, block: tl.constexpr):
    """Stores sorted places with the rows that they were of, ``end`` in all."""
    lane = tl.program_id(0) * block + tl.arange(0, block)
    place = tl.load(ranked + lane, lane < count, other=-1)
    tl.store(packed + lane, _packed(place, tl.load(order + lane, lane < count, other=0)), lane < end)


@triton.jit
def fill_places(
    counts,
    base,
    out,
    initial: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    programs: tl.constexpr,
    tile: tl.constexpr,
    block: tl.constexpr,
):
    """Stores the places that no row goes to; each of the programs looks at as many places, ``tile`` at a time.

    What places are before is read of all of them, so that it is in the cache when `combine_rows` waits for it.
    """
    share: tl.constexpr = (rows + programs - 1) // programs
    dtype: tl.constexpr = out.dtype.element_ty
    place = tl.program_id(0) * share
    end = tl.minimum(place + share, rows)
    while place < end:
        lane = place + tl.arange(0, tile)
        known = lane < end
        is_empty = tl.load(counts + lane, known, other=1) == 0
        wanted = tl.max(is_empty.to(tl.int32), 0) != 0
        if base is not None:
            wanted = place < end
        if wanted:
            for start in tl.range(0, width, block):
                column = start + tl.arange(0, block)
                mask = known[:, None] & (column < width)[None, :]
                offset = lane.to(tl.int64)[:, None] * width + column[None, :]
                if base is None:
                    value = tl.full([tile, block], initial, dtype)
                else:
                    value = tl.load(base + offset, mask, eviction_policy="evict_last").to(dtype)
                tl.store(out + offset, value, mask & is_empty[:, None])
        place += tile


@triton.jit
def _combined(a, b, mode: tl.constexpr):
    if mode == "add":
        return a + b
    elif mode == "max":
        return maximum_nan(a, b)
    else:
        return minimum_nan(a, b)


@triton.jit
def _folded(parts, mode: tl.constexpr):
    """Returns the rows of a tile combined."""
    if mode == "add":
        return tl.sum(parts, 0)
    elif mode == "max":
        return tl.reduce(parts, 0, maximum_nan)
    else:
        return tl.reduce(parts, 0, minimum_nan)


@triton.constexpr_function
def _neutral(mode):
    return {"add": 0.0, "max": float("-inf"), "min": float("inf")}[mode]


@triton.jit
def _store_places(base, out, initial: tl.constexpr, offset, mask, total, mode: tl.constexpr):
    """Stores places of which all rows have been combined."""
    if base is None:
        before = tl.full(total.shape, initial, total.dtype)
    else:
        before = tl.load(base + offset, mask).to(total.dtype)
    tl.store(out + offset, _combined(before, total, mode).to(out.dtype.element_ty), mask)


@triton.jit
def _place(packed, at, known=None):
    """Returns the place of the row at a position; -1 where it is not known."""
    if known is None:
        return (tl.load(packed + at) >> 32).to(tl.int32)
    else:
        return (tl.load(packed + at, known, other=-1) >> 32).to(tl.int32)


@triton.jit
def combine_rows(
    packed,
    source,
    base,
    out,
    edges,
    mode: tl.constexpr,
    initial: tl.constexpr,
    count: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    stride: tl.constexpr,
    chunk: tl.constexpr,
    batch: tl.constexpr,
    block: tl.constexpr,
):
    """Combines chunks of rows in the order of their places; a program has one chunk, and ``block`` columns.

    Args:
        packed: the rows and their places, in order.
        source: the first element of the matrix of rows.
        base: the first element of what the places are before, None where it is one number.
        out: the first element of what they are after.
        edges: for each chunk two rows (of the type that is computed in): what it had of the place that it begins
            with, and of the place that it ends with where that began in it, unless all of their rows are its own.
        mode: ``add``, ``max`` or ``min``.
        initial: what the places are before, where they are one number.
        count: number of rows.
        rows: number of places.
        width: elements of a row.
        stride: elements from a row to the next one in ``source``.
        chunk: rows of a program.
        batch: rows that are on their way at once; divides ``chunk``.
        block: columns of a program.
    """
    blocks: tl.constexpr = (width + block - 1) // block
    neutral: tl.constexpr = _neutral(mode)
    program = tl.program_id(0)
    number = program // blocks
    column = program % blocks * block + tl.arange(0, block)
    inside = column < width
    first = number * chunk
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
            places += ((word >> 32).to(tl.int32),)  # type: ignore[assignment]
            values += (value,)  # type: ignore[assignment]
        places += (_place(packed, first + step + batch),)  # type: ignore[assignment]
        for lane in tl.static_range(batch):
            total = _combined(total, values[lane].to(total.dtype), mode)
            place = places[lane]
            if place != places[lane + 1]:
                if is_whole:
                    if place < rows:
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
    packed,
    base,
    out,
    edges,
    mode: tl.constexpr,
    initial: tl.constexpr,
    count: tl.constexpr,
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
    column = program % blocks * block + tl.arange(0, block)
    inside = column < width
    number = program // blocks * ends + tl.arange(0, ends)
    end = (number + 1) * chunk
    known = end < count
    place = _place(packed, end - 1, known)
    # Read at once with what tells whether it counts.
    edge = edges + (number * 2 + 1).to(tl.int64)[:, None] * width + column[None, :]
    mask = known[:, None] & inside[None, :]
    total = _combined(tl.load(edge, mask), tl.load(edge + width, mask), mode)
    # It goes on in the next chunk, and there were none of its rows in the one before.
    is_cut = known & (place == _place(packed, end, known)) & (place < rows)
    is_cut = is_cut & (place != _place(packed, end - chunk - 1, known & (number > 0)))
    is_long = is_cut & (place == _place(packed, end + chunk, end + chunk < count))
    offset = place.to(tl.int64)[:, None] * width + column[None, :]
    _store_places(base, out, initial, offset, mask & (is_cut & ~is_long)[:, None], total, mode)
    if tl.max(is_long.to(tl.int32), 0) != 0:
        for lane in tl.range(0, ends):
            at = (program // blocks * ends + lane + 1) * chunk
            _combine_long(packed, base, out, edges, mode, initial, count, rows, width, chunk, parts, at, column)


@triton.jit
def _combine_long(
    packed,
    base,
    out,
    edges,
    mode: tl.constexpr,
    initial: tl.constexpr,
    count: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    chunk: tl.constexpr,
    parts: tl.constexpr,
    end,
    column,
):
    """Combines the parts of the place that a chunk ends with, if it began there and has three or more."""
    place = _place(packed, end - 1, end < count)
    is_long = (place >= 0) & (place < rows) & (place == _place(packed, end + chunk, end + chunk < count))
    if is_long & (place != _place(packed, end - chunk - 1, (end > chunk) & (end < count))):
        neutral: tl.constexpr = _neutral(mode)
        inside = column < width
        first = edges + (end // chunk * 2 - 1).to(tl.int64) * width + column
        total = tl.load(first, inside)
        goes_on, at = is_long, end
        while goes_on:
            lane = at + tl.arange(0, parts) * chunk
            known = lane < count
            offset = (lane // chunk * 2).to(tl.int64)[:, None] * width + column[None, :]
            value = tl.load(edges + offset, known[:, None] & inside[None, :], other=neutral)
            is_same = _place(packed, lane, known) == place
            total = _combined(total, _folded(tl.where(is_same[:, None], value, neutral), mode), mode)
            goes_on = tl.min(is_same.to(tl.int32), 0) != 0
            at += parts * chunk
        _store_places(base, out, initial, place.to(tl.int64) * width + column, inside, total, mode)
