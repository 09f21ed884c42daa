"""The store on disk: this user's folder over folders that others filled, and memory where neither will do."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from pathlib import Path

from ferrite_runtime.errors import StoreWarning, warn
from ferrite_runtime.store.backend import Backend, Busy, Unwritable
from ferrite_runtime.store.database import Database
from ferrite_runtime.store.folder import Unusable, locks_files, open_folder, open_shared_folder
from ferrite_runtime.store.packs import Packs
from ferrite_runtime.store.processes import watch

_LOG = logging.getLogger("ferrite_runtime")

# The folder that a store of another layout lies in; nothing reads it any more.
OLD_LAYOUT = "v1"


class LayeredStore:
    """A store in a folder, over read-only layers; safe to use from any number of threads, processes and machines.

    Nothing that happens to the folder ends a run: what cannot be read is not there, and what cannot be written is kept
    in memory, after one warning (`CacheUnwritable`).

    Args:
        root: the folder, made when it is first needed.
        shared: folders of read-only layers, the first one looked into first.
        limit: bytes that may be kept; 0 for no limit.
        form: ``sqlite``, ``packs``, or ``auto`` for what the file system can do.
    """

    def __init__(self, root: Path, shared: tuple[Path, ...] = (), limit: int = 0, form: str = "auto") -> None:
        self.root = root
        self._shared = shared
        self._limit = limit
        self._form = form
        # What this process could not write; it is tried again as long as that may help.
        self._memory: dict[tuple[str, str], bytes] = {}
        # Entries of read-only layers that this process found to be of no use.
        self._hidden: set[tuple[str, str]] = set()
        self._has_warned = False
        watch(self)

    # --- entries ----------------------------------------------------------------------------------------------------

    def load(self, kind: str, key: str) -> bytes | None:
        """Returns the stored bytes, or None."""
        held = self._memory.get((kind, key))
        if held is not None:
            return held
        data = self.own.load(kind, key) if self.own is not None else None
        if data is not None or (kind, key) in self._hidden:
            return data
        return next((found for layer in self.layers if (found := layer.load(kind, key)) is not None), None)

    def save(self, kind: str, key: str, data: bytes) -> None:
        """Stores bytes; in memory, where the folder cannot be written."""
        self._memory[kind, key] = data
        if self.own is None:
            return
        try:
            self._write_back(self.own)
        except Busy as error:
            _LOG.info("an entry of the kernel store waits in memory: %s", error)
        except Unwritable as error:
            self._warn(str(error))

    def remove(self, kind: str, key: str) -> None:
        """Removes an entry, if there is one; from the read-only layers for this process alone."""
        self._memory.pop((kind, key), None)
        self._hidden.add((kind, key))
        if self.own is not None:
            with contextlib.suppress(Busy, Unwritable):
                self.own.remove(kind, key)

    def scan(self, kind: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yields key and bytes of the entries of a kind whose keys begin so, in the order of their keys."""
        if not prefix:
            for key in sorted(self._keys(kind)):
                data = self.load(kind, key)
                if data is not None:
                    yield key, data
            return
        found: dict[str, bytes] = {}
        for layer in reversed(self.layers):
            found.update(
                (key, data) for key, data in layer.scan(kind, prefix).items() if (kind, key) not in self._hidden
            )
        if self.own is not None:
            found.update(self.own.scan(kind, prefix))
        held = {key: data for (k, key), data in list(self._memory.items()) if k == kind and key.startswith(prefix)}
        yield from sorted({**found, **held}.items())

    def _keys(self, kind: str) -> set[str]:
        backends = self.layers if self.own is None else (self.own, *self.layers)
        return {key for k, key in list(self._memory) if k == kind}.union(*(each.keys(kind) for each in backends))

    def finish(self) -> None:
        """Writes what is held in memory, if that can be done now."""
        if self._memory and self.own is not None:
            with contextlib.suppress(Busy, Unwritable):
                self._write_back(self.own)

    def hold(self) -> None:
        """Does nothing: the backends below are what must not be in two processes."""

    def release(self) -> None:
        """Does nothing."""

    def _write_back(self, own: Backend) -> None:
        """Writes what is held in memory."""
        for (kind, key), data in list(self._memory.items()):
            own.save(kind, key, data)
            if self._memory.get((kind, key)) is data:  # another thread may have something newer by now
                self._memory.pop((kind, key), None)

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_unwritable(self.root, reason)

    # --- layers -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def own(self) -> Backend | None:
        """The backend in this user's folder; None, after a warning, if it is not to be used."""
        try:
            mended = open_folder(self.root)
        except Unusable as error:
            self._warn(str(error))
            return None
        if mended:
            warn(StoreWarning(f"the kernel store at {self.root} {mended}"), 3)
        return choose_backend(self.root, self._form, self._limit)

    @functools.cached_property
    def layers(self) -> tuple[Backend, ...]:
        """The backends of the read-only layers that can be used."""
        found: list[Backend] = []
        for folder in self._shared:
            try:
                names = open_shared_folder(folder)
            except Unusable as error:
                warn_unwritable(folder, f"{error}; as a read-only layer it is left out")
                continue
            if any(name.endswith(".pack") for name in names):
                found.append(Packs(folder, is_read_only=True))
            if any(name.endswith(".sqlite") for name in names):
                found.append(Database(folder, is_read_only=True))
        return tuple(found)


def choose_backend(folder: Path, form: str = "auto", limit: int = 0) -> Backend:
    """Returns the backend for a folder: a database where files can be locked, packs elsewhere."""
    if form == "auto":
        form = "sqlite" if locks_files(folder) else "packs"
    return Database(folder, limit) if form == "sqlite" else Packs(folder, limit)


def warn_unwritable(root: Path, reason: str) -> None:
    """Warns (`CacheUnwritable`) that a folder is not used, or not in full."""
    text = f"the kernel store at {root} {reason}; continuing without. Set FERRITE_CACHE_DIR to a folder of your own"
    warn(StoreWarning(text), 4)
