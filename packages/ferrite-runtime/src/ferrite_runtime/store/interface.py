"""Where compiled kernels and tuning choices are kept between runs: data only, checked, shared by many processes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ferrite_runtime.formats.binary import CorruptEntry, seal, unseal

_LOG = logging.getLogger("ferrite_runtime")

PICKLES = "pickles"
"""The kind of the digests of files that may be unpickled, because this user wrote them; nobody else's are taken in."""

LOCAL_KINDS = frozenset({"native", PICKLES})
"""Kinds of entries that a processor runs, or that say what is run: they are made on the machine that runs them."""


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

    def prefetch(self, kind: str, keys: Iterable[str] = (), prefixes: Iterable[str] = ()) -> None:
        """Brings near what will be asked for, by key or by what keys begin with, where a part of the store is far.

        Elsewhere neither is looked at, so that they may be computed as they are asked for.
        """


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

    def prefetch(self, kind: str, keys: Iterable[str] = (), prefixes: Iterable[str] = ()) -> None:
        """Does nothing: all of it is here."""


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
    store.save(kind, key, seal_record(value))


def seal_record(value: object) -> bytes:
    """Returns the entry that a JSON value is stored as."""
    return seal(json.dumps(value, sort_keys=True).encode())


def unseal_record(data: bytes) -> Any:
    """Returns the JSON value in an entry.

    Raises:
        CorruptEntry: the digest does not match.
        ValueError, RecursionError: it is no JSON.
    """
    return json.loads(unseal(data))
