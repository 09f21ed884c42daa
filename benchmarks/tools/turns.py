"""Lets one process at a time have the device, while others trace and compile."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.tools.backends import UNCOMPILED


def meet(lock: Path | None, count: int, patience: float) -> None:
    """Waits until so many processes with this lock are here; for so many seconds, as one may have failed."""
    if lock is not None and count > 1:
        (lock.parent / f"{lock.name}-{os.getpid()}").touch()
        until = time.monotonic() + patience
        while len(list(lock.parent.glob(f"{lock.name}-*"))) < count and time.monotonic() < until:
            time.sleep(0.05)


class Turn:
    """This process's turn on the device: it comes when no other process has one, and lasts until it is given up.

    Attributes:
        is_mine: whether it has come.
        waited: seconds spent waiting for it.
    """

    def __init__(self, lock: Path | None) -> None:
        """`lock` is a file that all who take turns name; without it, it is always this process's turn."""
        self.waited = 0.0
        self._file = lock.open("w") if lock else None
        self.is_mine = lock is None

    def take(self, *_: Any) -> None:
        """Waits for the turn, unless it has come."""
        if self.is_mine or self._file is None:
            return
        started = time.perf_counter()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self.waited, self.is_mine = time.perf_counter() - started, True

    def end(self) -> None:
        """Gives the turn up; so does the end of the process."""
        if self._file is not None:
            self._file.close()

    def take_when_compiled(self, backend: str) -> None:
        """Takes the turn now where nothing compiles, else when the first graph has been compiled and is to run."""
        if self.is_mine:
            return
        if backend == UNCOMPILED:
            self.take()
            return
        import torch

        torch._dynamo.on_compile_end(self.take)
