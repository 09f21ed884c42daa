"""What the scheduler refuses to plan."""

from __future__ import annotations


class SchedulingError(Exception):
    """The graph cannot be scheduled; the message says why and what to do."""


class UnsupportedSize(SchedulingError):
    """A size is symbolic; the message names the value and the size."""
