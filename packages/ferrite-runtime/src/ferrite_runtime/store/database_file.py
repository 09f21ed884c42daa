"""Files of the database, one in use at a time: found, made, opened, and what can be read of a damaged one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrite_runtime.formats.binary import CorruptEntry
from ferrite_runtime.store.backend import PRECIOUS, Unwritable, unseal_entry
from ferrite_runtime.store.ownership import is_own_file

if TYPE_CHECKING:
    import sqlite3

_LOG = logging.getLogger("ferrite_runtime")

_NAME = re.compile(r"store-2\.(\d{1,9})\.sqlite")
_SIDES = ("", "-wal", "-shm", "-journal")
# "Ferr", and the version of the table.
_APPLICATION, _VERSION = 0x46657272, 2
# Nobody sees the file before it is whole, and nothing is lost with it: there is nothing to wait for the disk for.
_CREATE = f"""
PRAGMA synchronous = OFF;
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
CREATE TABLE entries (
    kind TEXT NOT NULL, key TEXT NOT NULL, used INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (kind, key)
);
PRAGMA journal_mode = WAL;
"""
# Checkpoints are the database's own business: SQLite's never end the log where there is always a reader.
# A dying process cannot break a WAL; a power failure may take the last entries, which are made again.
_SETTINGS = """
PRAGMA synchronous = NORMAL;
PRAGMA trusted_schema = OFF;
PRAGMA cell_size_check = ON;
PRAGMA journal_size_limit = 16777216;
PRAGMA wal_autocheckpoint = 0;
"""
# Seconds that a write waits for other writers: thousands of writes of theirs.
PATIENCE = 5.0
_FORWARDS = "SELECT kind, key, used, data FROM entries NOT INDEXED ORDER BY rowid"
_BACKWARDS = f"{_FORWARDS} DESC"
LOAD = "SELECT data, used FROM entries WHERE kind = ? AND key = ?"


class Damaged(Exception):
    """The file is not one that SQLite, or this module, wrote."""


def connect(file: Path, *, can_write: bool) -> sqlite3.Connection:
    """Returns a connection to an existing file; raises `Damaged` if it is none of ours."""
    import sqlite3

    def connect(mode: str) -> sqlite3.Connection:
        address = f"{file.absolute().as_uri()}?{mode}"
        made = sqlite3.connect(address, timeout=PATIENCE, isolation_level=None, check_same_thread=False, uri=True)
        try:
            made.executescript(_SETTINGS)
            _check_file(made)
        except BaseException:
            made.close()
            raise
        return made

    if can_write:
        return connect("mode=rw")
    try:
        return connect("mode=ro")
    except sqlite3.OperationalError:
        # In a folder that cannot be written SQLite finds no place for the memory that its readers share.
        return connect("mode=ro&immutable=1")


def _check_file(db: sqlite3.Connection) -> None:
    marks = tuple(db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if marks != (_APPLICATION, _VERSION):
        raise Damaged(f"its marks are {marks}")
    db.execute(LOAD, ("", "")).fetchone()


def choose_file(
    folder: Path, above: int = 0, *, may_create: bool = True, trusts_groups: bool = False
) -> tuple[int, Path]:
    """Returns the newest file that this user may use, with its number, or makes one.

    Two processes that make one at once look for a number in the same files, so they find the same number. A file that
    somebody else wrote, or wrote something beside that SQLite would read with it, is passed over.
    """
    files = sorted(list_files(folder), reverse=True)
    for number, path in files:
        if number <= above or not os.access(path, os.R_OK):
            continue
        stranger = _find_stranger(path, trusts_groups=trusts_groups)
        if not stranger:
            return number, path
        _LOG.warning("the kernel store %s is not read: others wrote %s, or can", path, stranger)
    if not may_create:
        raise Unwritable("has no entries yet and cannot be written")
    number = max([above, *(number for number, _ in files)]) + 1
    return number, _create(folder / f"store-2.{number}.sqlite")


def _find_stranger(file: Path, *, trusts_groups: bool) -> str:
    """Returns the name of what others wrote, or can write, of a file and what SQLite keeps beside it; or nothing."""
    for path in list_sides(file):
        with contextlib.suppress(FileNotFoundError):
            # Whoever makes a file gives it a second name for a moment.
            links = 2 if path == file else 1
            if not is_own_file(path, trusts_groups=trusts_groups, links=links):
                return path.name
    return ""


def _create(file: Path) -> Path:
    """Makes an empty file, whole from the first moment that others see it; or finds that another did."""
    import sqlite3

    aside = file.with_name(f".new-{secrets.token_hex(8)}")
    try:
        os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        made = sqlite3.connect(aside, timeout=PATIENCE, isolation_level=None)
        try:
            made.executescript(_CREATE)
        finally:
            made.close()
        with contextlib.suppress(FileExistsError):
            os.link(aside, file)
        return file
    except OSError as error:
        raise Unwritable(f"cannot be written: {error}") from error
    finally:
        unlink_file(aside)


def list_files(folder: Path) -> list[tuple[int, Path]]:
    """Returns the files of a folder with their numbers."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return [(int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))]


def list_sides(file: Path) -> list[Path]:
    """Returns a file and those that SQLite may keep beside it: its log, the memory of its readers, its journal."""
    return [file.with_name(file.name + side) for side in _SIDES]


def unlink_file(file: Path) -> None:
    """Removes a file and what SQLite keeps beside it."""
    for path in list_sides(file):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def salvage(file: Path) -> Iterator[tuple[str, str, int, bytes]]:
    """Yields the measurements that can still be read out of a damaged file."""
    import sqlite3

    # Either way goes as far as the first damaged page.
    for query in (_FORWARDS, _BACKWARDS):
        with contextlib.suppress(sqlite3.Error, MemoryError, OverflowError, ValueError, TypeError, Damaged):
            db = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            try:
                rows: Iterator[Any] = db.execute(query)
                for kind, key, _, data in rows:
                    if kind == PRECIOUS and isinstance(key, str):
                        with contextlib.suppress(CorruptEntry):
                            unseal_entry(kind, key, data)
                            yield kind, key, int(time.time()), data
            finally:
                db.close()
