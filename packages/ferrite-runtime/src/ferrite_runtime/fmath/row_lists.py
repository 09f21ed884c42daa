"""Rows of a matrix listed by where they go, as a device function; `combined_rows` combines them.

Which row goes to which *place* is only known when the kernels run. A program takes a *share* of the rows, one after the
other, and sorts them by place and number, so that rows of a place which follow each other are a *run*. A run, not a
row, counts itself at its place, however many rows it has: a place that most rows go to is counted once in each share.

Each place has a list of a fixed ``capacity``. How many rows were counted before a run is where its rows are written;
programs come in any order, and whoever combines a list sorts it first. Of a *long* place, one with more rows than fit
in its list, the runs are known as well: where each begins among the sorted rows of its share, and its length. Runs in
the order of their shares are the rows of a place in their own order, whoever came first.

The rows of long places are combined by *chunks*, of which the last one may be shorter. The run that fills a chunk
asks for the next one in a queue. Who came first decides where in the queue a chunk stands, and nothing else.

How many rows there are may be known only when a kernel runs. ``most`` is then the most that there may be, which decides
how many bits of a word count rows, and what depends on it in other ways is chosen by whoever writes the kernel.

A kernel that is timed runs again on counters that are not zero: what it writes then is wrong, but in bounds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _find_places(places, lane, known, rows: tl.constexpr, wraps: tl.constexpr):
    """Returns places; those that lie outside are none, which is ``rows``, as is the lowest number of all."""
    given = tl.load(places + lane, known, other=0).to(tl.int64)
    place = given
    if wraps:
        place = tl.where(given < 0, given + rows, given)
    inside = (place >= 0) & (place < rows)
    is_none = given == -9223372036854775808
    tl.device_assert(inside | is_none, "index out of bounds of the rows that others are combined into", mask=known)
    return tl.where(inside & known, place, rows).to(tl.int32)


@triton.jit
def _nearer_end(place, end, next_place, next_end):
    """Returns the end of the run that goes on behind so many sorted lanes, or of the one that begins there."""
    return next_place, tl.where(place == next_place, end, next_end)


@triton.constexpr_function
def row_bits(most):
    """Returns how many bits of a place's word count its rows; those above count its runs."""
    return most.bit_length()


@triton.jit
def rows_in(word, most: tl.constexpr):
    """Returns how many rows a place's word counts."""
    mask: tl.constexpr = (1 << row_bits(most)) - 1
    return (word & mask).to(tl.int32)


@triton.jit
def runs_in(word, most: tl.constexpr):
    """Returns how many runs a place's word counts."""
    return (word >> row_bits(most)).to(tl.int32)


@triton.jit
def _ask_for_chunks(
    queue,
    tasks,
    place,
    before,
    length,
    is_first,
    capacity: tl.constexpr,
    chunk: tl.constexpr,
    slots,
    tile: tl.constexpr,
):
    """Asks for the chunks of long places that begin within these runs, and for the first one of what becomes long."""
    becomes_long = is_first & (before <= capacity) & (before + length > capacity)
    first = tl.maximum((before + chunk - 1) // chunk, 1)
    asked = tl.where(is_first, (before + length - 1) // chunk + 1 - first, 0) + becomes_long.to(tl.int32)
    first = tl.where(becomes_long, 0, first)
    if tl.max(asked, 0) != 0:
        at = tl.atomic_add(tasks + place * 0, asked, mask=asked > 0, sem="relaxed")
        for step in tl.range(0, tile // chunk + 2):
            known = (step < asked) & (at + step < slots)
            tl.store(queue + at + step, place, known)
            tl.store(queue + slots + at + step, first + step, known)


@triton.jit
def list_rows(
    places,
    counts,
    lists,
    runs,
    ordered,
    queue,
    tasks,
    count,
    rows: tl.constexpr,
    wraps: tl.constexpr,
    capacity: tl.constexpr,
    chunk: tl.constexpr,
    slots,
    tile: tl.constexpr,
    most: tl.constexpr = None,
    in_order: tl.constexpr = False,  # noqa: FBT002 - kernels cannot be told to name it
):
    """Counts the rows of each place, lists them, and asks for the chunks of long places.

    Args:
        places: where rows go.
        counts: how many rows and runs each place has, in one word (i32, or i64 where that is too short); zero before.
        lists: the rows of each place, as many as there is room for.
        runs: of each place as many words as there are shares (i32, or i64 where that is too short), of which each run
            has one: where it begins in ``ordered``, times ``tile``, and one less than its rows. Which one is decided by
            who comes first, or, ``in_order``, by the share: the word is then one more, and zero before where there is
            no run.
        ordered: the rows of each share, by place and number; ``tile`` for each share.
        queue: the chunks that are asked for: ``slots`` places, then as many numbers of chunks.
        tasks: how many there are; zero before.
        count: number of rows.
        rows: number of places.
        wraps: whether places may count from the end.
        capacity: rows of a list.
        chunk: rows of a chunk, a power of two, at least ``capacity``.
        slots: chunks that may be asked for, at most.
        tile: rows of a share, a power of two; times ``rows + 1`` it is less than 31 bits.
        most: the most rows that there may be, ``count`` itself if None. With ``tile`` more it is less than 32 bits.
        in_order: whether the runs of a place stand in the order of their shares.
    """
    limit: tl.constexpr = count if most is None else most
    program = tl.program_id(0)
    lane = tl.arange(0, tile)
    number = program * tile + lane
    place = _find_places(places, number, number < count, rows, wraps)
    key = tl.sort(place * tile + lane)
    place, row = key // tile, program * tile + key % tile
    tl.store(ordered + number, row)
    _, head = tl.associative_scan((place, lane), 0, _nearer_end)
    _, tail = tl.associative_scan((place, lane), 0, _nearer_end, reverse=True)
    is_placed = place < rows
    is_first = is_placed & (head == lane)
    length = tail - lane + 1  # of a run, in its first lane
    word = length.to(counts.dtype.element_ty) + (1 << row_bits(limit))
    found = tl.atomic_add(counts + place, word, mask=is_first, sem="relaxed")
    before = rows_in(found, limit)
    shares = (count + tile - 1) // tile
    run = number.to(runs.dtype.element_ty) * tile + (length - 1)
    if in_order:
        run, slot = run + 1, program
    else:
        slot = runs_in(found, limit)
    tl.store(runs + place.to(tl.int64) * shares + slot, run, is_first & (slot < shares))
    _ask_for_chunks(queue, tasks, place, before, length, is_first, capacity, chunk, slots, tile)
    at = tl.gather(before, head, 0) + lane - head
    tl.store(lists + place.to(tl.int64) * capacity + at, row, is_placed & (at < capacity))
