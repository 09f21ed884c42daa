"""Folders of stores: whose they are, and whether SQLite can lock files in them."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

from ferrite_runtime.store.ownership import can_others_write, find_open_parent, is_trusted, take_back

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


def open_folder(root: Path) -> str:
    """Creates a folder, readable by its owner alone, where there is none, and sees to it that nobody else can write it.

    Returns:
        What had to be done about it, for a warning; nothing as a rule.

    Raises:
        Unusable: it cannot be created, belongs to another user than this one or root, or others can write to it or to a
            folder above it.
    """
    try:
        _make_folders(root)
        reason = find_open_parent(root)
        if reason:
            raise Unusable(reason)
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return _close_to_others(root, handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise Unusable(f"cannot be used: {error}") from error


def _make_folders(root: Path) -> None:
    missing, folder = [], root
    while not folder.exists() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def _close_to_others(root: Path, handle: int) -> str:
    """Returns what was done to make an open folder its owner's alone; raises `Unusable` if it is not, and cannot be."""
    facts = os.fstat(handle)
    if not is_trusted(facts.st_uid):
        raise Unusable(f"belongs to user {facts.st_uid}")
    if not can_others_write(facts):
        return ""
    if facts.st_mode & stat.S_ISVTX:
        raise Unusable("is a folder that all users share; name a folder inside it")
    if facts.st_uid != os.geteuid() or not all(_OURS.fullmatch(name) for name in os.listdir(handle)):
        raise Unusable(f"can be written by others than its owner (`chmod go-w {root}` changes that)")
    take_back(root, handle)
    return "could be written by others than its owner; now it cannot, and what others put there is not read"


# What a store's folder holds: only from such a folder permissions are taken.
_OURS = re.compile(r"store-2\.\d+\.sqlite(-wal|-shm|-journal)?|.*\.pack(\.index)?|\.new-.*|v1")


def open_shared_folder(root: Path) -> list[str]:
    """Checks a folder that others filled; returns the names of what is in it.

    Raises:
        Unusable: there is none, it belongs to another user than this one or root, or anybody may write to it or to a
            folder above it.
    """
    try:
        facts = root.stat()
        if not stat.S_ISDIR(facts.st_mode):
            raise Unusable("is no folder")
        if not is_trusted(facts.st_uid):
            raise Unusable(f"belongs to user {facts.st_uid}")
        if facts.st_mode & stat.S_IWOTH:
            raise Unusable("can be written by anybody")
        reason = find_open_parent(root, trusts_groups=True)
        if reason:
            raise Unusable(reason)
        return sorted(path.name for path in root.iterdir())
    except OSError as error:
        raise Unusable(f"cannot be used: {error}") from error


def renew_folder(root: Path) -> None:
    """Makes a folder again that was removed while it was used.

    Raises:
        Unusable: as `open_folder` does.
    """
    if not root.exists():
        open_folder(root)


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
