"""Statistics of timed samples: medians, and how sure they are."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some samples, in their unit, and the interval that holds the true one with 95 % confidence."""

    median: float
    low: float
    high: float
    count: int

    @property
    def width(self) -> float:
        """Width of the interval relative to the median."""
        return (self.high - self.low) / self.median if self.median > 0 else math.inf


def spread_of(samples: Sequence[float]) -> Spread:
    """Returns the spread of at least one sample.

    The interval is the one between two order statistics, which holds for any distribution (the sign test turned round;
    Conover, Practical Nonparametric Statistics, section 3.2). Below six samples it is all of them, and the confidence
    less than stated: 94 % of five, 50 % of two.

    Raises:
        ValueError: if there are no samples.
    """
    if not samples:
        raise ValueError("no samples have no median")
    ordered = sorted(samples)
    skipped = _skipped(len(ordered))
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Spread(median, ordered[skipped], ordered[-1 - skipped], len(ordered))


@functools.cache
def _skipped(count: int) -> int:
    """Returns how many samples at each end lie outside of the interval."""
    skipped, below, allowed = 0, 1, (1 - CONFIDENCE) / 2 * 2.0**count
    while below <= allowed:
        skipped += 1
        below += math.comb(count, skipped)
    return max(0, skipped - 1)
