"""What keeps the entries of one folder or server, and the one form in which all of them keep an entry."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ferrite_runtime.formats.binary import CorruptEntry
from ferrite_runtime.formats.measurements import RECORDS
from ferrite_runtime.process.store_addresses import StoreAddress

# A use is noted at most this often, in seconds: what is used every day is never the least recently used.
USE_GRAIN = 12 * 3600
# So many uses are noted together; each is worth nothing, and noting it may have to wait for a lock.
USE_BATCH = 64
# What was measured is small and costs minutes of a GPU; it goes last when space runs out.
PRECIOUS = RECORDS

_DIGEST = hashlib.sha256().digest_size


class Busy(Exception):
    """An entry could not be written now; later it may be."""


class Unwritable(Exception):
    """Entries cannot be written; the message says why."""


@dataclass(frozen=True, slots=True)
class KindUsage:
    """How much of one kind is kept; ``oldest`` is when the least recently used entry was used, in Unix seconds."""

    kind: str
    entries: int
    size: int
    oldest: int


@dataclass(frozen=True, slots=True)
class Damage:
    """An entry, or a file, that is not what was written."""

    where: str
    reason: str


class Backend(Protocol):
    """The entries of one folder, or of a server; every method may be called by many threads and processes at once.

    ``save`` and ``remove`` raise `Busy` or `Unwritable`; reading never raises: what cannot be read is not there.
    """

    form: str
    is_read_only: bool
    is_remote: bool
    problem: str
    """Why it did not answer when it was last asked; empty if it did."""

    @property
    def location(self) -> Path | StoreAddress:
        """The folder, or where on the network it is."""

    def load(self, kind: str, key: str) -> bytes | None:
        """Returns the stored bytes, or None."""

    def save(self, kind: str, key: str, data: bytes) -> None:
        """Stores bytes."""

    def remove(self, kind: str, key: str) -> None:
        """Removes an entry, if there is one."""

    def keys(self, kind: str) -> list[str]:
        """Returns the keys of a kind, in order."""

    def scan(self, kind: str, prefix: str) -> dict[str, bytes]:
        """Returns the entries of a kind whose keys begin so: a few, read at once."""

    def usage(self) -> list[KindUsage]:
        """Returns how much is kept of each kind."""

    def file_size(self) -> int:
        """Returns the bytes that all this takes on disk."""

    def verify(self) -> list[Damage]:
        """Reads everything; returns what is not as it was written."""

    def collect(self, limit: int) -> int:
        """Removes the least recently used entries until no more than ``limit`` bytes are left; returns how many."""

    def flush(self) -> None:
        """Writes down what was not urgent."""

    def finish(self) -> None:
        """Writes down what was not urgent, and closes; a later use opens again."""


def seal_entry(kind: str, key: str, data: bytes) -> bytes:
    """Returns bytes behind a digest of them and of their name: an entry found under another name is corrupt too."""
    return _digest(kind, key, data) + data


def unseal_entry(kind: str, key: str, sealed: object) -> bytes:
    """Returns the bytes of a sealed entry; raises `CorruptEntry` unless the digest matches."""
    if not isinstance(sealed, bytes) or len(sealed) < _DIGEST:
        raise CorruptEntry("the entry is too short to hold a digest")
    data = sealed[_DIGEST:]
    if sealed[:_DIGEST] != _digest(kind, key, data):
        raise CorruptEntry("the digest of a stored entry does not match its name and content")
    return data


def _digest(kind: str, key: str, data: bytes) -> bytes:
    name = f"{kind}\n{key}\n".encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%d\n" % len(name) + name + data).digest()
