"""Files that people name: opened without waiting, looked at once they are open, when no other can take their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ferrite_runtime.errors import FileUnreadable

SPECIAL = "it is no file, but a pipe, a socket or a device; copy it to a file first"


def open_file(path: Path | str) -> BinaryIO:
    """Returns a file that is open for reading: one that has an end, and does not wait for whoever writes to it.

    Raises:
        FileUnreadable: there is no such file, it may not be read, or it is a folder, a pipe, a socket or a device.
    """
    try:
        # Opening a pipe would wait for whoever writes to it, and a look before that would be at another file.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise FileUnreadable(path, _named_problem(path) or error) from error
    except ValueError as error:  # of a path that no file can have
        raise FileUnreadable(repr(str(path)), str(error)) from error
    problem = _problem_of(os.fstat(number).st_mode)
    if problem:
        os.close(number)
        raise FileUnreadable(path, problem)
    return os.fdopen(number, "rb")


def read_file_bytes(path: Path | str) -> bytes:
    """Returns what is in a file; raises `FileUnreadable` as `open_file` does, and where reading it fails."""
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        raise FileUnreadable(path, error) from error


def _problem_of(mode: int) -> str:
    """Returns what something that is not a file is; nothing for a file."""
    if stat.S_ISREG(mode):
        return ""
    return "it is no file, but a folder" if stat.S_ISDIR(mode) else SPECIAL


def _named_problem(path: Path | str) -> str:
    """Returns what a path names that could not be opened, such as a socket; nothing for a file."""
    try:
        return _problem_of(Path(path).stat().st_mode)
    except OSError:
        return ""
