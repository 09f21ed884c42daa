"""Indexes beside packs: what stands where in the beginning of a pack, so that a process need not read all of it.

A pack only grows, so that an index stays right; whoever has read much of one may write it. It is sealed; where it is
missing or damaged, the pack itself is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

from ferrite_runtime.formats.binary import CorruptEntry, seal, unseal
from ferrite_runtime.store.ownership import is_own_file
from ferrite_runtime.store.pack_frames import Frame, Reading, read_frames

SUFFIX = ".index"
# Reading so many frames takes longer than reading and writing an index.
_WORTH = 500


def index_of(pack: Path) -> Path:
    """Returns the place of a pack's index."""
    return pack.with_name(pack.name + SUFFIX)


def read_pack(pack: Path, start: int, *, may_write: bool, trusts_groups: bool = False) -> Reading:
    """Returns the frames of a pack from ``start`` on; from its index, as far as that goes.

    Args:
        pack: the pack.
        start: where the last reading ended, 0 for the first one.
        may_write: whether an index may be written where one would have helped.
        trusts_groups: whether members of its group may have written the index.
    """
    if start > 0:
        return read_frames(pack, start)
    known = _read_index(pack, trusts_groups=trusts_groups)
    rest = read_frames(pack, known.end)
    whole = Reading((*known.frames, *rest.frames), rest.end, known.damaged + rest.damaged)
    if may_write and len(rest.frames) >= _WORTH:
        write_index(pack, whole)
    return whole


def write_index(pack: Path, reading: Reading) -> None:
    """Writes the index of a pack, whole or not at all."""
    frames = [[f.operation, f.kind, f.key, f.written, f.start, f.size] for f in reading.frames]
    data = seal(json.dumps({"end": reading.end, "damaged": reading.damaged, "frames": frames}).encode())
    aside = pack.with_name(f".new-{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        try:
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            aside.replace(index_of(pack))
        except OSError:
            aside.unlink(missing_ok=True)


def _read_index(pack: Path, *, trusts_groups: bool) -> Reading:
    """Returns what a pack's index says; nothing, if there is none for this pack."""
    path = index_of(pack)
    try:
        if not is_own_file(path, trusts_groups=trusts_groups):
            return Reading((), 0, 0)
        value = json.loads(unseal(path.read_bytes()))
        reading = Reading(tuple(Frame(*row) for row in value["frames"]), value["end"], value["damaged"])
        # A pack that is shorter is another file under the same name.
        return reading if reading.end <= pack.stat().st_size else Reading((), 0, 0)
    except (OSError, CorruptEntry, ValueError, KeyError, TypeError):
        return Reading((), 0, 0)
