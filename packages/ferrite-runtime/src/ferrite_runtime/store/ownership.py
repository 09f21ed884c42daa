"""Ownership: whether anybody but this user and root could have written a file, or could put another in its place.

What is read back decides which kernels run, and with the launcher which code of the host. So a file must belong to this
user or to root, and be writable by nobody else; the same holds for its folder, and for each folder above it, with what
Unix adds: in a folder with the sticky bit, as ``/tmp`` has it, nobody can rename or remove what belongs to others.
Where all of that holds nobody can replace a file between a look at it and its opening.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

_LINKS = 40  # as many symbolic links as Linux follows
_OTHERS = 0o022  # the permissions to write of group and all


def is_trusted(owner: int) -> bool:
    """Tells whether files of a user may be read as one's own: the user's own, and root's."""
    return owner in (os.getuid(), 0)


def can_others_write(facts: os.stat_result, *, trusts_groups: bool = False) -> bool:
    """Tells whether the mode of a file or folder lets others than its owner write; access lists show in its group bits.

    A group of one's own, as most systems make one for each user, is nobody else, nor is root's.
    """
    if facts.st_mode & stat.S_IWOTH:
        return True
    if trusts_groups or not facts.st_mode & stat.S_IWGRP or facts.st_gid == 0:
        return False
    return not _is_private_group(facts.st_gid)


@functools.cache
def _is_private_group(group: int) -> bool:
    """Tells whether a group is this user's alone: it has the user's name, and no other members."""
    try:
        import grp
        import pwd

        name = pwd.getpwuid(os.getuid()).pw_name
        entry = grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


def is_own_file(path: Path, *, trusts_groups: bool = False, links: int = 1) -> bool:
    """Tells whether a path is a plain file of this user's or root's that nobody else can write.

    Args:
        path: itself, not what a link points to.
        trusts_groups: whether members of the file's group may write it.
        links: most names that the file may have: with a second one, somebody may have brought it here from elsewhere.

    Raises:
        OSError: it is not there.
    """
    facts = path.lstat()
    if not stat.S_ISREG(facts.st_mode) or not is_trusted(facts.st_uid) or facts.st_nlink > links:
        return False
    return not can_others_write(facts, trusts_groups=trusts_groups)


def find_open_parent(path: Path, *, trusts_groups: bool = False) -> str:
    """Returns why others could put another folder in the place of one, naming the folder above it; nothing if not.

    Links are followed as the system follows them, each step of the way looked at.

    Raises:
        OSError: a folder on the way cannot be looked at.
    """
    whole = path if path.is_absolute() else Path.cwd() / path
    todo, here, links = list(reversed(whole.parts[1:])), Path("/"), 0
    while todo:
        reason = _open_reason(here, trusts_groups)
        if reason:
            return f"lies in {here}, which {reason}"
        name = todo.pop()
        following = here.parent if name == ".." else here / name
        facts = following.lstat()
        if not stat.S_ISLNK(facts.st_mode):
            here = following
            continue
        if not is_trusted(facts.st_uid):
            return f"is reached by the link {following}, which belongs to user {facts.st_uid}"
        links += 1
        if links > _LINKS:
            raise OSError(f"too many links: {path}")
        target = following.readlink()
        here = Path("/") if target.is_absolute() else here
        todo.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return ""


def _open_reason(folder: Path, trusts_groups: bool) -> str:  # noqa: FBT001
    facts = folder.lstat()
    if not is_trusted(facts.st_uid) and facts.st_uid != _unmapped_user():
        return f"belongs to user {facts.st_uid}"
    if not facts.st_mode & stat.S_ISVTX and can_others_write(facts, trusts_groups=trusts_groups):
        return "others can write to"
    return ""


@functools.cache
def _unmapped_user() -> int | None:
    """Returns the user that root's folders seem to belong to in a container that does not know root; else None."""
    try:
        ranges = Path("/proc/self/uid_map").read_text().split()
        is_whole = len(ranges) == 3 and int(ranges[2]) >= 2**32 - 1
        return None if is_whole else int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


def take_back(folder: Path, handle: int) -> None:
    """Takes the permission to write from everybody but the owner of an open folder.

    Raises:
        OSError: the user may not do so, or the file system does not keep it.
    """
    facts = os.fstat(handle)
    os.fchmod(handle, stat.S_IMODE(facts.st_mode) & ~_OTHERS)
    if can_others_write(os.fstat(handle)):
        raise OSError(f"the file system of {folder} does not keep who may write")
