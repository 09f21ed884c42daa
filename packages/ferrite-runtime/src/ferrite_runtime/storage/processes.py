"""What open backends do when the process forks or ends."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Open(Protocol):
    """A backend as far as forks and exits go."""

    def hold(self) -> None:
        """Lets go of files that must not exist in two processes, and keeps every thread out."""

    def release(self) -> None:
        """Lets threads in again."""

    def finish(self) -> None:
        """Writes down what was put off, and closes."""


_OPEN: weakref.WeakSet[Open] = weakref.WeakSet()
_HELD: list[Open] = []


def watch(backend: Open) -> None:
    """Has a backend held around forks, and finished at exit."""
    _OPEN.add(backend)


def _hold_all() -> None:
    for backend in list(_OPEN):
        backend.hold()
        _HELD.append(backend)


def _release_all() -> None:
    while _HELD:
        _HELD.pop().release()


def _finish_all() -> None:
    for backend in list(_OPEN):
        backend.finish()


os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
atexit.register(_finish_all)
