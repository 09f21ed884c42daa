"""Entries in append-only files: for network file systems, where SQLite's locks are not to be trusted.

Every process appends to packs of its own, so nobody waits and nothing is locked. An entry is written by one `write`
behind a header with its length and a checksum; a reader skips what is torn. Of several entries with one name the latest
counts. A pack that nobody has appended to for an hour is at rest: only such packs are merged, by a rename, or removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import BinaryIO

from ferrite_runtime.formats.binary import CorruptEntry
from ferrite_runtime.store.backend import (
    PRECIOUS,
    USE_BATCH,
    USE_GRAIN,
    Damage,
    KindUsage,
    Unwritable,
    seal_entry,
    unseal_entry,
)
from ferrite_runtime.store.folder import Unusable, renew_folder
from ferrite_runtime.store.ownership import is_own_file
from ferrite_runtime.store.pack_frames import PUT, REMOVE, USE, Frame, pack_frame, read_frames
from ferrite_runtime.store.pack_index import SUFFIX, index_of, read_pack
from ferrite_runtime.store.processes import watch

_LOG = logging.getLogger("ferrite_runtime")

# A process begins a new pack after so many seconds, long before its old one could be taken to be at rest.
_ROTATION = 600.0
_REST = 3600.0
# More files than this are merged, those that are smaller than this.
_MANY, _SMALL = 64, 4 << 20
# Other processes' entries are looked for this often, in seconds, where one is missed.
_LOOK = 0.5


@dataclass(slots=True)
class _Location:
    """Where the latest entry of a name lies; ``size`` is that of the sealed data, -1 for a removed entry."""

    written: int
    pack: str
    start: int
    size: int
    used: int


@dataclass(slots=True)
class _Index:
    """What is known of the packs: the latest entry of every name, keys by kind in order, how far each pack was read."""

    locations: dict[tuple[str, str], _Location] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)
    unsorted: set[str] = field(default_factory=set)
    read: dict[str, int] = field(default_factory=dict)
    looked: float = float("-inf")

    def take(self, frame: Frame, pack: str) -> None:
        """Takes one frame in."""
        name, known = (frame.kind, frame.key), self.locations.get((frame.kind, frame.key))
        if frame.operation == USE:
            if known is not None:
                known.used = max(known.used, frame.written)
        elif known is None or frame.written >= known.written:
            size = frame.size if frame.operation == PUT else -1
            used = max(frame.written, known.used if known else 0)
            if known is None:
                self.keys.setdefault(frame.kind, []).append(frame.key)
                self.unsorted.add(frame.kind)
            self.locations[name] = _Location(frame.written, pack, frame.start, size, used)

    def forget(self, pack: str) -> None:
        """Forgets the entries of a pack that is gone."""
        self.read.pop(pack, None)
        for name in [name for name, location in self.locations.items() if location.pack == pack]:
            del self.locations[name]
        self.keys = {}
        for kind, key in sorted(self.locations):
            self.keys.setdefault(kind, []).append(key)
        self.unsorted.clear()

    def begin_with(self, kind: str, prefix: str) -> list[str]:
        """Returns the keys of a kind that begin so, in order; those of removed entries are no keys."""
        keys = self.keys.get(kind, [])
        if kind in self.unsorted:
            keys.sort()
            self.unsorted.remove(kind)
        first = bisect_left(keys, prefix)
        found = takewhile(lambda key: key.startswith(prefix), islice(keys, first, None))
        return [key for key in found if self.locations[kind, key].size >= 0]


class Packs:
    """A backend in packs of a folder.

    Args:
        folder: exists, and may be used.
        limit: bytes that the packs may have; 0 for no limit.
        is_read_only: whether nothing is to be written, whatever the folder allows.
        rest: seconds after which a pack that did not change is at rest.
    """

    form = "packs"
    is_remote = False
    problem = ""

    def __init__(self, folder: Path, limit: int = 0, *, is_read_only: bool = False, rest: float = _REST) -> None:
        self.folder = self.location = folder
        self.limit = limit
        self.is_read_only = is_read_only
        self.rest = rest
        self._lock = threading.RLock()
        self._index = _Index()
        self._own: tuple[Path, float, int] | None = None
        self._used: set[tuple[str, str]] = set()
        watch(self)

    # --- entries ----------------------------------------------------------------------------------------------------

    def load(self, kind: str, key: str) -> bytes | None:
        """Returns the stored bytes, or None."""
        with self._lock:
            location = self._find(kind, key)
        return None if location is None else self._read(kind, {key: location}).get(key)

    def _read(self, kind: str, locations: Mapping[str, _Location]) -> dict[str, bytes]:
        """Returns what is at some places, by key; each pack is opened once."""
        found: dict[str, bytes] = {}
        packs: dict[str, list[str]] = {}
        for key, location in locations.items():
            packs.setdefault(location.pack, []).append(key)
        for pack, keys in packs.items():
            try:
                with (self.folder / pack).open("rb") as file:
                    sealed = {key: _read_at(file, locations[key]) for key in keys}
            except OSError:
                with self._lock:
                    self._index.forget(pack)
                continue
            for key in keys:
                try:
                    found[key] = unseal_entry(kind, key, sealed[key])
                except CorruptEntry as error:
                    _LOG.warning(
                        "entry %s/%s of the kernel store is corrupt and was removed: %s", kind, key[:12], error
                    )
                    with contextlib.suppress(Unwritable):
                        self.remove(kind, key)
                    continue
                if time.time() - locations[key].used / 1e9 > USE_GRAIN:
                    self._note_use(kind, key)
        return found

    def save(self, kind: str, key: str, data: bytes) -> None:
        """Stores bytes."""
        if self.limit and len(data) > self.limit // 2:
            _LOG.info("entry %s/%s of %d bytes is too large for the store", kind, key[:12], len(data))
            return
        self._append([(PUT, kind, key, seal_entry(kind, key, data))])

    def remove(self, kind: str, key: str) -> None:
        """Removes an entry, if there is one."""
        with self._lock:
            if self._find(kind, key) is not None:
                self._append([(REMOVE, kind, key, b"")])

    def keys(self, kind: str) -> list[str]:
        """Returns the keys of a kind, in order."""
        return list(self._locations(kind, ""))

    def scan(self, kind: str, prefix: str) -> dict[str, bytes]:
        """Returns the entries of a kind whose keys begin so: a few, read at once."""
        return self._read(kind, self._locations(kind, prefix))

    def _locations(self, kind: str, prefix: str) -> dict[str, _Location]:
        with self._lock:
            self._look()
            return {key: self._index.locations[kind, key] for key in self._index.begin_with(kind, prefix)}

    def _find(self, kind: str, key: str) -> _Location | None:
        location = self._index.locations.get((kind, key))
        if location is None or location.size < 0:
            self._look()
            location = self._index.locations.get((kind, key))
        return None if location is None or location.size < 0 else location

    # --- reading packs ----------------------------------------------------------------------------------------------

    def _look(self, *, is_urgent: bool = False) -> None:
        """Reads what was appended since the last look."""
        if not is_urgent and time.monotonic() - self._index.looked < _LOOK:
            return
        self._index.looked = time.monotonic()
        found = self._packs()
        for gone in self._index.read.keys() - found.keys():
            self._index.forget(gone)
        for name, facts in sorted(found.items()):
            start = self._index.read.get(name, 0)
            if facts.st_size < start:  # another file by now
                self._index.forget(name)
                start = 0
            if facts.st_size > start:
                reading = read_pack(
                    self.folder / name, start, may_write=self._can_write(), trusts_groups=self.is_read_only
                )
                for frame in reading.frames:
                    self._index.take(frame, name)
                self._index.read[name] = reading.end

    def _can_write(self) -> bool:
        return not self.is_read_only and os.access(self.folder, os.W_OK)

    def _packs(self) -> dict[str, os.stat_result]:
        found = {}
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(".pack"):
                    with contextlib.suppress(OSError):
                        if is_own_file(Path(entry.path), trusts_groups=self.is_read_only):
                            found[entry.name] = entry.stat()
        return found

    # --- writing ----------------------------------------------------------------------------------------------------

    def _append(self, frames: Iterable[tuple[int, str, str, bytes]]) -> None:
        if self.is_read_only:
            raise Unwritable("is read-only")
        with self._lock:
            for operation, kind, key, data in frames:
                known = self._index.locations.get((kind, key))
                # A clock that is behind another machine's must not make an entry look older than what it replaces.
                written = max(time.time_ns(), 0 if known is None or operation == USE else known.written + 1)
                path, start = self._write(pack_frame(operation, kind, key, written, data))
                frame = Frame(operation, kind, key, written, start - len(data), len(data))
                self._index.take(frame, path.name)
                self._index.read[path.name] = start

    def _write(self, frame: bytes) -> tuple[Path, int]:
        """Appends a frame to this process's pack; returns the pack and where the frame ends.

        The pack is closed after every entry: that is when a network file system shows it to other machines.
        """
        try:
            renew_folder(self.folder)
        except Unusable as error:
            raise Unwritable(str(error)) from error
        path = self._own_pack()
        try:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                written = os.write(handle, frame)
                end = os.lseek(handle, 0, os.SEEK_CUR)
            finally:
                os.close(handle)
        except OSError as error:
            self._own = None
            raise Unwritable(f"cannot be written: {error}") from error
        if written != len(frame):
            self._own = None  # what is torn stays the last of its pack
            raise Unwritable("cannot be written: the disk is full")
        return path, end

    def _own_pack(self) -> Path:
        now = time.monotonic()
        if self._own is not None and self._own[2] == os.getpid() and now - self._own[1] < min(_ROTATION, self.rest / 4):
            return self._own[0]
        self._tidy()
        path = self.folder / f"{time.time_ns():016x}-{secrets.token_hex(6)}.pack"
        self._own = (path, now, os.getpid())
        return path

    def flush(self) -> None:
        """Notes which entries were used."""
        with self._lock:
            used, self._used = sorted(self._used), set()
            with contextlib.suppress(Unwritable):
                self._append((USE, kind, key, b"") for kind, key in used)

    def hold(self) -> None:
        """Keeps every thread out, until `release`."""
        self._lock.acquire()

    def release(self) -> None:
        """Lets threads in again."""
        self._lock.release()

    def finish(self) -> None:
        """Notes uses that were put off, and leaves an index of what this process wrote."""
        self.flush()
        with self._lock:
            if self._own is not None and self._own[2] == os.getpid():
                read_pack(self._own[0], 0, may_write=self._can_write())

    def _note_use(self, kind: str, key: str) -> None:
        self._used.add((kind, key))
        if len(self._used) >= USE_BATCH:
            self.flush()

    # --- upkeep -----------------------------------------------------------------------------------------------------

    def usage(self) -> list[KindUsage]:
        """Returns how much is kept of each kind."""
        with self._lock:
            self._look(is_urgent=True)
            kinds: dict[str, list[_Location]] = {}
            for (kind, _), location in self._index.locations.items():
                if location.size >= 0:
                    kinds.setdefault(kind, []).append(location)
        return [
            KindUsage(kind, len(all_), sum(p.size for p in all_), min(p.used for p in all_) // 10**9)
            for kind, all_ in sorted(kinds.items())
        ]

    def file_size(self) -> int:
        """Returns the bytes that all this takes on disk."""
        indexes = (index_of(self.folder / name) for name in self._packs())
        return sum(facts.st_size for facts in self._packs().values()) + sum(
            path.stat().st_size for path in indexes if path.exists()
        )

    def verify(self) -> list[Damage]:
        """Reads everything; returns what is not as it was written."""
        with self._lock:
            self._look(is_urgent=True)
            packs, locations = self._packs(), list(self._index.locations.items())
        found = [
            Damage(name, f"{damaged} bytes are no entry")
            for name in sorted(packs)
            if (damaged := read_frames(self.folder / name, 0).damaged)
        ]
        for (kind, key), location in locations:
            if location.size < 0:
                continue
            try:
                with (self.folder / location.pack).open("rb") as file:
                    unseal_entry(kind, key, _read_at(file, location))
            except (OSError, CorruptEntry) as error:
                found.append(Damage(f"{kind}/{key}", str(error)))
        return found

    def collect(self, limit: int) -> int:
        """Removes packs at rest, the least recently used first, until no more than ``limit`` bytes are left."""
        with self._lock:
            self._look(is_urgent=True)
            before = self._count()
            self._merge()
            self._shrink(limit)
            self._remove_leftovers()
            return before - self._count()

    def _remove_leftovers(self) -> None:
        """Removes indexes whose pack is gone, and what was left aside by processes that died."""
        for path in [*self.folder.glob(f"*{SUFFIX}"), *self.folder.glob(".new-*")]:
            with contextlib.suppress(OSError):
                is_lost = path.suffix == SUFFIX and not path.with_suffix("").exists()
                if is_lost or (path.suffix != SUFFIX and time.time() - path.stat().st_mtime > _REST):
                    path.unlink()

    def _count(self) -> int:
        return sum(location.size >= 0 for location in self._index.locations.values())

    def _tidy(self) -> None:
        """Keeps the number and the size of the packs in bounds; called once for each new pack of this process."""
        packs = self._packs()
        if len(packs) > _MANY:
            self._look(is_urgent=True)
            self._merge()
        if self.limit and sum(facts.st_size for facts in packs.values()) > self.limit:
            self._look(is_urgent=True)
            self._shrink(self.limit * 9 // 10)

    def _resting(self) -> dict[str, os.stat_result]:
        """Returns the packs that nobody appends to, by the file system's own clock."""
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".new-") as probe:
                now = Path(probe.name).stat().st_mtime
        except OSError as error:
            raise Unwritable(f"cannot be written: {error}") from error
        own = self._own[0].name if self._own else ""
        return {name: f for name, f in self._packs().items() if now - f.st_mtime >= self.rest and name != own}

    def _merge(self) -> None:
        """Writes the small packs at rest into one, without what nobody can find in them any more.

        Where two processes do so at once, both write the same entries, and either's pack will do.
        """
        small = {name for name, facts in self._resting().items() if facts.st_size < _SMALL}
        if len(small) < 2:
            return
        aside = self.folder / f".new-{secrets.token_hex(8)}"
        try:
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                for (kind, key), location in sorted(self._index.locations.items()):
                    if location.pack in small:
                        for frame in self._copy(kind, key, location):
                            file.write(frame)
                file.flush()
                os.fsync(file.fileno())
            aside.rename(self.folder / f"{time.time_ns():016x}-{secrets.token_hex(6)}.pack")
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise Unwritable(f"cannot be written: {error}") from error
        self._unlink(small)
        self._look(is_urgent=True)

    def _copy(self, kind: str, key: str, location: _Location) -> Iterator[bytes]:
        """Yields frames like that of an entry, and of its last use; a removal is copied too, for what it removes."""
        sealed = b""
        if location.size >= 0:
            with (self.folder / location.pack).open("rb") as file:
                sealed = _read_at(file, location)
            try:
                unseal_entry(kind, key, sealed)
            except CorruptEntry:
                return
        yield pack_frame(PUT if location.size >= 0 else REMOVE, kind, key, location.written, sealed)
        if location.used > location.written:
            yield pack_frame(USE, kind, key, location.used, b"")

    def _shrink(self, limit: int) -> None:
        resting, packs = self._resting(), self._packs()
        excess = sum(facts.st_size for facts in packs.values()) - limit
        last_use = dict.fromkeys(resting, 0)
        for location in self._index.locations.values():
            if location.pack in last_use:
                last_use[location.pack] = max(last_use[location.pack], location.used)
        for name in sorted(resting, key=lambda name: (last_use[name], name)):
            if excess <= 0:
                return
            self._carry_over(name)
            self._unlink([name])
            excess -= resting[name].st_size

    def _carry_over(self, pack: str) -> None:
        """Writes the measurements of a pack again, before it goes."""
        for (kind, key), location in sorted(self._index.locations.items()):
            if kind == PRECIOUS and location.pack == pack and location.size >= 0:
                data = self.load(kind, key)
                if data is not None:
                    self.save(kind, key, data)

    def _unlink(self, packs: Iterable[str]) -> None:
        for name in packs:
            for path in (self.folder / name, index_of(self.folder / name)):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            self._index.forget(name)


def _read_at(file: BinaryIO, location: _Location) -> bytes:
    file.seek(location.start)
    return file.read(location.size)
