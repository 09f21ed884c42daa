"""Python's cyclic garbage while a graph compiles: collected, but not after every few hundred objects."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ferrite_runtime.process.forking import renewed_in_children, reset_in_children
from ferrite_torch.thresholds import INTERPRETER


class _Compilations:
    """How many compilations go on, and what the threshold was before the first of them."""

    def __init__(self) -> None:
        self._lock = renewed_in_children(threading.Lock())
        self._count = 0
        self._usual = 0

    def begin(self) -> None:
        with self._lock:
            if self._count == 0:
                self._usual = gc.get_threshold()[0]
                if 0 < self._usual < INTERPRETER.young_objects:
                    gc.set_threshold(INTERPRETER.young_objects, *gc.get_threshold()[1:])
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and gc.get_threshold()[0] == INTERPRETER.young_objects:
                gc.set_threshold(self._usual, *gc.get_threshold()[1:])

    def forget(self) -> None:
        """Restores the threshold in a forked child, which lacks the threads that were inside."""
        self._count = min(self._count, 1)
        if self._count:
            self.end()


_compilations = _Compilations()
reset_in_children(_compilations.forget)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Has Python collect garbage less often until the end of the block, in all threads.

    Any number of threads may be inside; the last one to leave restores what the first one found. Where collection is
    disabled or rarer already nothing changes, and what others set meanwhile stays.
    """
    _compilations.begin()
    try:
        yield
    finally:
        _compilations.end()
