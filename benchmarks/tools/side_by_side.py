"""Backends in processes of their own: their first calls run side by side, then their steps are timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

Step = Callable[[], Any]
Found = TypeVar("Found")

_steps: list[Step] = []
"""The step of this process's backend."""


class SideBySide(Generic[Found]):
    """A process for each backend. What they are given, and what they find, is pickled."""

    def __init__(self, names: Sequence[str]) -> None:
        self._pools = {name: ProcessPoolExecutor(1, get_context("spawn")) for name in names}

    def prepare(self, make: Callable[..., tuple[Found, Step]], *given: Any) -> list[Found]:
        """Returns what ``make(name, *given)`` finds for each backend; the step that it returns with it is kept there.

        Raises:
            SystemExit: what ``make`` raised.
        """
        waiting = [pool.submit(_prepare, make, name, *given) for name, pool in self._pools.items()]
        return [each.result() for each in waiting]

    def times(self, rounds: int, timer: Callable[..., float], *given: Any) -> dict[str, list[float]]:
        """Returns what ``timer(step, *given)`` says of each backend's step, in so many rounds, one after the other."""
        found: dict[str, list[float]] = {name: [] for name in self._pools}
        for _ in range(rounds):
            for name, pool in self._pools.items():
                found[name].append(pool.submit(_time, timer, *given).result())
        return found

    def end(self) -> None:
        """Lets the processes end."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


def _prepare(make: Callable[..., tuple[Found, Step]], *given: Any) -> Found:
    found, step = make(*given)
    _steps[:] = [step]
    return found


def _time(timer: Callable[..., float], *given: Any) -> float:
    return timer(*_steps, *given)
