"""Forks: what threads of the parent were doing is finished, or forgotten, before a child goes on.

A child of ``os.fork`` has the thread that forked and no other, and a copy of the memory as it was. Two rules make it
sound:

* What would be left half done is *held*: the fork waits until no thread is in it (`hold_through_forks`). Files of the
  store are such, and Triton's language, which is patched while a kernel is interpreted.
* What only keeps threads apart is *renewed*: a lock that another thread held is free in the child
  (`renewed_in_children`). What that thread was making is made again there.

Work that the parent handed to other processes is asked for anew; `worker_pool` and `compiler` know their process's id.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar


class Held(Protocol):
    """What no thread may be in while the process forks."""

    def hold(self) -> None:
        """Waits until no other thread is in it, and keeps them out."""

    def release(self) -> None:
        """Lets threads in again."""


Lock = TypeVar("Lock")

_HOLDABLE: weakref.WeakSet[Held] = weakref.WeakSet()
_HELD: list[Held] = []
_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()
_RESETS: list[Callable[[], None]] = []


def hold_through_forks(thing: Held) -> None:
    """Has forks wait until no thread is in something, for as long as it lives."""
    _HOLDABLE.add(thing)


def renewed_in_children(lock: Lock) -> Lock:
    """Returns a lock of `threading`, which will be free in a forked child whoever held it."""
    _LOCKS.add(lock)
    return lock


def reset_in_children(function: Callable[[], None]) -> None:
    """Has a function called in each forked child, where there is one thread."""
    _RESETS.append(function)


def _before() -> None:
    for thing in list(_HOLDABLE):
        thing.hold()
        _HELD.append(thing)


def _release() -> None:
    while _HELD:
        _HELD.pop().release()


def _after_in_child() -> None:
    _release()
    for lock in list(_LOCKS):
        # What the forking thread itself holds, it will release. The two methods are what logging and threading use.
        if not getattr(lock, "_is_owned", bool)():
            lock._at_fork_reinit()  # noqa: SLF001
    for function in _RESETS:
        function()


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_after_in_child)
