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
from ferrite_triton.host.templates import Scratch

SHARES, MANY_SHARES = 128, 1024
"""Shares of the rows: about one for each processor, and more of them, but not too many, before they are long."""
LEAST_SHARE, LONG_SHARE = 256, 1024
"""Rows of a share, which a program sorts at once: the longer, the more steps that takes. Chunks of a place look at all
shares."""
MOST_SPREAD = 256
"""Shares that a chunk looks at together: it has a warp, whose code grows with them times the rows of the chunk."""
FEW_ROWS = SHARES * LEAST_SHARE
"""Rows whose shares are all sorted while they are listed, however they meet: about one for each processor."""
LINE = 32
"""Counters of neighbours are so many counters apart; see `fmath`."""
SECTOR = 32
"""Bytes that are moved for a number that lies alone."""
MOST_RUNS = 1 << 23
"""Runs that there is room for, if shares are not too large then."""
LEAST_LISTED, MOST_LISTED = 16, 256
"""Rows of a list: a warp sorts them in registers."""
LEAST_DEPTH = 2
"""Rows of a place that are on their way at once, at least: where places have one row on average, some have two."""
LEAST_CHUNK, MOST_CHUNKS = 128, 4096
"""Rows of a chunk at least, and chunks for which these are not more: each looks at all of them."""
NARROW = 31
"""Bits of a number in 32 bits that is never negative."""
LEAST_CLASS, CLASS_STEP = 1 << 12, 4
"""Rows that the first shape is for where their number is symbolic, and how many times as many each further one."""


@dataclass(frozen=True, slots=True)
class RowsShape:
    """What is chosen for so many rows.

    Attributes:
        count: number of rows; where it is symbolic, the most that the shape is made for.
        rows: number of places.
        width: elements of a row.
        batch: rows that a program has on their way at once.
        block: columns of a program.
    """

    count: int
    rows: int
    width: int
    batch: int
    block: int

    @property
    def blocks(self) -> int:
        """Returns the number of blocks of columns."""
        return -(-self.width // self.block)

    @property
    def depth(self) -> int:
        """Returns how many rows of one place are on their way at once: about as many as it has on average."""
        return min(self.batch, max(next_power_of_two(ceil(self.count / self.rows)), LEAST_DEPTH))

    @property
    def group(self) -> int:
        """Returns how many places a program combines side by side."""
        return self.batch // self.depth

    @property
    def capacity(self) -> int:
        """Returns the rows of a list: enough for all places if each is as likely as any other.

        How many rows a place has is then close to a Poisson variable, which is hardly ever six deviations above its
        mean. Where that is more than a list may have, nearly all places are long and lists are short.
        """
        mean = self.count / self.rows
        wanted = next_power_of_two(ceil(mean + 6 * sqrt(mean) + 8))
        return max(wanted if wanted <= MOST_LISTED else 0, 2 * self.depth, LEAST_LISTED)

    @property
    def halves(self) -> bool:
        """Returns whether nearly all lists are half empty: worth code of its own, which combines them faster."""
        mean = self.count / self.rows
        return mean + 2 * sqrt(mean) <= self.capacity // 2

    @property
    def chunk(self) -> int:
        """Returns the rows of a chunk."""
        return max(LEAST_CHUNK, self.capacity, next_power_of_two(-(-self.count // MOST_CHUNKS)))

    def slots(self, count: Size) -> Size:
        """Returns how many chunks there may be: one for each long place, and one for each that is full."""
        return count // (self.capacity + 1) + count // self.chunk

    @property
    def share(self) -> int:
        """Returns the rows of a share: more of them where there are many places, whose runs take memory."""
        wanted = max(min(-(-self.count // SHARES), LONG_SHARE), LEAST_SHARE, -(-self.count // MANY_SHARES))
        return min(next_power_of_two(max(wanted, -(-self.rows * self.count // MOST_RUNS))), MOST_SHARE)

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
        return min(max(next_power_of_two(self.shares), 2), MOST_SPREAD)

    def is_like(self, other: RowsShape) -> bool:
        """Returns whether kernels of the two have the same numbers."""
        numbers = [(s.depth, s.capacity, s.halves, s.chunk, s.share, s.spread) for s in (self, other)]
        return numbers[0] == numbers[1]


def shapes_for(count: Size, rows: int, width: int, batch: int, block: int) -> tuple[RowsShape, ...]:
    """Returns the shapes for a number of rows, each for more of them than the one before; one if it is static.

    All are right for any number; the last one is for all that are more.
    """
    if is_static(count):
        return (RowsShape(count, rows, width, batch, block),)
    _, most = bounds(count)
    found: list[RowsShape] = []
    limit = LEAST_CLASS
    while limit <= MOST_ROWS:
        shape = RowsShape(limit, rows, width, batch, block)
        if found and found[-1].is_like(shape):
            found.pop()
        found.append(shape)
        if most is not None and most <= limit:
            break
        limit *= CLASS_STEP
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
        "runs": (I32, first.rows * shares),
        "ordered": (I32, ordered),
        **({} if sorts_all(count, shapes) else {"is_sorted": (I32, shares)}),
        "queue": (I32, 2 * room),
        "tasks": (I32, 1 + 2 * slots * first.blocks),
        "parts": (compute, room * first.width),
    }


def counters(rows: int) -> int:
    """Returns how many numbers the counters of so many places take: each has a sector of the cache to itself."""
    return -(-rows // LINE) * LINE * (SECTOR // I32.bytes)


def sorts_all(count: Size, shapes: Sequence[RowsShape]) -> bool:
    """Returns whether all shares are sorted while rows are listed: they are few, or nearly all places are long.

    Not where the number of rows is symbolic: whether they are sorted then decides what is launched.
    """
    first = shapes[0]
    return is_static(count) and (count <= FEW_ROWS or count > first.rows * first.capacity)


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
