"""Measuring kernels: the port that tuning uses, and its implementation with CUDA events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Clock(Protocol):
    """Tells time in seconds, from an arbitrary start."""

    def now(self) -> float:
        """Returns the time."""


class SystemClock:
    """The monotonic clock of this machine."""

    def now(self) -> float:
        """Returns the time in seconds."""
        return time.monotonic()


class Bench(Protocol):
    """Times launches that are given as functions."""

    def measure(self, runs: Sequence[Callable[[], None]]) -> list[float]:
        """Returns the time of each run in milliseconds; infinity for one that fails."""


# Time spent on one candidate, in milliseconds of the device, and how often the candidates take turns.
BUDGET_MS = 3.0
ROUNDS = 5
MAX_REPEATS = 100


class EventBench:
    """Times runs with CUDA events on the current stream; candidates take turns, so that drift hits all alike."""

    def measure(self, runs: Sequence[Callable[[], None]]) -> list[float]:
        """Returns the median time of each run in milliseconds; infinity for one that fails."""
        from ferrite_runtime.errors import FerriteRuntimeError

        results: list[list[float]] = [[] for _ in runs]
        repeats: list[int] = []
        for run in runs:
            try:
                run()
                estimate = max(self._time(run, 3), 1e-3)
            except FerriteRuntimeError:
                estimate = 0.0
            repeats.append(0 if estimate == 0.0 else max(1, min(MAX_REPEATS, int(BUDGET_MS / ROUNDS / estimate))))
        for _ in range(ROUNDS):
            for position, run in enumerate(runs):
                if repeats[position]:
                    results[position].append(self._time(run, repeats[position]))
        return [sorted(times)[len(times) // 2] if times else float("inf") for times in results]

    def _time(self, run: Callable[[], None], repeats: int) -> float:
        import torch

        event: Callable[..., Any] = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / repeats
