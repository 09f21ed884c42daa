"""Binning: rows of a matrix listed by their destination, as device functions for `segmented_reductions`.

Which row goes to which *destination* is only known when the kernels run. Each destination has a list of a fixed
``capacity``. A row counts itself at its destination, and how many came before it is where its number is written;
programs come in any order, and whoever combines a list sorts it first. The rows of a warp that go to one destination
count themselves together, so that a destination that most rows go to is counted once for each warp of them; without an
instruction that finds them, each does so.

Of a *long* destination, one with more rows than fit in its list, the rows are found by *shares*. Those of a share, one
after the other, are sorted by destination and number, so that rows of a destination which follow each other are a
*segment*: each destination has a word for each share, where its segment begins among the sorted rows of the share, and
its length. Segments in the order of their shares are the rows of a destination in their own order, whoever came first.
Nobody makes these words zero before: one is that of a segment if a row of the destination is where it says that the
segment begins, as destinations and shares without a segment have no such row (Briggs and Torczon, "An efficient
representation for sparse sets", 1993).

Whether any destination is long is known when all rows are listed: only then `sort_rows` sorts. Shares whose indices
often collide are sorted while rows are listed, as there will be long destinations; a part of a share is enough to tell.

The rows of long destinations are combined by *chunks*, of which the last one may be shorter. The rows that fill a chunk
ask for the next one in a queue. Who came first decides where in the queue a chunk stands, and nothing else.

How many rows there are may be known only when a kernel runs. What depends on it in other ways is chosen by whoever
writes the kernel.

A kernel that is timed runs again on counters that are not zero: what it writes then is wrong, but in bounds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.machine import WARP
from ferrite_runtime.fmath.prefetch import SECTOR, prefetch_bytes
from ferrite_runtime.fmath.sorting import sort_integers
from ferrite_runtime.fmath.warp_match import count_together, matches_in_warp

_LINE = tl.constexpr(32)
"""Counters of neighbours are so many counters apart, and each has a sector of the cache to itself: additions to one
line wait for each other."""
_COUNTER = tl.constexpr(4)
"""Bytes of a counter."""
_FEW_PAIRS = tl.constexpr(8)
"""Pairs of rows that may collide however many destinations there are."""


@triton.jit
def counter_of(destination, rows: tl.constexpr):
    """Returns where the counter of a destination is: neighbours, which often have as many rows, in different lines."""
    lines: tl.constexpr = (rows + _LINE - 1) // _LINE
    return (destination % lines * _LINE + destination // lines) * (SECTOR // _COUNTER)


@triton.constexpr_function
def _often(part, rows):
    """Returns how often rows of a part collide with others of their warp if some destinations will be long.

    Of rows that are spread evenly the number of pairs that collide is close to a Poisson variable, which is hardly ever
    six deviations above its mean. Each pair counts twice.
    """
    pairs = part * (WARP.value - 1) / (2 * rows)
    return int(2 * (pairs + 6 * pairs**0.5 + _FEW_PAIRS.value))


@triton.jit
def _find_destinations(destinations, lane, known, rows: tl.constexpr, wraps: tl.constexpr):
    """Returns destinations; those that lie outside are none, which is ``rows``, as is the lowest number of all."""
    given = tl.load(destinations + lane, known, other=0).to(tl.int64)
    destination = given
    if wraps:
        destination = tl.where(given < 0, given + rows, given)
    inside = (destination >= 0) & (destination < rows)
    is_none = given == -9223372036854775808
    tl.device_assert(inside | is_none, "index out of bounds of the rows that others are combined into", mask=known)
    return tl.where(inside & known, destination, rows).to(tl.int32)


@triton.jit
def _ask_for_chunks(
    queue, tasks, destination, before, length, is_first, capacity: tl.constexpr, chunk: tl.constexpr, slots
):
    """Asks for the chunks of long destinations that begin within rows that were counted together, at most ``chunk``.

    And for the first chunk of what becomes long.
    """
    becomes_long = is_first & (before <= capacity) & (before + length > capacity)
    first = tl.maximum((before + chunk - 1) // chunk, 1)
    requested = tl.where(is_first, (before + length - 1) // chunk + 1 - first, 0) + becomes_long.to(tl.int32)
    first = tl.where(becomes_long, 0, first)
    at = tl.atomic_add(tasks + destination * 0, requested, mask=requested > 0, sem="relaxed")
    for step in tl.static_range(2):
        known = (step < requested) & (at + step < slots)
        tl.store(queue + at + step, destination, known)
        tl.store(queue + slots + at + step, first + step, known)


@triton.jit
def _sooner(a, b):
    return tl.minimum(a, b)


@triton.jit
def _sort_share(destination, segments, ordered, share, count, rows: tl.constexpr, tile: tl.constexpr):
    """Sorts the rows of a share by destination and writes the words of their segments."""
    lane = tl.arange(0, tile)
    number = share * tile + lane
    tl.store(ordered + number, sort_integers(destination * tile + lane))
    # What is loaded is not computed again for the layouts of its many uses, which doubles the time of compiling.
    tl.debug_barrier()
    destination = tl.load(ordered + number) // tile
    none: tl.constexpr = 0x7FFFFFFF  # of no destination
    begins = tl.load(ordered + number - 1, lane > 0, other=none) // tile != destination
    ends = tl.load(ordered + number + 1, lane < tile - 1, other=none) // tile != destination
    tail = tl.associative_scan(tl.where(ends, lane, tile - 1), 0, _sooner, reverse=True)
    shares = (count + tile - 1) // tile
    word = lane * tile + (tail - lane)  # of a segment, in its first lane
    tl.store(segments + destination.to(tl.int64) * shares + share, word, (destination < rows) & begins)


@triton.jit
def _look_at_share(
    destinations,
    segments,
    ordered,
    is_sorted,
    share,
    count,
    rows: tl.constexpr,
    wraps: tl.constexpr,
    tile: tl.constexpr,
    part: tl.constexpr,
):
    """Sorts the rows of a share if its first ``part`` rows collide often, or if all shares are sorted."""
    number = share * tile + tl.arange(0, tile)
    if is_sorted is None:
        destination = _find_destinations(destinations, number, number < count, rows, wraps)
        _sort_share(destination, segments, ordered, share, count, rows, tile)
    else:
        some = share * tile + tl.arange(0, part)
        seen = _find_destinations(destinations, some, some < count, rows, wraps)
        destination = _find_destinations(
            destinations, number, number < count, rows, wraps
        )  # on its way before it is needed, if it is
        if tl.sum(tl.where(seen < rows, matches_in_warp(seen) - 1, 0), 0) >= _often(part, rows):
            _sort_share(destination, segments, ordered, share, count, rows, tile)
            tl.store(is_sorted + share, 1)


@triton.jit
def _list_part(
    destinations,
    counts,
    lists,
    queue,
    tasks,
    first,
    count,
    rows: tl.constexpr,
    wraps: tl.constexpr,
    capacity: tl.constexpr,
    chunk: tl.constexpr,
    slots,
    part: tl.constexpr,
    touched,
    found,
):
    """Counts and lists so many rows from the first one on, and asks for chunks; notes destinations unless None."""
    number = first + tl.arange(0, part)
    destination = _find_destinations(destinations, number, number < count, rows, wraps)
    known = destination < rows
    before, rank, length = count_together(counts + counter_of(destination, rows), destination, known)
    at = before + rank
    tl.store(lists + destination.to(tl.int64) * capacity + at, number, known & (at < capacity))
    _ask_for_chunks(queue, tasks, destination, before, length, known & (rank == 0), capacity, chunk, slots)
    if touched is not None:
        own = (known & (rank == 0) & (before == 0)).to(tl.int32)
        place = tl.cumsum(own, 0) - own + tl.atomic_add(found, tl.sum(own, 0), sem="relaxed")
        tl.store(touched + place, destination, own != 0)


@triton.jit
def _copy_part(base, out, number, size: tl.constexpr, elements: tl.constexpr):
    """Copies the part of a tensor of this number, ``size`` bytes of its ``elements``, as it is."""
    block: tl.constexpr = size * 8 // base.dtype.element_ty.primitive_bitwidth
    first = number.to(tl.int64) * block
    lane = tl.arange(0, block)
    if first + block <= elements:  # without a mask, which would have each element copied by itself
        tl.store(out + first + lane, tl.load(base + first + lane, eviction_policy="evict_first"))
    else:
        inside = first + lane < elements
        tl.store(out + first + lane, tl.load(base + first + lane, inside, eviction_policy="evict_first"), inside)


@triton.jit
def bin_rows(
    destinations,
    counts,
    lists,
    segments,
    ordered,
    is_sorted,
    queue,
    tasks,
    base,
    count,
    rows: tl.constexpr,
    wraps: tl.constexpr,
    capacity: tl.constexpr,
    chunk: tl.constexpr,
    slots,
    tile: tl.constexpr,
    part: tl.constexpr,
    asking: tl.constexpr,
    prefetched: tl.constexpr,
    out,
    touched,
    found,
    elements: tl.constexpr,
):
    """Counts the rows of each destination, lists them, and asks for the chunks of long destinations; sorts shares.

    The first programs look at a share each, others list a part of the rows each. As memory has little to do then,
    some ask for what destinations are before, which is read next. Or, where most destinations get no row, programs
    behind these copy what all are before, and those that have rows are noted: nobody else has anything left to do.

    Args:
        destinations: where rows go.
        counts: how many rows each destination has (i32), where `counter_of` says; zero before.
        lists: the rows of each destination, as many as there is room for.
        segments: of each destination as many words (i32) as there are shares: where its segment in the share begins,
            times ``tile``, and one less than its rows. Words without a segment are not written.
        ordered: the rows of each share, by destination and number, ``tile`` for each share: the destination times
            ``tile``, and the number within the share.
        is_sorted: whether each share is sorted (i32), zero before: those are whose rows often collide. None to sort all
        queue: the chunks that are asked for: ``slots`` destinations, then as many numbers of chunks.
        tasks: how many there are; zero before.
        base: the first element of what the destinations are before, None if nobody asks for it.
        count: number of rows; with ``tile`` more it is less than 31 bits.
        rows: number of destinations.
        wraps: whether destinations may count from the end.
        capacity: rows of a list.
        chunk: rows of a chunk, a power of two, at least ``capacity`` and the rows that a warp counts together.
        slots: chunks that may be asked for, at most.
        tile: rows of a share, a power of two; times ``rows + 1`` it is less than 31 bits. No fewer than threads.
        part: rows that a program lists, or looks at in a share, a power of two, no fewer than threads, at most a share.
        asking: how many programs ask for what destinations are before.
        prefetched: bytes that each of them prefetches, a multiple of 16, from ``base`` on; all of them exist. Of those
            that copy, how many each copies, a power of two.
        out: the first element of what destinations are after, None if nobody copies what they are before.
        touched: the destinations that have rows, in any order, with room for all of them; None if nobody copies.
        found: how many these are; zero before.
        elements: how many elements are copied.
    """
    program = tl.program_id(0)
    shares = (count + tile - 1) // tile
    binning = shares + (count + part - 1) // part
    if out is not None:
        if program >= binning:
            _copy_part(base, out, program - binning, prefetched, elements)
    elif base is not None:
        own = base + program * (prefetched * 8 // base.dtype.element_ty.primitive_bitwidth)
        if program < asking:
            prefetch_bytes(own, prefetched)
    if program < shares:
        _look_at_share(destinations, segments, ordered, is_sorted, program, count, rows, wraps, tile, part)
    elif program < binning:
        first = (program - shares) * part
        _list_part(
            destinations,
            counts,
            lists,
            queue,
            tasks,
            first,
            count,
            rows,
            wraps,
            capacity,
            chunk,
            slots,
            part,
            touched,
            found,
        )


@triton.jit
def sort_rows(
    destinations,
    segments,
    ordered,
    is_sorted,
    tasks,
    count,
    rows: tl.constexpr,
    wraps: tl.constexpr,
    tile: tl.constexpr,
):
    """Sorts the shares that are not sorted yet, if any destination is long; the arguments are those of `bin_rows`."""
    share = tl.program_id(0)
    if (tl.load(tasks) != 0) & (tl.load(is_sorted + share) == 0):
        number = share * tile + tl.arange(0, tile)
        destination = _find_destinations(destinations, number, number < count, rows, wraps)
        _sort_share(destination, segments, ordered, share, count, rows, tile)
