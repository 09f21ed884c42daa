"""Frames: the form of an entry in a pack. A header with lengths and a checksum, the names, the sealed bytes."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ferrite_runtime.formats.binary import CorruptEntry

_MAGIC = b"FeP2"
PUT, REMOVE, USE = 0, 1, 2
# Magic, operation, bytes of the kind, of the key, and of the sealed data, nanoseconds since 1970; then the checksum.
_HEAD = struct.Struct("<4sBBHIQ")
_SUM = struct.Struct("<I")
_FRAME = _HEAD.size + _SUM.size
# Header, kind and key have to fit into so many bytes; many small entries are read at once, the data of large ones not.
_MOST_NAMES, _CHUNK = 1024, 1 << 14


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; its sealed bytes begin at ``start`` of its pack, and were written at ``written``, in nanoseconds."""

    operation: int
    kind: str
    key: str
    written: int
    start: int
    size: int


def pack_frame(operation: int, kind: str, key: str, written: int, sealed: bytes) -> bytes:
    """Returns the bytes of a frame."""
    names = kind.encode(), key.encode()
    head = _HEAD.pack(_MAGIC, operation, len(names[0]), len(names[1]), len(sealed), written) + names[0] + names[1]
    return head[: _HEAD.size] + _SUM.pack(zlib.crc32(head)) + head[_HEAD.size :] + sealed


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of a pack: its whole frames, where the last one ends, and how many bytes before are damaged."""

    frames: tuple[Frame, ...]
    end: int
    damaged: int


def read_frames(path: Path, start: int) -> Reading:
    """Returns the whole frames of a pack from ``start`` on; what is damaged is stepped over.

    What stands behind the last whole frame is still being written, or was when its process died.
    """
    try:
        with path.open("rb") as file:
            return frames_in(file, start)
    except OSError:
        return Reading((), start, 0)


def frames_in(file: BinaryIO, start: int) -> Reading:
    """Returns the whole frames of a pack that is open, as `read_frames` does; those read before where reading fails."""
    frames: list[Frame] = []
    end, damaged = start, 0
    with contextlib.suppress(OSError):
        size = os.fstat(file.fileno()).st_size
        base, chunk = start, b""
        while start + _FRAME <= size:
            if not base <= start <= base + len(chunk) - _MOST_NAMES:
                file.seek(start)
                base, chunk = start, file.read(_CHUNK)
            frame = _read_head(chunk[start - base : start - base + _MOST_NAMES], start)
            if frame is None:
                file.seek(start + 1)
                start = _next_frame(file.read(1 << 20), start + 1, size)
                continue
            stop = frame.start + frame.size
            if stop > size:
                break
            frames.append(frame)
            damaged += start - end
            start = end = stop
    return Reading(tuple(frames), end, damaged)


def unpack_frames(data: bytes) -> list[tuple[str, str, bytes]]:
    """Returns kind, key and sealed bytes of each frame in a message that is nothing but frames of entries.

    Raises:
        CorruptEntry: it is something else, or was cut.
    """
    found, start = [], 0
    while start < len(data):
        frame = _read_head(data[start : start + _MOST_NAMES], start)
        if frame is None or frame.operation != PUT or frame.start + frame.size > len(data):
            raise CorruptEntry(f"{len(data) - start} bytes of it are no entries")
        start = frame.start + frame.size
        found.append((frame.kind, frame.key, data[frame.start : start]))
    return found


def _next_frame(data: bytes, start: int, size: int) -> int:
    """Returns where the next frame may begin, given what stands from ``start`` on."""
    if not data:
        return size
    found = data.find(_MAGIC)
    return start + (found if found >= 0 else max(1, len(data) - len(_MAGIC) + 1))


def _read_head(data: bytes, start: int) -> Frame | None:
    """Returns the frame that begins ``data``, or None; kind and key have to be within it."""
    if len(data) < _FRAME or not data.startswith(_MAGIC):
        return None
    _, operation, kind, key, size, written = _HEAD.unpack_from(data)
    (checksum,) = _SUM.unpack_from(data, _HEAD.size)
    names = data[_FRAME : _FRAME + kind + key]
    if len(names) != kind + key or operation > USE or zlib.crc32(data[: _HEAD.size] + names) != checksum:
        return None
    try:
        text = names[:kind].decode(), names[kind:].decode()
    except UnicodeDecodeError:
        return None
    return Frame(operation, *text, written, start + _FRAME + kind + key, size)
