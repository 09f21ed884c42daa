"""Stores with one byte changed: whatever the byte, no wrong content, no error, and the next entry is kept."""

from __future__ import annotations

import logging
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.measurements import Measurement, Situation
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.store.pack_frames import read_frames
from ferrite_runtime.store.pack_index import write_index
from ferrite_runtime.store.packs import Packs
from ferrite_runtime.tuning.known_configs import Choices
from store_stress import run_stress

FLIPS = {"store-2.1.sqlite": 900, "store-2.1.sqlite-wal": 600, "store-2.1.sqlite-shm": 200, "pack": 500, "index": 200}
BLOBS = {f"{i:x}{'0' * 20}": bytes([i]) * (700 * i + 100) for i in range(1, 13)}
SITUATIONS = [Situation(f"{i:064x}", "NVIDIA H200", "sm_90", "3.6.0", (("x", 1 << i),)) for i in range(6)]
CONFIG = Config.of({"XBLOCK": 1024}, 4)


def fill(store: LayeredStore, part: int) -> None:
    for key in list(BLOBS)[part::2]:
        store.save("kernels", key, BLOBS[key])
    for situation in SITUATIONS[part::2]:
        Choices(store).add([Measurement(situation, CONFIG, 1.0, 1.0, 1.0, 5, is_chosen=True, when=3)])


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Returns a folder, in memory where there is such a thing: thousands of stores are made in it."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders: one with everything in the database, one with half of it in the log beside it, one of packs."""
    root = tmp_path_factory.mktemp("pristine")
    for name, form in (("database", "sqlite"), ("log", "sqlite"), ("packs", "packs")):
        writer = LayeredStore(root / "made" / name, form=form)
        fill(writer, 0)
        if name != "packs":
            writer.own.finish()
            fill(writer, 1)
        else:
            fill(LayeredStore(root / "made" / name, form=form), 1)
        if name == "database":
            writer.own.finish()
        for pack in sorted((root / "made" / name).glob("*.pack"))[:1]:
            write_index(pack, read_frames(pack, 0))
        shutil.copytree(root / "made" / name, root / name)
        writer.own.finish()
    assert len(list((root / "log").iterdir())) == 3
    assert len(list((root / "packs").iterdir())) == 3
    return root


def positions(size: int, count: int, chance: random.Random) -> Iterator[int]:
    """Yields every byte of the file's head, and others spread over all of it."""
    yield from range(min(size, 120))
    step = max(1.0, size / max(1, count - 120))
    yield from {min(size - 1, int((i + chance.random()) * step)) for i in range(int(size / step))}


def check_damaged(folder: Path, form: str) -> int:
    """Reads all that was stored, and stores something; returns how many entries were still there."""
    store = LayeredStore(folder, form=form)
    found = 0
    for key, content in BLOBS.items():
        data = store.load("kernels", key)
        assert data is None or data == content
        found += data is not None
    for situation in SITUATIONS:
        config = Choices(store).recall(situation)
        assert config is None or config == CONFIG
        found += config is not None
    for key, data in store.scan("kernels"):
        assert data == BLOBS[key]
    store.save("kernels", "new", b"new")
    assert store.load("kernels", "new") == b"new"
    store.own.finish()
    assert LayeredStore(folder, form=form).load("kernels", "new") == b"new", "it reached the disk"
    return found


@pytest.mark.parametrize("file", FLIPS)
def test_no_flipped_byte_does_harm(pristine: Path, scratch: Path, file: str, caplog) -> None:
    """2,400 flips in all: one byte each, in each of the files that a store consists of."""
    caplog.set_level(logging.CRITICAL)
    chance = random.Random(file)
    source = pristine / {"pack": "packs", "index": "packs", "store-2.1.sqlite": "database"}.get(file, "log")
    name = min(path.name for path in source.iterdir() if path.name.endswith(file))
    whole = (source / name).read_bytes()
    flips, kept = 0, 0
    everything = len(BLOBS) + len(SITUATIONS)
    for position in positions(len(whole), FLIPS[file], chance):
        folder = scratch / "store"
        shutil.copytree(source, folder)
        changed = bytearray(whole)
        changed[position] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(changed)
        kept += check_damaged(folder, "packs" if source.name == "packs" else "sqlite")
        shutil.rmtree(folder)
        flips += 1
    assert flips >= FLIPS[file] * 0.9
    assert kept > 0.5 * flips * everything, "most of what is not damaged is still found"


@pytest.mark.parametrize("form", ["sqlite", "packs"])
@pytest.mark.parametrize("content", [b"", b"not a store at all", bytes(8192)])
def test_file_of_another_make_is_replaced(tmp_path: Path, form: str, content: bytes, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    name = "store-2.1.sqlite" if form == "sqlite" else "0000000000000000-000000000000.pack"
    (tmp_path / name).write_bytes(content)
    assert check_damaged(tmp_path, form) == 0


def test_measurements_survive_the_database(pristine: Path, tmp_path: Path, caplog) -> None:
    """A page in the middle is lost; what SQLite can still read of the measurements moves to the next file."""
    shutil.copytree(pristine / "database", tmp_path / "store")
    file = tmp_path / "store" / "store-2.1.sqlite"
    data = bytearray(file.read_bytes())
    index = data.index(b"sqlite_autoindex_entries_1")
    page = int.from_bytes(data[index + 33 : index + 34], "big") or 4
    data[(page - 1) * 4096 : (page - 1) * 4096 + 100] = bytes(100)
    file.write_bytes(data)
    store = LayeredStore(tmp_path / "store")
    assert [Choices(store).recall(situation) for situation in SITUATIONS] == [CONFIG] * len(SITUATIONS)
    assert "begins anew" in caplog.text
    assert not file.exists()
    assert (tmp_path / "store" / "store-2.2.sqlite").exists()


def test_damage_is_reported(pristine: Path, tmp_path: Path) -> None:
    for name, form in (("database", "sqlite"), ("packs", "packs")):
        folder = tmp_path / name
        shutil.copytree(pristine / name, folder)
        assert not LayeredStore(folder, form=form).own.verify()
        for file in [*folder.glob("*.pack"), *folder.glob("*.sqlite")]:
            data = file.read_bytes()
            file.write_bytes(data.replace(bytes([5]) * 99, bytes([5]) * 98 + b"?", 1))
        (damage,) = LayeredStore(folder, form=form).own.verify()
        assert damage.where == f"kernels/5{'0' * 20}"
        assert "digest" in damage.reason


def test_pack_with_damage_in_its_middle_keeps_the_rest(tmp_path: Path) -> None:
    packs = Packs(tmp_path)
    for key in ("a", "b", "c"):
        packs.save("kernels", key, key.encode() * 1000)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    start = data.index(b"FeP2", 5)
    file.write_bytes(data[: start + 8] + b"\xff" + data[start + 9 :])
    fresh = Packs(tmp_path)
    assert fresh.keys("kernels") == ["a", "c"]
    (damage,) = fresh.verify()
    assert "are no entry" in damage.reason


@pytest.mark.parametrize("form", ["sqlite", "packs"])
def test_processes_that_are_killed_take_nothing_along(tmp_path: Path, form: str) -> None:
    """A short version of `python store_stress.py --seconds 300`: 16 processes, 3 of them killed at random moments."""
    outcome = run_stress(tmp_path, form, processes=16, kills=3, seconds=4.0)
    assert outcome.kills == 3
    assert outcome.records > 100
    assert outcome.is_good, outcome
    assert outcome.peak < 128 << 20, "the log ends, though there is always a reader"
