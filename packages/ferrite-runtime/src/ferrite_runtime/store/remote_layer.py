"""A layer on a network: asked for many entries at once, never waited for long, and believed in nothing.

What comes from a server is looked at as if anybody had sent it: only entries that were asked for, of kinds that
machines share, whose digests are right. A server that is down, slow, or sends something else is one warning, and is
left alone for a while; kernels are then compiled here. Decision 0054 says what trust such a layer takes all the same.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from ferrite_runtime.errors import StoreWarning, warn
from ferrite_runtime.formats.binary import CorruptEntry
from ferrite_runtime.process.forking import renewed_in_children
from ferrite_runtime.process.store_addresses import StoreAddress
from ferrite_runtime.store.backend import Damage, KindUsage, Unwritable, seal_entry, unseal_entry
from ferrite_runtime.store.interface import LOCAL_KINDS
from ferrite_runtime.store.processes import watch

_LOG = logging.getLogger("ferrite_runtime")

MOST_NAMES = 512
"""Names that one request asks for."""
LEAST_PREFIX = 16
"""Characters that a beginning of keys has at least, so that what it fits is an answer and not a store."""
MOST_BYTES = 32 << 20
"""Bytes after which a server ends its answer, and is asked for the rest."""
MOST_REPLY = 80 << 20
"""Bytes of an answer that are read; the largest entry is one in a reply of its own."""
# Seconds that a process waits for one server within a minute, all requests together.
_PATIENCE, _MINUTE = 10.0, 60.0
# Seconds for which a server that failed is left alone: at first, and at most, if it fails whenever it is asked.
_PAUSE, _LONG_PAUSE = 60.0, 600.0
# Seconds for which what a server does not have is not asked for again, and how many such names are remembered.
_ABSENCE, _MOST_ABSENT = 60.0, 100_000
# So many entries, or bytes, are sent together.
_BATCH, _BATCH_BYTES = 64, 4 << 20

_Result = TypeVar("_Result")
Names = tuple[Sequence[str], Sequence[str]]
"""Keys, and what keys begin with."""


class RemoteProblem(Exception):
    """A server did not do what it was asked for; the message says why, and holds nothing secret."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered: sealed entries by key, and how many of the names in the question it has dealt with."""

    sealed: Mapping[str, bytes]
    answered: int


class Transport(Protocol):
    """A connection to a server, used by one thread; every method may raise anything."""

    form: str

    def fetch(self, kind: str, keys: Sequence[str], prefixes: Sequence[str]) -> Reply:
        """Returns entries of a kind: those with these keys, then those whose keys begin with these prefixes."""

    def put(self, entries: Sequence[tuple[str, str, bytes]]) -> None:
        """Sends kind, key and sealed bytes of entries that the server is to keep, where it has none of that name."""

    def keys(self, kind: str) -> list[str]:
        """Returns the keys of a kind, in order."""

    def usage(self) -> list[KindUsage]:
        """Returns how much is kept of each kind."""

    def close(self) -> None:
        """Ends the connection; a later use makes another."""

    def interrupt(self) -> None:
        """Ends the connection under the thread that waits for it; called by another thread."""


class _Worker:
    """A thread with a connection: requests are waited for in other threads, which can stop waiting at any time."""

    def __init__(self, connect: Callable[[], Transport], name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[Transport], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._connect = connect
        self._transport: Transport | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Callable[[Transport], _Result]) -> Future[_Result]:
        """Returns the future of what a job returns."""
        future: Future[_Result] = Future()
        self._jobs.put((job, future))
        return future

    def abandon(self) -> None:
        """Has the thread end, whatever it is waiting for."""
        self._jobs.put(None)
        if self._transport is not None:
            self._transport.interrupt()

    def close(self) -> None:
        """Ends the connection of a thread that is gone, as a fork leaves one."""
        if self._transport is not None:
            self._transport.close()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if self._transport is None:
                    self._transport = self._connect()
                future.set_result(job(self._transport))
            except Exception as error:  # noqa: BLE001 - whatever a server can make a client raise
                future.set_exception(error)
            del job, future, item  # what they hold, the layer above all, may go while the next one is waited for
        self.close()


class RemoteLayer:
    """A backend on a server.

    Args:
        address: where it is.
        connect: returns a connection to it, which need not be made before it is used.
        form: of its protocol, for people.
        now: a clock, in seconds.
    """

    is_remote = True

    def __init__(
        self,
        address: StoreAddress,
        connect: Callable[[], Transport],
        form: str = "http",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.location = address
        self.form = form
        self.is_read_only = not address.writes
        self.problem = ""
        self._connect = connect
        self._now = now
        self._lock = renewed_in_children(threading.Lock())
        self._pid = os.getpid()
        self._worker: _Worker | None = None
        self._absent: dict[tuple[str, str, bool], float] = {}
        self._pending: dict[tuple[str, str], bytes] = {}
        self._closed_until = float("-inf")
        self._pause = _PAUSE
        self._waited, self._waited_at = 0.0, now()
        self._has_warned = False
        watch(self)

    def __del__(self) -> None:
        if self._worker is not None and self._pid == os.getpid():
            self._worker.abandon()

    # --- entries ----------------------------------------------------------------------------------------------------

    def load(self, kind: str, key: str) -> bytes | None:
        """Returns the stored bytes, or None."""
        return self.fetch(kind, [key]).get(key)

    def scan(self, kind: str, prefix: str) -> dict[str, bytes]:
        """Returns the entries of a kind whose keys begin so."""
        return self.fetch(kind, (), [prefix])

    def fetch(self, kind: str, keys: Iterable[str] = (), prefixes: Iterable[str] = ()) -> dict[str, bytes]:
        """Returns the entries with these keys, and those whose keys begin with these prefixes, in few requests.

        What is not there is not asked for again within a minute, nor is what has been asked for by its prefix. Prefixes
        shorter than those of real keys, which are digests, are not asked for.
        """
        if kind in LOCAL_KINDS:
            return {}
        names = [(key, False) for key in keys]
        names += [(prefix, True) for prefix in prefixes if len(prefix) >= LEAST_PREFIX]
        names = [each for each in dict.fromkeys(names) if self._absent.get((kind, *each), 0.0) <= self._now()]
        found: dict[str, bytes] = {}
        while names:
            batch = names[:MOST_NAMES]
            part = [name for name, is_any in batch if not is_any], [name for name, is_any in batch if is_any]
            reply = self._ask(partial(_fetch_checked, kind=kind, names=part), None)
            if reply is None:
                break
            entries, answered = reply
            found.update(entries)
            self._note_absent(kind, [each for each in batch[:answered] if each[1] or each[0] not in entries])
            names = names[answered:]
        return found

    def save(self, kind: str, key: str, data: bytes) -> None:
        """Has bytes sent, soon, to a server that they may be sent to."""
        if self.is_read_only:
            raise Unwritable("is read-only")
        if kind in LOCAL_KINDS:
            return
        self._begin()
        self._pending[kind, key] = data
        pending = list(self._pending.values())
        if len(pending) >= _BATCH or sum(map(len, pending)) >= _BATCH_BYTES:
            self.flush()

    def remove(self, kind: str, key: str) -> None:
        """Takes back what was to be sent; what a server has, it keeps."""
        self._pending.pop((kind, key), None)

    def keys(self, kind: str) -> list[str]:
        """Returns the keys of a kind, in order."""
        return [] if kind in LOCAL_KINDS else self._ask(lambda transport: transport.keys(kind), [])

    # --- upkeep -----------------------------------------------------------------------------------------------------

    def usage(self) -> list[KindUsage]:
        """Returns how much is kept of each kind."""
        return self._ask(lambda transport: transport.usage(), [])

    def file_size(self) -> int:
        """Returns the bytes of all entries."""
        return sum(usage.size for usage in self.usage())

    def verify(self) -> list[Damage]:
        """Reads everything; returns what is not as it was written, and what the server did not answer."""
        found: list[Damage] = []
        for usage in self.usage():
            for key in () if usage.kind in LOCAL_KINDS else self.keys(usage.kind):
                found += self._ask(partial(_find_damage, kind=usage.kind, key=key), [])
        return [*found, *([Damage(str(self.location), self.problem)] if self.problem else [])]

    def collect(self, limit: int) -> int:
        """Does nothing: what a server keeps is its owner's affair."""
        return 0

    def flush(self) -> None:
        """Sends what is to be sent."""
        self._forget_parent()
        pending, self._pending = self._pending, {}
        if pending:
            entries = [(kind, key, seal_entry(kind, key, data)) for (kind, key), data in pending.items()]
            self._ask(lambda transport: transport.put(entries), None)

    def finish(self) -> None:
        """Sends what is to be sent."""
        self.flush()

    def hold(self) -> None:
        """Does nothing: a child makes a connection of its own."""

    def release(self) -> None:
        """Does nothing."""

    # --- asking -----------------------------------------------------------------------------------------------------

    def _ask(self, job: Callable[[Transport], _Result], otherwise: _Result) -> _Result:
        """Returns what a request gives; ``otherwise`` where there is none, or the server is being left alone."""
        started = self._now()
        if started < self._closed_until:
            return otherwise
        try:
            result = self._wait(job)
        except Exception as error:  # noqa: BLE001 - see `_Worker`
            self._fail(_reason(error))
            return otherwise
        finally:
            self._note_wait(started)
        self.problem, self._pause = "", _PAUSE
        if self._waited > _PATIENCE:
            self._fail(f"has been waited for {_PATIENCE:g} s within a minute")
        return result

    def _begin(self) -> _Worker:
        """Returns the thread with the connection; a forked child has one of its own, and nothing to send."""
        with self._lock:
            self._forget_parent()
            if self._worker is None:
                self._worker = _Worker(self._connect, f"ferrite-store {self.location}")
            return self._worker

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            if self._worker is not None:
                self._worker.close()
            self._pid, self._worker, self._pending = os.getpid(), None, {}

    def _wait(self, job: Callable[[Transport], _Result]) -> _Result:
        worker = self._begin()
        try:
            return worker.submit(job).result(self.location.seconds)
        except TimeoutError:
            with self._lock:
                if self._worker is worker:
                    self._worker = None
            worker.abandon()
            raise RemoteProblem(f"did not answer within {self.location.seconds:g} s") from None

    def _note_wait(self, started: float) -> None:
        now = self._now()
        left = max(0.0, self._waited - (started - self._waited_at) * _PATIENCE / _MINUTE)
        self._waited, self._waited_at = left + now - started, now

    def _note_absent(self, kind: str, names: Iterable[tuple[str, bool]]) -> None:
        if len(self._absent) > _MOST_ABSENT:
            self._absent.clear()
        self._absent.update(((kind, *each), self._now() + _ABSENCE) for each in names)

    def _fail(self, reason: str) -> None:
        self.problem = reason
        self._closed_until, self._pause = self._now() + self._pause, min(2 * self._pause, _LONG_PAUSE)
        self._waited = 0.0
        text = f"the kernel store at {self.location} {reason}; continuing without, and asking again later"
        if self._has_warned:
            _LOG.info("%s", text)
            return
        self._has_warned = True
        warn(StoreWarning(text), 4)


def _reason(error: Exception) -> str:
    """Returns what went wrong in words that go behind the name of a server."""
    if isinstance(error, RemoteProblem):
        return str(error)
    if isinstance(error, CorruptEntry):
        return f"sent what nobody stored ({error})"
    return f"cannot be used: {type(error).__name__}: {error}"


def _fetch_checked(transport: Transport, kind: str, names: Names) -> tuple[dict[str, bytes], int] | None:
    """Returns the entries of a reply, and how many names it has dealt with; raises unless all of it can be so."""
    reply = transport.fetch(kind, *names)
    keys, prefixes = set(names[0]), tuple(names[1])
    count = len(names[0]) + len(names[1])
    if not 0 < reply.answered <= count:
        raise RemoteProblem(f"answered {reply.answered} of {count} questions")
    for key in reply.sealed:
        if key not in keys and not key.startswith(prefixes):
            raise RemoteProblem("sent entries that it was not asked for")
    return {key: unseal_entry(kind, key, sealed) for key, sealed in reply.sealed.items()}, reply.answered


def _find_damage(transport: Transport, kind: str, key: str) -> list[Damage]:
    """Returns what is wrong with one entry."""
    sealed = transport.fetch(kind, [key], ()).sealed.get(key)
    if sealed is None:
        return []  # it went since it was listed
    try:
        unseal_entry(kind, key, sealed)
    except CorruptEntry as error:
        return [Damage(f"{kind}/{key}", str(error))]
    return []
