"""Folders of stores: whose they are, and whether SQLite can lock files in them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# File systems of one machine, where locks and shared memory work as SQLite needs them.
_LOCAL = frozenset(
    (
        "apfs",
        "bcachefs",
        "btrfs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "hfs",
        "jfs",
        "overlay",
        "ramfs",
        "reiserfs",
        "tmpfs",
        "ufs",
        "xfs",
        "zfs",
    )
)
_MOUNTS = Path("/proc/self/mountinfo")


class Unusable(Exception):
    """A folder is not to be used; the message says why."""


def open_folder(root: Path) -> None:
    """Creates a folder, readable by its owner alone, where there is none.

    Raises:
        Unusable: it cannot be created, or belongs to another user than this one or root.
    """
    try:
        if not root.is_dir():
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = root.stat().st_uid
    except OSError as error:
        raise Unusable(f"cannot be used: {error}") from error
    if not is_trusted(owner):
        raise Unusable(f"belongs to user {owner}")


def open_shared_folder(root: Path) -> None:
    """Checks a folder that others filled.

    Raises:
        Unusable: there is none, it belongs to another user than this one or root, or anybody may write to it.
    """
    try:
        facts = root.stat()
    except OSError as error:
        raise Unusable(f"cannot be used: {error}") from error
    if not is_trusted(facts.st_uid):
        raise Unusable(f"belongs to user {facts.st_uid}")
    if facts.st_mode & 0o002:
        raise Unusable("can be written by anybody")


def is_trusted(owner: int) -> bool:
    """Tells whether files of a user may be read as one's own: the user's own, and root's."""
    return owner in (os.getuid(), 0)


def locks_files(folder: Path) -> bool:
    """Tells whether SQLite can share a file among processes in a folder: the file system is local, and locks."""
    kind = filesystem_of(folder, _MOUNTS)
    return (kind is None or kind in _LOCAL) and _can_lock(folder)


def filesystem_of(folder: Path, mounts: Path) -> str | None:
    """Returns the name of the file system that a folder lies in; None where the system does not tell."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
        parts = folder.resolve().parts
    except OSError:
        return None
    found: tuple[int, str | None] = (0, None)
    for line in lines:
        fields = line.split(" ")
        if "-" not in fields[6:] or len(fields) < 5:
            continue
        point = Path(fields[4].replace("\\040", " ")).parts
        # Of several mounts at one point the last one is seen.
        if parts[: len(point)] == point and len(point) >= found[0]:
            found = len(point), fields[fields.index("-", 6) + 1]
    return found[1]


def _can_lock(folder: Path) -> bool:
    """Tries a lock on a file of its own; a folder that cannot be written needs none."""
    if sys.platform == "win32" or not os.access(folder, os.W_OK):
        return True
    import fcntl
    import tempfile

    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed below
    except OSError:
        return True  # the disk is full, which says nothing about locks
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
