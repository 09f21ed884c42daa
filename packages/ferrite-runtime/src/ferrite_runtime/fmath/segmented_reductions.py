"""Segmented reduction: rows combined into their destinations, each in their own order, as a device function.

`row_bins` has listed them. A program combines the lists of a few destinations in registers and stores each destination
once. Of
long destinations it takes chunks, if there are any, before that: it finds the rows of a chunk by the segments of the
destination.

What the chunks of a destination come to is combined by groups, and the groups once more, always the same ones in the
same
order: by whichever program comes last. No element is combined in memory, so that rows which all go to one destination
do not wait for each other, and no further kernel has to look whether there is anything left to do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.combines import combined, neutral_of, reduced
from ferrite_runtime.fmath.grid_sync import opaque_floats
from ferrite_runtime.fmath.machine import WARP
from ferrite_runtime.fmath.row_bins import counter_of
from ferrite_runtime.fmath.sorting import sort_integers

_NO_ROW = tl.constexpr(0x7FFFFFFF)
_GROUP = tl.constexpr(32)
"""Chunks of one destination that are combined first."""
_TASKS = tl.constexpr(1024)
"""Chunks of the queue that are looked at together."""
_AHEAD = tl.constexpr(2048)
"""Elements of parts that are on their way at once."""


@triton.constexpr_function
def _rows_apart(depth, block, bits):
    """Returns how many rows of a destination the threads of a warp read together, 16 bytes each."""
    return min(depth, max(WARP.value * 128 // bits // block, 1))


@triton.jit
def _rows_at(
    row, size, first, source, column, mode: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, depth: tl.constexpr
):  # fmt: skip
    """Returns ``depth`` rows of each line of numbers from the first one on (``[lines, depth, block]``), as they are.

    Behind the first ``size`` of a line there is what changes nothing.
    """
    at = first + tl.arange(0, depth)[None, :]
    number = tl.gather(row, tl.broadcast_to(at, [row.shape[0], depth]), 1).to(tl.int64)
    return tl.load(
        source + number[:, :, None] * stride + column[None, None, :],
        (at < size[:, None])[:, :, None] & (column < width)[None, None, :],
        other=neutral_of(mode),
        eviction_policy="evict_first",
    )


@triton.jit
def _reduce_apart(value, mode: tl.constexpr, compute: tl.constexpr):
    """Returns rows combined (``[lines, apart, block]``); those that lie in different threads stay apart."""
    lines: tl.constexpr = value.shape[0]
    depth: tl.constexpr = value.shape[1]
    block: tl.constexpr = value.shape[2]
    apart: tl.constexpr = _rows_apart(depth, block, value.dtype.primitive_bitwidth)
    wide = opaque_floats(value).to(compute) if value.dtype == tl.bfloat16 else value.to(compute)
    return reduced(tl.reshape(wide, [lines, depth // apart, apart, block]), mode, 1)


@triton.jit
def _reduce_rows(
    coming,
    row,
    size,
    source,
    column,
    mode: tl.constexpr,
    width: tl.constexpr,
    stride: tl.constexpr,
    compute: tl.constexpr,
):
    """Returns the first ``size`` rows of each line of numbers combined; the first ones of them are ``coming``."""
    depth: tl.constexpr = coming.shape[1]
    most = tl.max(size, 0)
    if most > depth:
        # Asked for before the first ones are waited for, here and below.
        more = _rows_at(row, size, depth, source, column, mode, width, stride, depth)
        total = combined(_reduce_apart(coming, mode, compute), _reduce_apart(more, mode, compute), mode)
    else:
        total = _reduce_apart(coming, mode, compute)
    for first in tl.range(2 * depth, most, 2 * depth):
        value = _rows_at(row, size, first, source, column, mode, width, stride, depth)
        more = _rows_at(row, size, first + depth, source, column, mode, width, stride, depth)
        total = combined(total, _reduce_apart(value, mode, compute), mode)
        total = combined(total, _reduce_apart(more, mode, compute), mode)
    return reduced(total, mode, 1)


@triton.jit
def _combine_lists(
    row,
    size,
    source,
    base,
    initial: tl.constexpr,
    offset,
    inside,
    column,
    mode: tl.constexpr,
    width: tl.constexpr,
    stride: tl.constexpr,
    depth: tl.constexpr,
    compute: tl.constexpr,
):
    """Returns destinations combined with the rows of their lists, these in their own order."""
    is_listed = tl.arange(0, row.shape[1])[None, :] < size[:, None]
    ordered = tl.where(is_listed, row, _NO_ROW)
    if tl.max(size, 0) > 1:
        ordered = sort_integers(ordered)
    coming = _rows_at(ordered, size, 0, source, column, mode, width, stride, depth)
    # What the destinations are before comes with the first rows: what waits for it does not keep them waiting.
    before = _before(base, initial, offset, inside, compute)
    own = _reduce_rows(coming, ordered, size, source, column, mode, width, stride, compute)
    return combined(before, own, mode)


@triton.jit
def _before(base, initial: tl.constexpr, offset, inside, compute: tl.constexpr):
    """Returns what destinations are before rows are combined into them."""
    if base is None:
        return tl.full(offset.shape, initial, compute)
    else:
        return tl.load(base + offset, inside, other=0.0, eviction_policy="evict_first").to(compute)


@triton.jit
def _rows_of_chunk(
    segments,
    ordered,
    destination,
    first,
    shares,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    spread: tl.constexpr,
):
    """Returns a chunk of the rows of a destination, from so many on; ``spread`` shares are looked at together."""
    wanted = first + tl.arange(0, chunk)
    row = wanted * 0
    before = first * 0
    for share in tl.range(0, shares, spread):
        slot = share + tl.arange(0, spread)
        exists = slot < shares
        word = tl.load(segments + destination.to(tl.int64) * shares + slot, exists, other=0)
        start = slot * tile + (word & (tile * tile - 1)) // tile
        # What nobody has written may be anything, but no row of the destination is where it points to.
        is_run = exists & (tl.load(ordered + start, exists, other=-1) // tile == destination)
        length = tl.where(is_run, (word & (tile - 1)) + 1, 0)
        end = before + tl.cumsum(length, 0)
        after = before + tl.sum(length, 0)
        inside = (wanted >= before) & (wanted < after)
        at = wanted + tl.gather(start - (end - length), _runs_with(wanted, end), 0)
        row = tl.where(inside, _ordered_row(ordered, at, inside, tile), row)
        before = after
    return row


@triton.jit
def _ordered_row(ordered, at, known, tile: tl.constexpr):
    """Returns the rows at so many words of ``ordered``."""
    return at // tile * tile + tl.load(ordered + at, known, other=0) % tile


@triton.jit
def _runs_with(wanted, end):
    """Returns the segment that each wanted row is in: the first one that ends behind it."""
    spread: tl.constexpr = end.shape[0]
    found = wanted * 0
    half: tl.constexpr = spread // 2
    for level in tl.static_range(_levels(spread)):
        middle = found + (half >> level) - 1
        found = tl.where(tl.gather(end, middle, 0) <= wanted, middle + 1, found)
    return found


@triton.constexpr_function
def _levels(spread):
    return spread.bit_length() - 1


@triton.jit
def _first_part(queue, requested, destination):
    """Returns where the parts of a long destination begin: behind those of the destinations before it."""
    before = 0
    for first in tl.range(0, requested, _TASKS):
        at = first + tl.arange(0, _TASKS)
        before += tl.sum((tl.load(queue + at, at < requested, other=destination) < destination).to(tl.int32), 0)
    return before


@triton.jit
def _is_last(done, expected):
    """Counts a program whose stores others may read, and returns whether all that are expected have been counted."""
    tl.debug_barrier()
    return tl.atomic_add(done, 1, sem="acq_rel") == expected - 1


@triton.jit
def _reduce_parts(parts, number, stride: tl.constexpr, column, inside, mode: tl.constexpr):
    """Returns so many parts, ``stride`` elements apart, combined in their order."""
    neutral: tl.constexpr = neutral_of(mode)
    total = tl.full(column.shape, neutral, parts.dtype.element_ty)
    ahead: tl.constexpr = max(_AHEAD // column.shape[0], 1)
    for first in tl.range(0, number, ahead):
        at = first + tl.arange(0, ahead)
        value = tl.load(
            parts + at.to(tl.int64)[:, None] * stride + column[None, :],
            (at < number)[:, None] & inside[None, :],
            other=neutral,
            cache_modifier=".cg",
        )
        total = combined(total, reduced(value, mode, 0), mode)
    return total


@triton.jit
def _store_destination(base, out, initial: tl.constexpr, offset, inside, total, mode: tl.constexpr):
    """Stores a destination of which all rows have been combined."""
    before = _before(base, initial, offset, inside, total.dtype)
    tl.store(out + offset, combined(before, total, mode).to(out.dtype.element_ty), inside)


@triton.jit
def _combine_chunk(
    counts,
    segments,
    ordered,
    queue,
    requested,
    done,
    parts,
    source,
    base,
    out,
    task,
    mode: tl.constexpr,
    initial: tl.constexpr,
    count,
    rows: tl.constexpr,
    width: tl.constexpr,
    stride: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    spread: tl.constexpr,
    slots,
    batch: tl.constexpr,
    block: tl.constexpr,
):
    """Combines a chunk of the rows of a long destination, and all its chunks if it is the last one to come."""
    blocks: tl.constexpr = (width + block - 1) // block
    compute: tl.constexpr = parts.dtype.element_ty
    column = task % blocks * block + tl.arange(0, block)
    inside = column < width
    destination = tl.load(queue + task // blocks)
    number = tl.load(queue + slots + task // blocks)
    size = tl.load(counts + counter_of(destination, rows))
    first = number * chunk
    row = _rows_of_chunk(segments, ordered, destination, first, (count + tile - 1) // tile, chunk, tile, spread)
    own = tl.minimum(size - first, chunk) + tl.arange(0, 1)
    coming = _rows_at(row[None, :], own, 0, source, column, mode, width, stride, batch)
    total = tl.reshape(_reduce_rows(coming, row[None, :], own, source, column, mode, width, stride, compute), [block])
    offset = destination.to(tl.int64) * width + column
    chunks = (size + chunk - 1) // chunk
    if chunks == 1:
        _store_destination(base, out, initial, offset, inside, total, mode)
    else:
        start = _first_part(queue, requested, destination)
        group = number // _GROUP * _GROUP
        members = tl.minimum(chunks - group, _GROUP)
        parted = parts + start.to(tl.int64) * width
        tl.store(parted + number.to(tl.int64) * width + column, total, inside)
        counter = done + task % blocks + start * blocks
        if _is_last(counter + group * blocks, members):
            grouped = parted + group.to(tl.int64) * width
            total = _reduce_parts(grouped, members, width, column, inside, mode)
            if chunks <= _GROUP:
                _store_destination(base, out, initial, offset, inside, total, mode)
            else:
                groups = (chunks + _GROUP - 1) // _GROUP
                tl.store(grouped + column, total, inside)
                if _is_last(counter + slots * blocks, groups):
                    total = _reduce_parts(parted, groups, _GROUP * width, column, inside, mode)
                    _store_destination(base, out, initial, offset, inside, total, mode)


@triton.jit
def reduce_segments(
    counts,
    lists,
    segments,
    ordered,
    queue,
    tasks,
    parts,
    source,
    base,
    out,
    mode: tl.constexpr,
    initial: tl.constexpr,
    count,
    rows: tl.constexpr,
    width: tl.constexpr,
    stride: tl.constexpr,
    capacity: tl.constexpr,
    chunk: tl.constexpr,
    tile: tl.constexpr,
    spread: tl.constexpr,
    slots,
    group: tl.constexpr,
    depth: tl.constexpr,
    batch: tl.constexpr,
    block: tl.constexpr,
    halves: tl.constexpr,
    touched,
    found,
):
    """Combines the rows of a few destinations with what these are before, and takes its part of long destinations.

    Args:
        counts: how many rows each destination has, as `row_bins.bin_rows` and `sort_rows` leave it, and the next four.
        lists: the rows of each destination.
        segments: the segments of each destination.
        ordered: the rows of each share, by destination, each as the destination times ``tile`` and its number in the
        share.
        queue: the chunks that are asked for.
        tasks: how many chunks are asked for; then counters, zero before: two for each of ``slots`` and each block.
        parts: ``slots`` rows of the type that is computed in: what chunks come to.
        source: the first element of the matrix of rows.
        base: the first element of what the destinations are before, None where it is one number.
        out: the first element of what they are after.
        mode: ``add``, ``max`` or ``min``.
        initial: what the destinations are before, where they are one number.
        count: number of rows.
        rows: number of destinations.
        width: elements of a row.
        stride: elements from a row to the next one in ``source``.
        capacity: rows of a list, a power of two.
        chunk: rows of a chunk.
        tile: rows of a share.
        spread: shares that are looked at together, a power of two.
        slots: chunks that may be asked for, at most.
        group: destinations of a program.
        depth: rows of each that are asked for at once, a power of two, at most half a list; twice as many are on their
            way where a destination has more.
        batch: rows of a chunk that are asked for at once, likewise.
        block: columns of a program.
        halves: whether there is code of its own for programs whose lists are all half empty.
        touched: the destinations that have rows, where the others are what they are after already; None for all.
        found: how many these are.
    """
    blocks: tl.constexpr = (width + block - 1) // block
    compute: tl.constexpr = parts.dtype.element_ty
    expected: tl.constexpr = capacity // 2 if halves else capacity
    program = tl.program_id(0)
    requested = tl.load(tasks)
    destination = program // blocks * group + tl.arange(0, group)
    column = program % blocks * block + tl.arange(0, block)
    if touched is None:
        known = destination < rows
    else:
        # Read before it is known how much of it counts; behind what is known there may be anything.
        listed = tl.load(touched + destination, (destination < rows) & (destination < count), other=0)
        known = destination < tl.load(found)
        destination = tl.where(known, listed, 0)
    # Read before it is known how much of it counts.
    lines = lists + destination.to(tl.int64)[:, None] * capacity
    row = tl.load(lines + tl.arange(0, expected)[None, :], known[:, None], other=0)
    size = tl.load(counts + counter_of(destination, rows), known, other=0)
    offset = destination.to(tl.int64)[:, None] * width + column[None, :]
    inside = known[:, None] & (column < width)[None, :]
    for task in tl.range(program, requested * blocks, tl.num_programs(0)):
        _combine_chunk(
            counts,
            segments,
            ordered,
            queue,
            requested,
            tasks + 1,
            parts,
            source,
            base,
            out,
            task,
            mode,
            initial,
            count,
            rows,
            width,
            stride,
            chunk,
            tile,
            spread,
            slots,
            batch,
            block,
        )
    is_short = size <= capacity
    size = tl.where(is_short, size, 0)
    if not halves or tl.max(size, 0) <= expected:
        total = _combine_lists(
            row, size, source, base, initial, offset, inside, column, mode, width, stride, depth, compute
        )
    else:
        full = tl.load(lines + tl.arange(0, capacity)[None, :], known[:, None], other=0)
        total = _combine_lists(
            full, size, source, base, initial, offset, inside, column, mode, width, stride, depth, compute
        )
    tl.store(out + offset, total.to(out.dtype.element_ty), inside & is_short[:, None])
