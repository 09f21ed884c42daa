"""What was chosen between ways to compute a part of a graph, and what each would have cost: plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way costs.

    Attributes:
        seconds: of one run; infinity for a way that cannot be run.
        source: how that is known: ``measured``, ``recorded``, ``predicted``.
        problem: why it cannot be run; empty if it can.
    """

    seconds: float
    source: str = ""
    problem: str = ""

    def __str__(self) -> str:
        if not math.isfinite(self.seconds):
            return self.problem or "not known"
        return f"{self.seconds * 1e6:.1f} us {self.source}".rstrip()


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice between ways to compute some values.

    Attributes:
        values: names of what the part makes.
        ways: what there was to choose from, with its cost.
        chosen: name of the way that was taken.
        reason: why, where costs do not say.
    """

    values: tuple[str, ...]
    ways: tuple[tuple[str, Cost], ...]
    chosen: str
    reason: str = ""

    def __str__(self) -> str:
        ways = ", ".join(f"{name} {cost}" for name, cost in self.ways)
        return f"{', '.join(self.values)}: {self.chosen}{f', {self.reason}' if self.reason else ''} ({ways})"
