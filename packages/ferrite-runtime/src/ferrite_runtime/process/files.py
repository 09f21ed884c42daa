"""Files that people name: looked at before they are opened, since opening a pipe waits for whoever writes to it."""

from __future__ import annotations

import stat
from pathlib import Path

from ferrite_runtime.errors import FileUnreadable


def refuse_special(path: Path | str) -> None:
    """Raises `FileUnreadable` where a path names a pipe, a socket or a device; of what is not there it says nothing."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return  # opening it says why
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FileUnreadable(path, "it is no file, but a pipe, a socket or a device; copy it to a file first")
