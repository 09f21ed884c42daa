"""Rows of a matrix listed by where they go, as a device function; `combined_rows` combines them.

Which row goes to which *place* is only known when the kernels run. A program takes a *share* of the rows, one after the
other, and sorts them by place and number, so that rows of a place which follow each other are a *run*. A run, not a
row, counts itself at its place, however many rows it has: a place that most rows go to is counted once in each share.

Each place has a list of a fixed ``capacity``. How many rows were counted before a run is where its rows are written;
programs come in any order, and whoever combines a list sorts it first. Of a *long* place, one with more rows than fit
in its list, the runs are needed as well: each place has a word for each share, where its run begins among the sorted
rows of the share, and its length. Runs in the order of their shares are the rows of a place in their own order, whoever
came first. Nobody makes these words zero before: one is that of a run if a row of the place is where it says that the
run begins, as places and shares without a run have no such row (Briggs and Torczon, "An efficient representation for
sparse sets", 1993).

The rows of long places are combined by *chunks*, of which the last one may be shorter. The run that fills a chunk
asks for the next one in a queue. Who came first decides where in the queue a chunk stands, and nothing else.

How many rows there are may be known only when a kernel runs. What depends on it in other ways is chosen by whoever
writes the kernel.

A kernel that is timed runs again on counters that are not zero: what it writes then is wrong, but in bounds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.sorting import sort_integers


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
def _later(a, b):
    return tl.maximum(a, b)


@triton.jit
def _sooner(a, b):
    return tl.minimum(a, b)


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
):
    """Counts the rows of each place, lists them, and asks for the chunks of long places.

    Args:
        places: where rows go.
        counts: how many rows each place has (i32); zero before.
        lists: the rows of each place, as many as there is room for.
        runs: of each place as many words (i32) as there are shares: where its run in the share begins, times ``tile``,
            and one less than its rows. Words without a run are not written.
        ordered: the rows of each share, by place and number, ``tile`` for each share: the place times ``tile``, and the
            number within the share.
        queue: the chunks that are asked for: ``slots`` places, then as many numbers of chunks.
        tasks: how many there are; zero before.
        count: number of rows; with ``tile`` more it is less than 31 bits.
        rows: number of places.
        wraps: whether places may count from the end.
        capacity: rows of a list.
        chunk: rows of a chunk, a power of two, at least ``capacity``.
        slots: chunks that may be asked for, at most.
        tile: rows of a share, a power of two; times ``rows + 1`` it is less than 31 bits.
    """
    program = tl.program_id(0)
    lane = tl.arange(0, tile)
    number = program * tile + lane
    place = _find_places(places, number, number < count, rows, wraps)
    tl.store(ordered + number, sort_integers(place * tile + lane))
    # What is loaded is not computed again for the layouts of its many uses, which doubles the time of compiling.
    tl.debug_barrier()
    key = tl.load(ordered + number)
    place, row = key // tile, program * tile + key % tile
    none: tl.constexpr = 0x7FFFFFFF  # of no place
    begins = tl.load(ordered + number - 1, lane > 0, other=none) // tile != place
    ends = tl.load(ordered + number + 1, lane < tile - 1, other=none) // tile != place
    head = tl.associative_scan(tl.where(begins, lane, 0), 0, _later)
    tail = tl.associative_scan(tl.where(ends, lane, tile - 1), 0, _sooner, reverse=True)
    is_placed = place < rows
    is_first = is_placed & begins
    length = tail - lane + 1  # of a run, in its first lane
    shares = (count + tile - 1) // tile
    tl.store(runs + place.to(tl.int64) * shares + program, lane * tile + (length - 1), is_first)
    before = tl.atomic_add(counts + place, length, mask=is_first, sem="relaxed")
    _ask_for_chunks(queue, tasks, place, before, length, is_first, capacity, chunk, slots, tile)
    at = tl.gather(before, head, 0) + lane - head
    tl.store(lists + place.to(tl.int64) * capacity + at, row, is_placed & (at < capacity))
