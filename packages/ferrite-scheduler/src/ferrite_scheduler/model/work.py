"""What a kernel has to move and to compute, and how long so many programs take for that."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ferrite_ir.language.ops import OPS
from ferrite_ir.language.scalar import Scalar, postorder

from .target import Target


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel has to do for all its points.

    Attributes:
        read: bytes.
        written: bytes.
        operations: instructions of single lanes.
        loops: loops over the same points that wait for a reduction and that its kernel does besides, a row at a time.
    """

    read: float
    written: float = 0.0
    operations: float = 0.0
    loops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.read + other.read,
            self.written + other.written,
            self.operations + other.operations,
            self.loops + other.loops,
        )

    def seconds(self, programs: int, target: Target) -> float:
        """Returns how long so many programs take that read a row of theirs after the other."""
        return target.seconds(self.read + self.written, programs, self.operations)

    def waiting(self, programs: int, target: Target, flight: int) -> float:
        """Returns how long each of so many programs waits for memory, while its multiprocessor has no other one.

        ``flight`` are the bytes that a program asks for at once.
        """
        if programs > target.processors:
            return 0.0
        return math.ceil(self.read / programs / flight) * target.latency_seconds


def cost_of(expressions: Iterable[Scalar]) -> int:
    """Returns how many instructions of a lane scalar expressions take at each point; what they share counts once."""
    return sum(OPS[each.op].cost for each in postorder(expressions) if each.op in OPS)
