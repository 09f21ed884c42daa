"""Partial moments: means and variances of groups of columns, from programs that hold some rows each; see `fmath`.

A program adds up what it holds of each column, then the columns of each group, and publishes a mean and a sum of
squared distances from it in one word. The sum, which is not negative, has a sign there: that of a launch is the other
one than the launch before it had in the same words, so that nobody has to make these zero, and who sees it sees both.
What all programs have published of a group is combined in one order always, by the formula of Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances" (1979). A group that ends in another block
has words for both: they lie as ``[group, block, part]``, and are all of one sign when a kernel starts.

Blocks are ``width`` columns wide; of ``columns`` columns each ``members`` are a group.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime.fmath.elementary import fast_reciprocal
from ferrite_runtime.fmath.flags import LOW, launch_epoch
from ferrite_runtime.fmath.grid_sync import pause
from ferrite_runtime.fmath.quotients import divide_by

_SIGN = tl.constexpr(-(1 << 63))
_OTHERS = tl.constexpr((1 << 63) - 1)


@triton.jit
def _added(a, b, c, d):
    return a + c, b + d


@triton.jit
def sums_apart(tile, origin, together: tl.constexpr):
    """Returns sums of distances from ``origin`` (``[1, columns]``), and of their squares, of rows of a tile.

    So many rows as lie in different threads stay apart, as each thread adds up its own: both are
    ``[together, columns]``.
    """
    rows: tl.constexpr = tile.shape[0]
    columns: tl.constexpr = tile.shape[1]
    apart = tl.reshape(tile - origin, [rows // together, together, columns])
    return tl.sum(apart, 0), tl.sum(apart * apart, 0)


@triton.jit
def moments_of_columns(sums, squares, origin, rows: tl.constexpr):
    """Returns means of ``rows`` rows and sums of squared distances from them, by sums of distances from ``origin``.

    The origin is one of the rows, so that the squares are at most ``rows + 1`` times the result: what is lost to the
    difference is ``rows + 1`` roundings of it at most, 1.5e-5 of it for 256 rows.
    """
    total, squared = tl.reduce((sums, squares), 0, _added)
    away = total * (1.0 / rows)
    mean = tl.reshape(origin, [origin.shape[1]]) + away
    return mean, tl.maximum(squared - total * away, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _groups_of_block(first, columns: tl.constexpr, members: tl.constexpr, width: tl.constexpr, slots: tl.constexpr):
    """Returns the groups of a block, in which of their blocks it is, and how many of their columns it has."""
    group = first // members + tl.arange(0, slots)
    begin = group * members
    end = tl.minimum(tl.minimum(begin + members, first + width), columns)
    return group, first // width - begin // width, tl.maximum(end - tl.maximum(begin, first), 0)


@triton.jit
def epoch_sign(
    words, first, part, members: tl.constexpr, width: tl.constexpr, spans: tl.constexpr, parts: tl.constexpr
):
    """Returns the sign of all words of this launch, by what the launch before has left in one of the program's own.

    Arguments are as in `publish_groups`.
    """
    group = first // members
    span = first // width - group * members // width
    return launch_epoch(words + (group * spans + span) * parts + part, _SIGN)


@triton.jit
def publish_groups(
    words, sign, mean, squares, first, part, rows: tl.constexpr, columns: tl.constexpr, members: tl.constexpr,
    width: tl.constexpr, slots: tl.constexpr, spans: tl.constexpr, parts: tl.constexpr
):  # fmt: skip
    """Publishes the moments of one part of the groups of a block, by those of its columns (``[width]``).

    Args:
        words: of one image.
        sign: of this launch.
        mean: of each column.
        squares: sums of squared distances from it.
        first: column of the block.
        part: number of the part.
        rows: of a part.
        columns: of all blocks.
        members: columns of a group.
        width: columns of a block.
        slots: groups that a block has columns of, at most, rounded up to a power of two.
        spans: blocks that a group lies in, at most.
        parts: number of parts.
    """
    group, span, count = _groups_of_block(first, columns, members, width, slots)
    column = first + tl.arange(0, width)
    is_in = (group[:, None] == (column // members)[None, :]) & (column < columns)[None, :]
    weight = tl.maximum(count, 1).to(tl.float32)
    whole = divide_by(tl.sum(tl.where(is_in, mean[None, :], 0.0), 1), weight, fast_reciprocal(weight))
    away = mean[None, :] - whole[:, None]
    spread = tl.sum(tl.where(is_in, squares[None, :] + away * away * rows, 0.0), 1)
    low = whole.to(tl.int32, bitcast=True).to(tl.int64) & LOW
    high = (spread.to(tl.int32, bitcast=True).to(tl.int64) << 32) & _OTHERS
    tl.atomic_xchg(words + (group * spans + span) * parts + part, low | high | sign, mask=count > 0, sem="relaxed")


@triton.jit
def _polled(address, wanted, sign):
    return tl.load(address, wanted, sign, volatile=True) ^ sign


@triton.jit
def whole_groups(
    words, sign, first, rows: tl.constexpr, columns: tl.constexpr, members: tl.constexpr, width: tl.constexpr,
    slots: tl.constexpr, spans: tl.constexpr, parts: tl.constexpr, lanes: tl.constexpr
):  # fmt: skip
    """Returns the means of the groups of a block (``[slots]``) and the sums of squared distances from them.

    They are those of all parts: the program waits until these are published. Arguments are as in `publish_groups`;
    ``lanes`` are at least ``spans * parts``, a power of two, and with all slots at least as many as a program has
    threads: of several that ask for one word, each at its own time, the maximum below would hear one.
    """
    group, _, count = _groups_of_block(first, columns, members, width, slots)
    lane = tl.arange(0, lanes)
    begin, block = group * members, group * members // width
    left = (block[:, None] + (lane // parts)[None, :]) * width
    end = tl.minimum((begin + members)[:, None], left + width)
    held = tl.maximum(end - tl.maximum(begin[:, None], left), 0)
    wanted = (held > 0) & (count > 0)[:, None] & (lane < spans * parts)[None, :]
    address = words + (group * (spans * parts))[:, None] + lane[None, :]
    found = _polled(address, wanted, sign)
    pause()
    while tl.min((found >> 32).to(tl.int32)) < 0:
        found = _polled(address, wanted, sign)
    means = found.to(tl.int32).to(tl.float32, bitcast=True)
    squares = (found >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    share = tl.where(wanted, held, 0).to(tl.float32)
    mean = divide_by(tl.sum(means * share, 1), members * parts * 1.0, 1.0 / (members * parts))
    away = means - mean[:, None]
    return mean, tl.sum(squares + away * away * (share * rows), 1)


@triton.jit
def of_columns(values, first, columns: tl.constexpr, members: tl.constexpr, width: tl.constexpr):
    """Returns for each column of a block (``[1, width]``) the value of its group; ``values`` are ``[slots]``."""
    column = tl.minimum(first + tl.arange(0, width), columns - 1)
    return tl.gather(values, (column // members - first // members).to(tl.int32), 0)[None, :]
