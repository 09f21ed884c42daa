"""Entries in one SQLite file: for local disks, where any number of processes read and write at once.

The file is in WAL mode: readers wait for nobody, writers for each other only, and a process that dies leaves the last
complete transaction. A damaged file is not repaired: the next one, numbered one higher, takes its place, with the
measurements that could still be read. Numbers are never used twice, so that nobody has one name for two files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ferrite_runtime.formats.binary import CorruptEntry
from ferrite_runtime.store.backend import (
    PRECIOUS,
    USE_BATCH,
    USE_GRAIN,
    Busy,
    Damage,
    KindUsage,
    Unwritable,
    seal_entry,
    unseal_entry,
)
from ferrite_runtime.store.database_file import (
    LOAD,
    PATIENCE,
    Damaged,
    choose_file,
    connect,
    list_files,
    list_sides,
    salvage,
    unlink_file,
)
from ferrite_runtime.store.folder import Unusable, renew_folder
from ferrite_runtime.store.processes import watch

if TYPE_CHECKING:
    import sqlite3

_LOG = logging.getLogger("ferrite_runtime")
_Result = TypeVar("_Result")

# Seconds that the file is left alone after such a wait was in vain.
_PAUSE = 30.0
# Bytes that the log beside the file may have before somebody waits for its readers; how long and how often, in seconds.
_LOG_BYTES = 8 << 20
_LOG_PATIENCE, _LOG_PAUSE = 2.0, 0.25
# SQLite's primary result codes.
_HELD = frozenset({5, 6})  # busy, locked
_TRANSIENT = _HELD | {7, 9, 15, 17}  # no memory, interrupted, lock protocol, schema changed
_REFUSED = frozenset({3, 8, 10, 13, 14, 23})  # permission, read-only, input/output, full, cannot open, authorization
_READ_ONLY = 8
_MOVED = 8 | (4 << 8)  # the file was removed or renamed under the connection


class _Moved(Exception):
    """The file was removed, or another put in its place."""


class Database:
    """A backend in one SQLite file of a folder.

    Args:
        folder: exists, and may be used.
        limit: bytes that the file may have; 0 for no limit.
        is_read_only: whether nothing is to be written, whatever the folder allows.
    """

    form = "sqlite"
    is_remote = False
    problem = ""

    def __init__(self, folder: Path, limit: int = 0, *, is_read_only: bool = False) -> None:
        self.folder = self.location = folder
        self.limit = limit
        self.is_read_only = is_read_only
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._file = (0, folder)
        self._identity: tuple[int, int] | None = None
        self._used: set[tuple[str, str]] = set()
        self._next_check = float("-inf")
        self._blocked_until = {False: float("-inf"), True: float("-inf")}  # reads, writes
        watch(self)

    def __del__(self) -> None:
        self.close()

    # --- entries ----------------------------------------------------------------------------------------------------

    def load(self, kind: str, key: str) -> bytes | None:
        """Returns the stored bytes, or None."""
        row = self._read(lambda db: db.execute(LOAD, (kind, key)).fetchone(), None)
        if row is None:
            return None
        return self._open_row(kind, key, *row)

    def _open_row(self, kind: str, key: str, sealed: object, used: object) -> bytes | None:
        """Returns what a row holds; a corrupt one is removed."""
        try:
            data = unseal_entry(kind, key, sealed)
        except CorruptEntry as error:
            self._drop(kind, key, error)
            return None
        if not isinstance(used, int) or time.time() - used > USE_GRAIN:
            self._note_use(kind, key)
        return data

    def save(self, kind: str, key: str, data: bytes) -> None:
        """Stores bytes; entries that were not used for long make room."""
        row = (kind, key, int(time.time()), seal_entry(kind, key, data))
        if self.limit and len(data) > self.limit // 2:
            _LOG.info("entry %s/%s of %d bytes is too large for the store", kind, key[:12], len(data))
            return

        def write(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR REPLACE INTO entries (kind, key, used, data) VALUES (?, ?, ?, ?)", row)
            if self.limit and _occupied(db) > self.limit:
                _evict(db, self.limit * 9 // 10)

        self._write(write)
        self._bound_log()

    def remove(self, kind: str, key: str) -> None:
        """Removes an entry, if there is one."""
        self._write(lambda db: db.execute("DELETE FROM entries WHERE kind = ? AND key = ?", (kind, key)))

    def keys(self, kind: str) -> list[str]:
        """Returns the keys of a kind, in order."""
        rows: list[Any] = self._read(lambda db: db.execute(_KEYS, (kind,)).fetchall(), [])
        return [key for (key,) in rows if isinstance(key, str)]

    def scan(self, kind: str, prefix: str) -> dict[str, bytes]:
        """Returns the entries of a kind whose keys begin so: a few, read at once."""
        bounds = (kind, prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))
        rows: list[Any] = self._read(lambda db: db.execute(_SCAN, bounds).fetchall(), [])
        found = {key: self._open_row(kind, key, data, used) for key, data, used in rows if isinstance(key, str)}
        return {key: data for key, data in found.items() if data is not None}

    # --- upkeep -----------------------------------------------------------------------------------------------------

    def usage(self) -> list[KindUsage]:
        """Returns how much is kept of each kind."""
        rows: list[Any] = self._read(lambda db: db.execute(_USAGE).fetchall(), [])
        return [KindUsage(str(kind), count, size, oldest) for kind, count, size, oldest in rows]

    def file_size(self) -> int:
        """Returns the bytes that all this takes on disk."""
        return sum(_size(path) for _, path in list_files(self.folder) for path in list_sides(path))

    def verify(self) -> list[Damage]:
        """Reads everything; returns what is not as it was written."""
        found: list[Damage] = []

        def check(db: sqlite3.Connection) -> None:
            for (line,) in db.execute("PRAGMA integrity_check(20)"):
                if line != "ok":
                    found.append(Damage(self._file[1].name, str(line)))
            for kind, key, data in db.execute("SELECT kind, key, data FROM entries"):
                try:
                    unseal_entry(kind, key, data)
                except (CorruptEntry, AttributeError, TypeError) as error:
                    found.append(Damage(f"{kind}/{key}", str(error)))

        try:
            with self._lock:
                check(self._open())
        except Exception as error:  # noqa: BLE001 - whatever SQLite says about a damaged file
            found.append(Damage(self._file[1].name, f"{type(error).__name__}: {error}"))
        return found

    def collect(self, limit: int) -> int:
        """Removes the least recently used entries until no more than ``limit`` bytes are left; returns how many."""
        removed = 0

        def shrink(db: sqlite3.Connection) -> None:
            nonlocal removed
            removed = _evict(db, limit)

        self._write(shrink)
        self._write(lambda db: db.executescript("PRAGMA incremental_vacuum"), is_transaction=False)
        self._write(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall(), is_transaction=False)
        self._remove_older()
        return removed

    def flush(self) -> None:
        """Notes which entries were used, if nobody else is writing."""
        used, self._used = self._used, set()
        if not used:
            return
        rows = [(int(time.time()), *name) for name in sorted(used)]

        def write(db: sqlite3.Connection) -> None:
            with _patience(db, 0.0):
                db.executemany("UPDATE entries SET used = ? WHERE kind = ? AND key = ?", rows)

        with contextlib.suppress(Busy, Unwritable):
            self._write(write, is_transaction=False)

    def close(self) -> None:
        """Closes the file; it is opened again when it is needed."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(Exception):
                    connection.close()

    def hold(self) -> None:
        """Closes the file and keeps every thread from opening it, until `release`."""
        self._lock.acquire()
        self.close()

    def release(self) -> None:
        """Lets threads open the file again."""
        self._lock.release()

    def finish(self) -> None:
        """Notes uses that were put off, and closes the file."""
        self.flush()
        self.close()

    def _bound_log(self) -> None:
        """Moves the log into the file if it has grown, waiting for its readers."""
        if time.monotonic() < self._next_check or _size(list_sides(self._file[1])[1]) <= _LOG_BYTES:
            return
        self._next_check = time.monotonic() + _LOG_PAUSE

        def truncate(db: sqlite3.Connection) -> None:
            with _patience(db, _LOG_PATIENCE):
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

        with contextlib.suppress(Busy, Unwritable):
            self._write(truncate, is_transaction=False)

    def _note_use(self, kind: str, key: str) -> None:
        self._used.add((kind, key))
        if len(self._used) >= USE_BATCH:
            self.flush()

    def _drop(self, kind: str, key: str, error: CorruptEntry) -> None:
        _LOG.warning("entry %s/%s of the kernel store is corrupt and was removed: %s", kind, key[:12], error)
        with contextlib.suppress(Busy, Unwritable):
            self.remove(kind, key)

    # --- the connection ---------------------------------------------------------------------------------------------

    def _read(self, work: Callable[[sqlite3.Connection], _Result], otherwise: _Result) -> _Result:
        """Returns what ``work`` reads; ``otherwise`` where that cannot be read."""
        try:
            return self._run(work)
        except (Busy, Unwritable) as error:
            _LOG.info("the kernel store is not read now: %s", error)
            return otherwise

    def _write(self, work: Callable[[sqlite3.Connection], object], *, is_transaction: bool = True) -> None:
        if self.is_read_only:
            raise Unwritable("is read-only")

        def write(db: sqlite3.Connection) -> None:
            if not is_transaction:
                work(db)
                return
            _begin(db)
            try:
                work(db)
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(Exception):
                    db.execute("ROLLBACK")
                raise

        self._run(write, is_write=True)

    def _run(self, work: Callable[[sqlite3.Connection], _Result], *, is_write: bool = False) -> _Result:
        """Returns what ``work`` returns; a damaged file is replaced first, and one that vanished made again."""
        started = time.monotonic()
        with self._lock:
            if started < self._blocked_until[is_write]:
                raise Busy("another process holds the file")
            for _ in range(3):
                try:
                    return self._guard(lambda: work(self._open()))
                except Busy:
                    # Whoever holds the file that long may be stopped: not every entry is to wait for it.
                    if time.monotonic() - started > PATIENCE / 2:
                        self._blocked_until[is_write] = time.monotonic() + _PAUSE
                    raise
                except _Moved:
                    self.close()
                except Damaged as damage:
                    reason = str(damage)
                    self._guard(lambda: self._replace(reason))  # noqa: B023 - called at once
            raise Unwritable("is damaged again and again")

    def _guard(self, work: Callable[[], _Result]) -> _Result:
        """Returns what ``work`` returns; SQLite's errors are sorted by what is to be done about them."""
        import sqlite3

        try:
            return work()
        except (sqlite3.ProgrammingError, sqlite3.InterfaceError, MemoryError) as error:
            raise Busy(str(error)) from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None) or 1
            if code == _MOVED:
                raise _Moved from error
            if code & 0xFF in _TRANSIENT:
                raise Busy(str(error)) from error
            # One damaged byte makes a file read-only that the system lets us write.
            is_refused = code & 0xFF in _REFUSED and not (code & 0xFF == _READ_ONLY and self._can_write())
            if is_refused:
                raise Unwritable(f"cannot be written: {error}") from error
            raise Damaged(str(error)) from error

    def _can_write(self) -> bool:
        number, file = self._file
        return not self.is_read_only and os.access(self.folder, os.W_OK) and (not number or os.access(file, os.W_OK))

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._identity != _identity_of(self._file[1]):
            # SQLite would go on writing to a file that nobody else can find any more.
            self.close()
        if self._connection is None:
            self._file = (0, self.folder)  # the folder alone says whether a file can be made
            if not self.is_read_only:
                self._renew()
            self._file = choose_file(self.folder, may_create=self._can_write(), trusts_groups=self.is_read_only)
            self._connect(can_write=self._can_write())
        assert self._connection is not None, "it was opened just now"
        return self._connection

    def _connect(self, *, can_write: bool) -> None:
        self._identity = _identity_of(self._file[1])
        self._connection = connect(self._file[1], can_write=can_write)

    def _renew(self) -> None:
        try:
            renew_folder(self.folder)
        except Unusable as error:
            raise Unwritable(str(error)) from error

    def _replace(self, reason: str) -> None:
        """Goes on with the next file in place of a damaged one."""
        self.close()
        number, bad = self._file
        if not number or self.is_read_only or not os.access(self.folder, os.W_OK):
            raise Unwritable(f"is damaged: {reason}")
        _LOG.warning("the kernel store %s is damaged (%s) and begins anew", bad, reason)
        self._file = choose_file(self.folder, above=number)
        self._connect(can_write=True)
        assert self._connection is not None, "it was opened just now"
        for row in salvage(bad):
            self._connection.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)", row)
        unlink_file(bad)

    def _remove_older(self) -> None:
        """Removes files that damaged ones were replaced by, and what was left aside by processes that died."""
        for number, path in list_files(self.folder):
            if number < self._file[0]:
                unlink_file(path)
        for path in self.folder.glob(".new-*"):
            if time.time() - path.stat().st_mtime > 3600:
                unlink_file(path)


_KEYS = "SELECT key FROM entries WHERE kind = ? ORDER BY key"
_SCAN = "SELECT key, data, used FROM entries WHERE kind = ? AND key >= ? AND key < ?"
_USAGE = "SELECT kind, count(*), sum(length(data)), min(used) FROM entries GROUP BY kind ORDER BY kind"


def _begin(db: sqlite3.Connection) -> None:
    """Begins to write, as soon as nobody else does.

    SQLite itself would sleep longer and longer, and lose against those who came later.
    """
    import sqlite3

    deadline = time.monotonic() + PATIENCE
    with _patience(db, 0.0):
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _HELD or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.0002, 0.004))


@contextlib.contextmanager
def _patience(db: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Has a connection wait for other writers no longer than so many seconds."""
    db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
    try:
        yield
    finally:
        db.execute(f"PRAGMA busy_timeout = {int(PATIENCE * 1000)}")


def _identity_of(file: Path) -> tuple[int, int] | None:
    """Returns what tells a file from another one that is put in its place; None if there is none."""
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _occupied(db: sqlite3.Connection) -> int:
    """Returns the bytes of the file that hold something; what is freed is used again."""
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _evict(db: sqlite3.Connection, limit: int) -> int:
    """Deletes the least recently used entries, measurements last; returns how many."""
    excess, removed = _occupied(db) - limit, 0
    rows = db.execute("SELECT rowid, length(data) FROM entries ORDER BY kind = ?, used, rowid", (PRECIOUS,)).fetchall()
    for row, size in rows:
        if excess <= 0:
            break
        db.execute("DELETE FROM entries WHERE rowid = ?", (row,))
        excess -= size
        removed += 1
    return removed
