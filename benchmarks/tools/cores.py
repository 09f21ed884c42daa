"""Shares the cores of this machine out among processes that run at once."""

from __future__ import annotations

import os
from collections.abc import Sequence


def share_of(cores: Sequence[int], number: int, parts: int) -> set[int]:
    """Returns the `number`-th of `parts` equal shares of some cores; they overlap where it does not divide."""
    each = -(-len(cores) // parts)
    first = number * len(cores) // parts
    return {cores[(first + place) % len(cores)] for place in range(each)}


def take_cores(number: int, parts: int) -> None:
    """Keeps this process to its share of the cores that it may use."""
    os.sched_setaffinity(0, share_of(sorted(os.sched_getaffinity(0)), number, parts))
