"""The store on disk: this user's folder over folders and servers of others, and memory where it will not do."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ferrite_runtime.errors import StoreWarning, warn
from ferrite_runtime.process.store_addresses import StoreAddress
from ferrite_runtime.store.backend import Backend, Busy, Unwritable
from ferrite_runtime.store.database import Database
from ferrite_runtime.store.folder import Unusable, locks_files, open_folder, open_shared_folder
from ferrite_runtime.store.packs import Packs
from ferrite_runtime.store.processes import watch

if TYPE_CHECKING:
    from ferrite_runtime.store.remote_layer import RemoteLayer

_LOG = logging.getLogger("ferrite_runtime")

# The folder that a store of another layout lies in; nothing reads it any more.
OLD_LAYOUT = "v1"


class LayeredStore:
    """A store in a folder, over layers of others; safe to use from any number of threads, processes and machines.

    Nothing that happens to the folder ends a run: what cannot be read is not there, and what cannot be written is kept
    in memory, after one warning (`CacheUnwritable`). What comes from a server is kept in the folder.

    Args:
        root: the folder, made when it is first needed.
        shared: folders of read-only layers, and addresses of servers, the first one looked into first.
        limit: bytes that may be kept; 0 for no limit.
        form: ``sqlite``, ``packs``, or ``auto`` for what the file system can do.
    """

    def __init__(
        self, root: Path, shared: tuple[Path | StoreAddress, ...] = (), limit: int = 0, form: str = "auto"
    ) -> None:
        self.root = root
        self._shared = shared
        self._limit = limit
        self._form = form
        # What this process could not write; it is tried again as long as that may help.
        self._memory: dict[tuple[str, str], bytes] = {}
        # Entries of read-only layers that this process found to be of no use.
        self._hidden: set[tuple[str, str]] = set()
        self._has_warned = False
        # What this process found or stored: all that another one needs to do the same.
        self.used: set[tuple[str, str]] = set()
        self._is_writing = any(isinstance(layer, StoreAddress) and layer.writes for layer in shared)
        watch(self)

    # --- entries ----------------------------------------------------------------------------------------------------

    def load(self, kind: str, key: str) -> bytes | None:
        """Returns the stored bytes, or None."""
        data = self._load_near(kind, key)
        if data is None and (kind, key) not in self._hidden:
            data = next((found for layer in self._far if (found := layer.load(kind, key)) is not None), None)
            if data is not None:
                self._keep(kind, key, data)
        if data is not None:
            self.used.add((kind, key))
        return data

    def _load_near(self, kind: str, key: str) -> bytes | None:
        """Returns the bytes that are stored on this machine, or None."""
        held = self._memory.get((kind, key))
        if held is not None:
            return held
        data = self.own.load(kind, key) if self.own is not None else None
        if data is not None or (kind, key) in self._hidden:
            return data
        near = (layer for layer in self.layers if not layer.is_remote)
        return next((found for layer in near if (found := layer.load(kind, key)) is not None), None)

    def save(self, kind: str, key: str, data: bytes) -> None:
        """Stores bytes; in memory, where the folder cannot be written."""
        self.used.add((kind, key))
        self._keep(kind, key, data)
        for layer in self._far if self._is_writing else ():
            if not layer.is_read_only:
                layer.save(kind, key, data)

    def _keep(self, kind: str, key: str, data: bytes) -> None:
        """Stores bytes on this machine."""
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
            keys = sorted(self._keys(kind))
            self.prefetch(kind, keys)
            for key in keys:
                data = self.load(kind, key)
                if data is not None:
                    yield key, data
            return
        found: dict[str, bytes] = {}
        for layer in reversed(self.layers):
            for key, data in layer.scan(kind, prefix).items():
                if (kind, key) not in self._hidden:
                    found[key] = data
                    if layer.is_remote and self._load_near(kind, key) is None:
                        self._keep(kind, key, data)
        if self.own is not None:
            found.update(self.own.scan(kind, prefix))
        held = {key: data for (k, key), data in list(self._memory.items()) if k == kind and key.startswith(prefix)}
        self.used.update((kind, key) for key in (*found, *held))
        yield from sorted({**found, **held}.items())

    def prefetch(self, kind: str, keys: Iterable[str] = (), prefixes: Iterable[str] = ()) -> None:
        """Takes from servers what will be asked for, by key or by what keys begin with, in few requests."""
        if not self._far:
            return
        missing = [key for key in keys if (kind, key) not in self._hidden and self._load_near(kind, key) is None]
        prefixes = list(prefixes)
        for layer in self._far:
            for key, data in layer.fetch(kind, missing, prefixes).items():
                if (kind, key) not in self._hidden and self._load_near(kind, key) is None:
                    self._keep(kind, key, data)
            missing = [key for key in missing if self._load_near(kind, key) is None]

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
        """The backends of the layers below that can be used."""
        found: list[Backend] = []
        for folder in self._shared:
            if isinstance(folder, StoreAddress):
                found += open_address(folder)
                continue
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

    @functools.cached_property
    def _far(self) -> tuple[RemoteLayer, ...]:
        """Those of the layers that are servers."""
        if not any(isinstance(layer, StoreAddress) for layer in self._shared):
            return ()
        from ferrite_runtime.store.remote_layer import RemoteLayer

        return tuple(layer for layer in self.layers if isinstance(layer, RemoteLayer))


def open_address(address: StoreAddress) -> list[RemoteLayer]:
    """Returns the layer at an address; none, after a warning, where nothing tells who answers there."""
    from ferrite_runtime.store.remote_layer import RemoteLayer

    if not address.is_encrypted and not address.trusts_network:
        text = (
            f"the kernel store at {address} is left out: without TLS anybody who gets at this address decides which "
            f"kernels run here. Use {address.scheme}s://, or add ?trust=network where everybody on the way is trusted"
        )
        warn(StoreWarning(text), 4)
        return []
    if address.scheme.startswith("redis"):
        from ferrite_runtime.store.redis_transport import connect_redis

        return [RemoteLayer(address, functools.partial(connect_redis, address), "redis")]
    from ferrite_runtime.store.http_transport import connect_http

    return [RemoteLayer(address, functools.partial(connect_http, address))]


def choose_backend(folder: Path, form: str = "auto", limit: int = 0) -> Backend:
    """Returns the backend for a folder: a database where files can be locked, packs elsewhere."""
    if form == "auto":
        form = "sqlite" if locks_files(folder) else "packs"
    return Database(folder, limit) if form == "sqlite" else Packs(folder, limit)


def warn_unwritable(root: Path, reason: str) -> None:
    """Warns (`CacheUnwritable`) that a folder is not used, or not in full."""
    text = f"the kernel store at {root} {reason}; continuing without. Set FERRITE_CACHE_DIR to a folder of your own"
    warn(StoreWarning(text), 4)
