"""Where compiled kernels and tuning choices are kept between runs: data only, checked, shared by many processes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from ferrite_runtime.binary import CorruptEntry, seal, unseal
from ferrite_runtime.errors import CacheUnwritable

_LOG = logging.getLogger("ferrite_runtime")


class Store(Protocol):
    """A map from (kind, key) to bytes; nothing in it is needed, everything can be made again."""

    def load(self, kind: str, key: str) -> bytes | None:
        """Returns the stored bytes, or None."""

    def save(self, kind: str, key: str, data: bytes) -> None:
        """Stores bytes; failing to is not an error."""

    def remove(self, kind: str, key: str) -> None:
        """Removes an entry, if there is one."""

    def scan(self, kind: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yields key and bytes of the entries of a kind whose keys begin so."""


class MemoryStore:
    """A store that lives as long as the object."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], bytes] = {}

    def load(self, kind: str, key: str) -> bytes | None:
        """Returns the stored bytes, or None."""
        return self.entries.get((kind, key))

    def save(self, kind: str, key: str, data: bytes) -> None:
        """Stores bytes."""
        self.entries[kind, key] = data

    def remove(self, kind: str, key: str) -> None:
        """Removes an entry, if there is one."""
        self.entries.pop((kind, key), None)

    def scan(self, kind: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yields key and bytes of the entries of a kind whose keys begin so, in the order of their keys."""
        keys = sorted(key for entry, key in self.entries if entry == kind and key.startswith(prefix))
        yield from ((key, self.entries[kind, key]) for key in keys)


class DiskStore:
    """A store in a folder: one file per entry, written aside and renamed, so that readers never see half of one.

    Any number of processes may use one folder; where two write one entry, the last rename wins and both are right.
    A folder that cannot be written, or that belongs to somebody else, is not used.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._usable: bool | None = None

    def path(self, kind: str, key: str) -> Path:
        """Returns the file of an entry."""
        return self.root / kind / key[:2] / key

    def load(self, kind: str, key: str) -> bytes | None:
        """Returns the stored bytes, or None."""
        if not self._is_usable():
            return None
        try:
            return self.path(kind, key).read_bytes()
        except OSError:
            return None

    def save(self, kind: str, key: str, data: bytes) -> None:
        """Stores bytes; a folder that is full or read-only is logged once and then left alone."""
        if not self._is_usable():
            return
        path = self.path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, aside = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                Path(aside).replace(path)
            except BaseException:
                Path(aside).unlink(missing_ok=True)
                raise
        except OSError as error:
            warn_unwritable(self.root, f"cannot be written: {error}")
            self._usable = False

    def remove(self, kind: str, key: str) -> None:
        """Removes an entry, if there is one."""
        with contextlib.suppress(OSError):
            self.path(kind, key).unlink(missing_ok=True)

    def scan(self, kind: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yields key and bytes of the entries of a kind whose keys begin so, in the order of their keys."""
        if not self._is_usable():
            return
        for path in sorted(self.root.joinpath(kind).glob(f"{prefix[:2] or '*'}/{prefix}*")):
            with contextlib.suppress(OSError):
                yield path.name, path.read_bytes()

    def _is_usable(self) -> bool:
        if self._usable is None:
            self._usable = _open_folder(self.root)
        return self._usable


def warn_unwritable(root: Path, reason: str) -> None:
    """Warns (`CacheUnwritable`) that a folder is not used."""
    text = f"the kernel store at {root} {reason}; continuing without. Set FERRITE_CACHE_DIR to a folder of your own"
    warnings.warn(CacheUnwritable(text), stacklevel=3)


def _open_folder(root: Path) -> bool:
    """Creates the folder, readable by its owner alone; tells whether it is this user's."""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = root.stat().st_uid
    except OSError as error:
        warn_unwritable(root, f"cannot be used: {error}")
        return False
    if owner not in (os.getuid(), 0):
        warn_unwritable(root, f"belongs to user {owner}")
        return False
    return True


def load_sealed(store: Store, kind: str, key: str) -> bytes | None:
    """Returns the content of a sealed entry; a corrupt one is logged, removed, and counts as absent."""
    data = store.load(kind, key)
    if data is None:
        return None
    try:
        return unseal(data)
    except CorruptEntry as error:
        _LOG.warning("entry %s/%s of the kernel store is corrupt and was removed: %s", kind, key, error)
        store.remove(kind, key)
        return None


def save_sealed(store: Store, kind: str, key: str, content: bytes) -> None:
    """Stores content with its digest."""
    store.save(kind, key, seal(content))


def load_record(store: Store, kind: str, key: str) -> Any | None:
    """Returns the JSON value of a sealed entry, or None."""
    content = load_sealed(store, kind, key)
    return None if content is None else json.loads(content)


def save_record(store: Store, kind: str, key: str, value: object) -> None:
    """Stores a JSON value as a sealed entry."""
    store.save(kind, key, seal(json.dumps(value, sort_keys=True).encode()))
