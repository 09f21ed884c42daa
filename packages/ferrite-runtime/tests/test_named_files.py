"""Files that people name are looked at once they are open: what takes their place before that is no other file."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from bundle_cases import EXAMPLE
from ferrite_runtime import Bundle, FileUnreadable
from ferrite_runtime.commands.programs import read_file
from ferrite_runtime.process.files import open_file, read_file_bytes
from ferrite_runtime.tuning.pins import read_pins


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def make_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return path


MADE: dict[str, Callable[[Path], Path]] = {
    "pipe": make_pipe,
    "socket": make_socket,
    "link to a pipe": lambda path: path.symlink_to(make_pipe(path.with_name("pipe"))) or path,  # type: ignore[func-returns-value]
    "folder": lambda path: path.mkdir() or path,  # type: ignore[func-returns-value]
    "device": lambda path: Path("/dev/zero"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "bytes": read_file_bytes,
    "bundle": Bundle.read,
    "command": lambda path: read_file(str(path)),
    "pins": read_pins,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", MADE)
def test_what_is_no_file_is_refused_although_it_was_one(
    kind: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MADE[kind](tmp_path / "named")
    file = EXAMPLE.stat()
    with monkeypatch.context() as patch:  # as it was when somebody looked, a moment ago
        patch.setattr(Path, "stat", lambda self, **_: file)
        patch.setattr(os, "stat", lambda *_, **__: file)
        with pytest.raises(FileUnreadable, match="cannot be read: "):
            READERS[reader](path)


@pytest.mark.parametrize("name", ["nothing", "a" * 5000, "x\0y", "loop", "closed"])
def test_paths_that_no_file_has(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed").write_text("x")
    (tmp_path / "closed").chmod(0)
    if name == "closed" and os.access(tmp_path / "closed", os.R_OK):
        pytest.skip("root reads all files")
    with pytest.raises(FileUnreadable, match="cannot be read: "):
        read_file_bytes(tmp_path / name)


def test_a_file_is_read_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    with open_file(tmp_path / "file") as file:
        (tmp_path / "other").write_bytes(b"after")
        (tmp_path / "other").replace(tmp_path / "file")
        assert file.read() == b"before"
