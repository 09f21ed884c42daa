"""Measuring launches: the ports that tuning uses, and their implementation with CUDA events."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from ferrite_runtime.errors import LaunchFailed

_LOG = logging.getLogger("ferrite_runtime")

# A launch that takes longer than this counts as hung.
HANG_SECONDS = 20.0
# The host's part of a launch, some ten microseconds, is nothing beside this.
LONG_MS = 1.0
# A host that is late after so many readings of twice the cache, some milliseconds, is late for other reasons.
MOST_READINGS = 64
Run = Callable[[], None]


class Clock(Protocol):
    """Tells time in seconds, from an arbitrary start."""

    def now(self) -> float:
        """Returns the time."""


class SystemClock:
    """The monotonic clock of this machine."""

    def now(self) -> float:
        """Returns the time in seconds."""
        return time.monotonic()


class Meter(Protocol):
    """Times launches that are given as functions."""

    def sample(self, run: Run, count: int, before: Run | None = None) -> list[float]:
        """Returns the times of so many runs in milliseconds; ``before`` runs before each, and is not timed.

        Raises:
            LaunchFailed: if a run fails, or does not end.
        """


class EventMeter:
    """Times runs with CUDA events on the current stream, each with a level-2 cache that holds nothing of its data.

    A sample tells what the device takes only if the host has queued it before the device comes to it. One that came too
    late is taken again, after work for the device that takes twice as long, and so are those of this meter from then
    on.

    Args:
        cache_bytes: size of that cache; 0 leaves it as it is.
    """

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._readings = 1

    def sample(self, run: Run, count: int, before: Run | None = None) -> list[float]:
        """Returns the times of so many runs in milliseconds; raises `LaunchFailed`."""
        found: list[float] = []
        while len(found) < count:
            # Made anew each time, out of what torch's allocator keeps: a program that was tuned holds no memory for it.
            flush = make_reader(2 * self._cache_bytes, self._readings)
            samples = self._take(run, count - len(found), before, flush)
            if self._cache_bytes == 0 or self._readings >= MOST_READINGS:
                return [*found, *(ms for ms, _ in samples)]
            found += [ms for ms, is_late in samples if not is_late]
            if len(found) < count:
                self._readings *= 2
        return found

    def _take(self, run: Run, count: int, before: Run | None, flush: Run) -> list[tuple[float, bool]]:
        """Returns so many times, and of each whether the device may have waited for the host."""
        import torch

        event: Callable[..., Any] = torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
        was_idle = []
        try:
            for start, end in pairs:
                if before is not None:
                    before()
                # Last, so that this is what the cache holds; while it runs the host fills the queue.
                flush()
                start.record()
                run()
                end.record()
                was_idle.append(start.query())
            wait_for(pairs[-1][1].query)
        except RuntimeError as error:  # how torch reports a launch that failed before
            raise LaunchFailed(f"a launch failed while it was timed: {error}") from error
        times = [float(start.elapsed_time(end)) for start, end in pairs]
        return [(ms, idle and ms < LONG_MS) for ms, idle in zip(times, was_idle, strict=True)]


def make_reader(size: int, readings: int = 1) -> Run:
    """Returns a function that reads so many bytes of the current device; fewer, or none, where memory is short.

    Reading leaves a cache full of lines that can be dropped; written ones would first have to go to memory, in the time
    of what is measured next. Several readings of the same bytes take longer and leave the same.
    """
    import torch

    while size >= 1 << 20:
        try:
            scratch, sink = torch.empty(size // 4, device="cuda"), torch.empty((), device="cuda")
        except torch.OutOfMemoryError:
            size //= 2
        else:
            return lambda: read_all(scratch.expand(readings, -1), sink)
    _LOG.info("caches are not flushed between launches: times are those of a warm cache")
    return lambda: None


def read_all(source: Any, sink: Any) -> None:
    """Reads a whole tensor, of two dims, into one number."""
    import torch

    torch.sum(source, (0, 1), out=sink)


def wait_for(is_done: Callable[[], bool], seconds: float = HANG_SECONDS) -> None:
    """Returns once ``is_done`` says so.

    Raises:
        LaunchFailed: if it does not within ``seconds``.
    """
    deadline, pause = time.monotonic() + seconds, 0.0
    while not is_done():
        if time.monotonic() > deadline:
            raise LaunchFailed(f"a launch did not end within {seconds:.0f} s")
        time.sleep(pause)
        pause = min(1e-3, pause + 1e-5)
