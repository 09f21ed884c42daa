"""Stores as files: what one machine knows, for others to take in, or to lie below their own as a read-only layer."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ferrite_runtime.errors import FileUnreadable, FileUnwritable, NoExport, PackageInvalid, SpecError
from ferrite_runtime.formats.binary import CorruptEntry, unseal
from ferrite_runtime.formats.measurements import RECORDS, Measurement, merge
from ferrite_runtime.process.files import open_file, read_file_bytes
from ferrite_runtime.store.backend import seal_entry, unseal_entry
from ferrite_runtime.store.interface import LOCAL_KINDS, Store, seal_record, unseal_record
from ferrite_runtime.store.measurement_entries import load_measurement
from ferrite_runtime.store.pack_frames import PUT, frames_in, pack_frame, unpack_frames

LINES = ".jsonl"


@dataclass(frozen=True, slots=True)
class Transfer:
    """What became of entries: taken over, known already (or known better), and refused with a reason each."""

    taken: int
    known: int
    refused: tuple[str, ...]


def export_entries(store: Store, kinds: Iterable[str], file: Path) -> int:
    """Writes entries to a file, the same entries as the same bytes; returns how many.

    A file that ends in ``.jsonl`` gets measurements alone, a line each; any other is a pack, which may also lie in
    the folder of a read-only layer.

    Raises:
        FileUnwritable: the file cannot be written.
        PackageInvalid: an entry is damaged.
    """
    count = 0
    aside = file.with_name(f".{file.name}-{secrets.token_hex(4)}")
    try:
        with aside.open("xb") as out:
            for kind in sorted(set(kinds) - LOCAL_KINDS):
                for key, data in store.scan(kind):
                    if file.suffix != LINES:
                        out.write(pack_frame(PUT, kind, key, 0, seal_entry(kind, key, data)))
                    elif kind == RECORDS:
                        out.write(unseal(data) + b"\n")
                    count += 1
        aside.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise FileUnwritable(file, error) from error
    except CorruptEntry as error:
        aside.unlink(missing_ok=True)
        raise PackageInvalid(f"{file} is not written: {error}") from error
    return count


def pack_entries(store: Store, names: Iterable[tuple[str, str]]) -> tuple[bytes, int]:
    """Returns entries as a pack, the same ones as the same bytes, and how many; those that are gone are left out."""
    frames = []
    for kind, key in sorted(names):
        data = None if kind in LOCAL_KINDS else store.load(kind, key)
        if data is not None:
            frames.append(pack_frame(PUT, kind, key, 0, seal_entry(kind, key, data)))
    return b"".join(frames), len(frames)


def take_pack(store: Store, content: bytes) -> Transfer:
    """Takes the entries of a pack into a store, as `import_entries` does those of a file.

    Raises:
        CorruptEntry: it is no pack, or was cut.
    """
    refused: list[str] = []
    return take_entries(store, sound_entries(unpack_frames(content), refused), refused)


def sound_entries(frames: Iterable[tuple[str, str, bytes]], refused: list[str]) -> Iterator[tuple[str, str, bytes]]:
    """Yields the entries that are whole and not of a kind that stays on its machine."""
    for kind, key, sealed in frames:
        data = _taken(kind, key, sealed, refused)
        if data is not None:
            yield kind, key, data


def _taken(kind: str, key: str, sealed: bytes, refused: list[str]) -> bytes | None:
    """Returns what a sealed entry of another machine holds; None, and a reason more, if it is not taken."""
    try:
        data = unseal_entry(kind, key, sealed)
    except CorruptEntry as error:
        refused.append(f"{kind}/{key[:24]}: {error}")
        return None
    if kind in LOCAL_KINDS:
        refused.append(f"{kind}/{key[:24]}: code for this processor is not taken from others")
        return None
    return data


def import_entries(store: Store, file: Path) -> Transfer:
    """Takes the entries of an exported file into a store: what it does not have, and measurements that are later.

    Raises:
        FileUnreadable: the file cannot be read.
        PackageInvalid: it is none of ours.
    """
    refused: list[str] = []
    return take_entries(
        store, _read_lines(file, refused) if file.suffix == LINES else _read_pack(file, refused), refused
    )


def take_entries(store: Store, entries: Iterable[tuple[str, str, bytes]], refused: list[str]) -> Transfer:
    """Takes entries into a store: what it does not have, and measurements that are later.

    Args:
        store: takes them.
        entries: kind, key and bytes of each; what makes them may add to ``refused``.
        refused: reasons why entries were not taken, to which those found here are added.
    """
    taken = known = 0
    for kind, key, data in entries:
        reason = _check_measurement(key, data) if kind == RECORDS else ""
        if reason:
            refused.append(f"{kind}/{key[:24]}: {reason}")
        elif _is_news(store, kind, key, data):
            store.save(kind, key, data)
            taken += 1
        else:
            known += 1
    return Transfer(taken, known, tuple(refused))


def _check_measurement(key: str, data: bytes) -> str:
    """Returns what is wrong with a measurement; nothing, if it reads and is what its key says."""
    try:
        return "" if _read_measurement(data).key == key else "a measurement of something else"
    except (SpecError, CorruptEntry, ValueError, RecursionError) as error:
        return f"a measurement that does not read: {error}"


def _read_measurement(data: bytes) -> Measurement:
    return Measurement.from_mapping(unseal_record(data))


def _is_news(store: Store, kind: str, key: str, data: bytes) -> bool:
    """Tells whether a store would change: it lacks the entry, or has an earlier measurement."""
    if kind != RECORDS:
        return store.load(kind, key) is None
    ours, theirs = load_measurement(store, key), _read_measurement(data)
    return ours is None or (ours != theirs and merge([ours, theirs]) == (theirs,))


def _read_pack(file: Path, refused: list[str]) -> Iterator[tuple[str, str, bytes]]:
    try:
        with open_file(file) as source:
            size = os.fstat(source.fileno()).st_size
            reading = frames_in(source, 0)
            if size and not reading.frames:
                raise NoExport(f"{file} is no export of a store")
            if reading.damaged or reading.end < size:
                refused.append(f"{file}: {reading.damaged + size - reading.end} bytes are no entry")
            for frame in reading.frames:
                source.seek(frame.start)
                data = _taken(frame.kind, frame.key, source.read(frame.size), refused)
                if data is not None and frame.operation == PUT:
                    yield frame.kind, frame.key, data
    except OSError as error:
        raise FileUnreadable(file, error) from error


def _read_lines(file: Path, refused: list[str]) -> Iterator[tuple[str, str, bytes]]:
    try:
        lines = read_file_bytes(file).decode().splitlines()
    except ValueError as error:
        raise NoExport(f"{file} is no export of a store: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            record = Measurement.from_mapping(json.loads(line), f"line {number}")
        except (SpecError, ValueError, RecursionError) as error:
            refused.append(f"{file}:{number}: does not read: {error}")
            continue
        yield RECORDS, record.key, seal_record(record.to_mapping())
