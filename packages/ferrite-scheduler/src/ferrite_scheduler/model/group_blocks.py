"""Groups of channels, and the blocks of channels that programs of a register-resident norm take."""

from __future__ import annotations

COLUMNS = 32
"""Channels that a program takes, as its kernel is written: 64 bytes of each position or more, and few enough that
there are many programs."""


def spans_of(members: int, channels: int) -> int:
    """Returns in how many blocks of channels a group of so many members lies at most."""
    firsts = range(0, channels, members)
    return max((first + members - 1) // COLUMNS - first // COLUMNS + 1 for first in firsts)


def slots_of(members: int, channels: int) -> int:
    """Returns how many groups a block of channels has at most, those that end in another one, too."""
    blocks = range(0, channels, COLUMNS)
    return max((min(first + COLUMNS, channels) - 1) // members - first // members + 1 for first in blocks)
