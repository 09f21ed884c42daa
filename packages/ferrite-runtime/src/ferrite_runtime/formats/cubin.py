"""Reads how many registers and stack bytes a kernel uses out of a cubin, with no GPU and no tool."""

from __future__ import annotations

import struct
from collections.abc import Iterator

# Attribute codes of the .nv.info section; each record is format, code, and for format 4 a size and (symbol, value).
_FRAME_SIZE, _REGISTER_COUNT = 0x11, 0x2F
_SIZED = 0x04
MAX_NAME = 4096
"""Characters of a section's name."""


def read_resources(cubin: bytes) -> tuple[int | None, int | None]:
    """Returns (registers per thread, stack bytes per thread) of the kernel in ``cubin``; None where it does not say.

    With several functions in the file the larger numbers are returned.
    """
    registers = frame = None
    try:
        for name, content in sections(cubin):
            if name == ".nv.info":
                for code, value in _records(content):
                    if code == _REGISTER_COUNT:
                        registers = max(registers or 0, value)
                    elif code == _FRAME_SIZE:
                        frame = max(frame or 0, value)
    except (struct.error, IndexError, ValueError, OverflowError):
        return None, None
    return registers, frame


def sections(elf: bytes) -> Iterator[tuple[str, memoryview]]:
    """Yields the name and the content of each section of an ELF file; nothing of a file that is none."""
    if elf[:5] != b"\x7fELF\x02":
        return
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry_size) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, size in headers:
        text, _, _ = elf[names + name : names + name + MAX_NAME].partition(b"\0")
        yield text.decode(), memoryview(elf)[offset : offset + size]


def _records(content: memoryview) -> Iterator[tuple[int, int]]:
    position = 0
    while position + 4 <= len(content):
        form, code, size = struct.unpack_from("<BBH", content, position)
        position += 4
        if form == _SIZED:
            if size == 8:
                yield code, struct.unpack_from("<II", content, position)[1]
            position += size
