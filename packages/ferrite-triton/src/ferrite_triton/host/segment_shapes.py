"""How rows are listed and combined: what `segmented_reductions` chooses by how many there are.

Where their number is symbolic, each `RowsShape` serves all numbers up to its own, and `shapes_for` makes a few. Which
one a call takes is decided by its number of rows alone, so that results do not depend on sizes that were met before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, sqrt

from ferrite_ir.language.dtypes import I32, DType
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.sizes import Size, bounds, is_static, maximum, minimum
from ferrite_scheduler.model.segments import MOST_ROWS, MOST_SHARE
from ferrite_scheduler.model.target import SECTOR_BYTES
from ferrite_triton.host.templates import Scratch

LINE = 32
"""Counters of neighbours are so many counters apart; see `fmath`."""
NARROW = 31
"""Bits of a number in 32 bits that is never negative."""


@dataclass(frozen=True, slots=True)
class SegmentPolicy:
    """Thresholds of the kernels of segmented reductions (decisions 0009 and 0027), with unit and default.

    Defaults are set by the reasons given here; the decisions have what the kernels then take on an H200.

    Attributes:
        shares, many_shares: shares that rows are sorted in: about one for each processor, and more of them, but not too
            many, before they are long.
        least_share, long_share: rows of a share, which a program sorts at once: the longer, the more steps that takes.
            Chunks of a destination look at all shares.
        most_spread: shares that a chunk looks at together: it has a warp, whose code grows with them times the rows of
            the chunk.
        most_segments: segments that there is room for, if shares are not too large then.
        least_listed, most_listed: rows of a list, which a warp sorts in registers.
        least_depth: rows of a destination that are on their way at once, at least: where destinations have one row on
            average, some have two.
        least_chunk: rows of a chunk at least.
        most_chunks: chunks for which rows of one are not more: each looks at all shares.
        most_rows: rows for which there are kernels: chunks look at all shares of them.
        zeroed: numbers that one program makes zero. Set.
        sorted_warp, most_warps: rows of a share that a warp sorts, and warps of a program at most. Set.
        prefetched, copied: bytes that a program prefetches, or copies of destinations, beside those that list rows: 64
            for each thread of the latter. Set.
        wide: elements of two bytes that a warp reads at once: of rows with as many, each thread has eight of every one.
        least_class, class_step: rows that the first shape is for where their number is symbolic, and how many times as
            many each further one.
    """

    shares: int = 128
    many_shares: int = 1024
    least_share: int = 256
    long_share: int = 1024
    most_spread: int = 256
    most_segments: int = 1 << 23
    least_listed: int = 16
    most_listed: int = 256
    least_depth: int = 2
    least_chunk: int = 128
    most_chunks: int = 4096
    most_rows: int = MOST_ROWS
    zeroed: int = 1024
    sorted_warp: int = 128
    most_warps: int = 16
    prefetched: int = 1 << 16
    copied: int = 1 << 14
    wide: int = 256
    least_class: int = 1 << 12
    class_step: int = 4

    @property
    def few_rows(self) -> int:
        """Returns for how many rows shares are sorted while these are listed, however they meet: one per processor."""
        return self.shares * self.least_share


SEGMENTS = SegmentPolicy()
"""What shapes are made by."""


@dataclass(frozen=True, slots=True)
class RowsShape:
    """What is chosen for so many rows.

    Attributes:
        count: number of rows; where it is symbolic, the most that the shape is made for.
        rows: number of destinations.
        width: elements of a row.
        batch: rows that a program has on their way at once.
        block: columns of a program.
        programs: programs that the device runs at once; 1 where a program may have all destinations.
        combined: destinations that get rows, at most.
    """

    count: int
    rows: int
    width: int
    batch: int
    block: int
    programs: int = 1
    combined: int = 0

    @property
    def blocks(self) -> int:
        """Returns the number of blocks of columns."""
        return -(-self.width // self.block)

    @property
    def depth(self) -> int:
        """Returns how many rows of one destination are on their way at once: about as many as it has on average."""
        return min(self.batch, max(next_power_of_two(ceil(self.count / self.rows)), SEGMENTS.least_depth))

    @property
    def group(self) -> int:
        """Returns how many destinations a program combines side by side: fewer, where the device has room for more."""
        group, combined = self.batch // self.depth, self.combined or self.rows
        while group > 1 and -(-combined // group) * self.blocks < self.programs:
            group //= 2
        return group

    @property
    def capacity(self) -> int:
        """Returns the rows of a list: enough for all destinations if each is as likely as any other.

        How many rows a destination has is then close to a Poisson variable, which is hardly ever six deviations above
        its mean. Where that is more than a list may have, nearly all destinations are long and lists are short.
        """
        mean = self.count / self.rows
        wanted = next_power_of_two(ceil(mean + 6 * sqrt(mean) + 8))
        return max(wanted if wanted <= SEGMENTS.most_listed else 0, 2 * self.depth, SEGMENTS.least_listed)

    @property
    def halves(self) -> bool:
        """Returns whether nearly all lists are half empty: worth code of its own, which combines them faster."""
        mean = self.count / self.rows
        return mean + 2 * sqrt(mean) <= self.capacity // 2

    @property
    def chunk(self) -> int:
        """Returns the rows of a chunk."""
        return max(SEGMENTS.least_chunk, self.capacity, next_power_of_two(-(-self.count // SEGMENTS.most_chunks)))

    def slots(self, count: Size) -> Size:
        """Returns how many chunks there may be: one for each long destination, and one for each that is full."""
        return count // (self.capacity + 1) + count // self.chunk

    @property
    def share(self) -> int:
        """Returns the rows of a share: more of them where there are many destinations, whose segments take memory."""
        wanted = max(
            min(-(-self.count // SEGMENTS.shares), SEGMENTS.long_share),
            SEGMENTS.least_share,
            -(-self.count // SEGMENTS.many_shares),
        )
        return min(next_power_of_two(max(wanted, -(-self.rows * self.count // SEGMENTS.most_segments))), MOST_SHARE)

    def shares_of(self, count: Size) -> Size:
        """Returns the number of shares of so many rows."""
        return (count + (self.share - 1)) // self.share

    @property
    def shares(self) -> int:
        """Returns the number of shares of all rows."""
        return -(-self.count // self.share)

    @property
    def spread(self) -> int:
        """Returns how many shares a chunk looks at together, a power of two."""
        return min(max(next_power_of_two(self.shares), 2), SEGMENTS.most_spread)

    def is_like(self, other: RowsShape) -> bool:
        """Returns whether kernels of the two have the same numbers."""
        numbers = [(s.depth, s.group, s.capacity, s.halves, s.chunk, s.share, s.spread) for s in (self, other)]
        return numbers[0] == numbers[1]


def shapes_for(
    count: Size, rows: int, width: int, batch: int, block: int, programs: int = 1, *, copied: bool = False
) -> tuple[RowsShape, ...]:
    """Returns the shapes for a number of rows, each for more of them than the one before; one if it is static.

    All are right for any number; the last one is for all that are more. Where destinations are ``copied``, only those
    with rows are combined.
    """

    def shape_for(count: int) -> RowsShape:
        combined = min(count, rows) if copied else rows
        return RowsShape(count, rows, width, batch, block, programs, combined)

    if is_static(count):
        return (shape_for(count),)
    _, most = bounds(count)
    found: list[RowsShape] = []
    limit = SEGMENTS.least_class
    while limit <= SEGMENTS.most_rows:
        shape = shape_for(limit)
        if found and found[-1].is_like(shape):
            found.pop()
        found.append(shape)
        if most is not None and most <= limit:
            break
        limit *= SEGMENTS.class_step
    return tuple(found)


def most_rows(shape: RowsShape) -> int:
    """Returns how many rows there may be for all numbers of rows, shares and tasks to have 32 bits."""
    # There are fewer chunks than one for each eight rows, and two counters for each block of each.
    return min((1 << NARROW) - 1 - MOST_SHARE, (1 << NARROW + 2) // shape.blocks)


def scratch_of(count: Size, shapes: Sequence[RowsShape], compute: DType) -> Scratch:
    """Returns the tensors that only these kernels know, large enough for whichever shape a call takes."""
    first, last = shapes[0], shapes[-1]
    shares = most_shares(count, shapes)
    if is_static(count):
        listed, ordered = first.capacity, first.shares * first.share
        slots = first.slots(count)
        room: Size = max(slots, 1)
    else:
        slots = most_slots(count, shapes)
        room = slots + 1
        listed = _most_listed(count, shapes)
        ordered = count + (last.share - 1)
    return {
        "counts": (I32, counters(first.rows)),
        "lists": (I32, first.rows * listed),
        "segments": (I32, first.rows * shares),
        "ordered": (I32, ordered),
        **({} if sorts_all(count, shapes) else {"is_sorted": (I32, shares)}),
        "queue": (I32, 2 * room),
        "tasks": (I32, 1 + 2 * slots * first.blocks),
        "parts": (compute, room * first.width),
    }


def counters(rows: int) -> int:
    """Returns how many numbers the counters of so many destinations take: each has a sector of the cache to itself."""
    return -(-rows // LINE) * LINE * (SECTOR_BYTES // I32.bytes)


def sorts_all(count: Size, shapes: Sequence[RowsShape]) -> bool:
    """Returns whether all shares are sorted while rows are listed: they are few, or nearly all destinations are long.

    Not where the number of rows is symbolic: whether they are sorted then decides what is launched.
    """
    first = shapes[0]
    return is_static(count) and (count <= SEGMENTS.few_rows or count > first.rows * first.capacity)


def most_shares(count: Size, shapes: Sequence[RowsShape]) -> Size:
    """Returns how many shares there may be at most, whichever shape a call takes."""
    first, last = shapes[0], shapes[-1]
    if is_static(count):
        return first.shares
    # Up to the number that a shape is made for, there are as many shares as for that at most.
    bounded = max((shape.shares for shape in shapes if shape.share < last.share), default=0)
    shares = first.shares_of(count)
    return maximum(minimum(shares, bounded), last.shares_of(count)) if bounded else shares


def most_slots(count: Size, shapes: Sequence[RowsShape]) -> Size:
    """Returns how many chunks there may be at most, whichever shape a call takes; as many as there may be for one."""
    if len(shapes) == 1:
        return shapes[0].slots(count)
    longer, chunk = min(shape.capacity for shape in shapes) + 1, min(shape.chunk for shape in shapes)
    return count // (longer * chunk // (longer + chunk))  # at least the sum of the two quotients, with one division


def _most_listed(count: Size, shapes: Sequence[RowsShape]) -> Size:
    """Returns the rows of the longest list of all shapes up to the one that a call takes."""
    longest = shapes[0].capacity
    total: Size = longest
    for before, shape in pairwise(shapes):
        if shape.capacity > longest:
            total = total + (shape.capacity - longest) * minimum(1, count // (before.count + 1))
            longest = shape.capacity
    return total
