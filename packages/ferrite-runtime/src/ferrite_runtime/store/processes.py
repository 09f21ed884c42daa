"""What open backends do when the process forks or ends."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol

from ferrite_runtime.process.forking import Held, hold_through_forks


class Open(Held, Protocol):
    """A backend as far as forks and exits go; to hold it lets go of files that must not exist in two processes."""

    def finish(self) -> None:
        """Writes down what was put off, and closes."""


_OPEN: weakref.WeakSet[Open] = weakref.WeakSet()


def watch(backend: Open) -> None:
    """Has a backend held around forks, and finished at exit."""
    _OPEN.add(backend)
    hold_through_forks(backend)


def _finish_all() -> None:
    for backend in list(_OPEN):
        backend.finish()


atexit.register(_finish_all)
