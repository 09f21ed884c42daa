"""The store: entries come back whole or not at all, whoever writes at the same time."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from ferrite_runtime.compilation.compiler import KERNELS, Compiler, job_key
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.errors import CacheUnwritable
from ferrite_runtime.formats.binary import Binary, CorruptEntry, seal, unseal
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from ferrite_runtime.store import database, database_file, pack_index
from ferrite_runtime.store.interface import MemoryStore, load_record, load_sealed, save_record
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.store.packs import Packs
from runtime_fakes import FakePool
from runtime_kernels import pointwise

JOB = Job(KernelSpec.from_mapping(pointwise("a + 1")), Config.of({"XBLOCK": 256}, 4), Target.parse("sm_90"))


FORMS = ("sqlite", "packs")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[*FORMS, "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "memory":
        return MemoryStore()
    return LayeredStore(tmp_path / "store", form=request.param)


def test_entries_come_back(store) -> None:
    assert store.load("kernels", "ab12") is None
    store.save("kernels", "ab12", b"one")
    store.save("tuning", "ab12", b"two")
    assert (store.load("kernels", "ab12"), store.load("tuning", "ab12")) == (b"one", b"two")
    store.remove("kernels", "ab12")
    store.remove("kernels", "ab12")
    assert store.load("kernels", "ab12") is None


def test_records_are_sealed(store, caplog: pytest.LogCaptureFixture) -> None:
    save_record(store, "tuning", "k1", {"config": [1, 2]})
    assert load_record(store, "tuning", "k1") == {"config": [1, 2]}
    store.save("tuning", "k1", store.load("tuning", "k1")[:-1])
    with caplog.at_level(logging.WARNING):
        assert load_record(store, "tuning", "k1") is None
    assert "corrupt" in caplog.text
    assert store.load("tuning", "k1") is None, "a corrupt entry is removed"
    assert load_sealed(store, "tuning", "k1") is None


def test_seal_notices_every_change() -> None:
    data = seal(b"content")
    assert unseal(data) == b"content"
    for position in range(len(data)):
        changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(CorruptEntry):
            unseal(changed)


def test_compiled_kernel_is_read_back_instead_of_compiled(store) -> None:
    first, second = FakePool(), FakePool()
    binary = Compiler(first, store).submit(JOB).result()
    assert Compiler(second, store).submit(JOB).result() == binary
    assert (len(first.jobs), len(second.jobs)) == (1, 0)


def test_corrupt_kernel_is_logged_removed_and_compiled_again(store, caplog: pytest.LogCaptureFixture) -> None:
    binary = Compiler(FakePool(), store).submit(JOB).result()
    key = job_key(JOB)
    store.save(KERNELS, key, store.load(KERNELS, key).replace(b"spec", b"sqec", 1))
    again = FakePool()
    with caplog.at_level(logging.WARNING):
        assert Compiler(again, store).submit(JOB).result() == binary
    assert len(again.jobs) == 1
    assert "corrupt" in caplog.text
    assert Binary.from_bytes(store.load(KERNELS, key)) == binary


def test_failure_is_not_stored(store) -> None:
    class Failing:
        def submit(self, job, seconds=300.0):
            future: Future[Binary] = Future()
            future.set_exception(RuntimeError("no memory"))
            return future

    compiler = Compiler(Failing(), store)
    assert isinstance(compiler.submit(JOB).exception(), RuntimeError)
    assert store.load(KERNELS, job_key(JOB)) is None


def test_many_processes_share_one_entry(tmp_path: Path, form: str) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=write_and_read, args=(tmp_path, form, worker)) for worker in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    content = unseal(LayeredStore(tmp_path, form=form).load("kernels", "feed"))
    assert len(set(content)) == 1
    assert not list(tmp_path.rglob(".new-*")), "no file is left aside"


def write_and_read(root: Path, form: str, worker: int) -> None:
    store = LayeredStore(root, form=form)
    for i in range(60):
        store.save("kernels", "feed", seal(bytes([worker]) * (100_000 + i)))
        assert len(set(unseal(store.load("kernels", "feed")))) == 1


def test_forked_child_has_a_store_of_its_own(tmp_path: Path, form: str) -> None:
    store = LayeredStore(tmp_path, form=form)
    store.save("kernels", "parent", b"1")
    child = multiprocessing.get_context("fork").Process(target=store.save, args=("kernels", "child", b"2"))
    child.start()
    store.save("kernels", "meanwhile", b"3")
    child.join()
    fresh = LayeredStore(tmp_path, form=form)
    assert [key for key, _ in fresh.scan("kernels")] == ["child", "meanwhile", "parent"]


def test_keys_are_found_by_how_they_begin(store) -> None:
    for key in ("ab-2", "ab-1", "aa-9", "ac", "a"):
        store.save("records", key, key.encode())
        store.save("kernels", key, b"other")
    assert list(store.scan("records", "ab")) == [("ab-1", b"ab-1"), ("ab-2", b"ab-2")]
    assert [key for key, _ in store.scan("records")] == ["a", "aa-9", "ab-1", "ab-2", "ac"]
    assert not list(store.scan("graphs"))


def test_entry_under_another_name_is_corrupt(tmp_path: Path) -> None:
    import sqlite3

    LayeredStore(tmp_path).save("kernels", "abcd", b"data")
    with contextlib.closing(sqlite3.connect(tmp_path / "store-2.1.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE entries SET key = 'abce'")
    store = LayeredStore(tmp_path)
    assert len(store.own.verify()) == 1
    assert store.load("kernels", "abce") is None
    assert not store.own.verify(), "what is corrupt is removed"


def test_fork_waits_until_no_thread_is_in_the_store(tmp_path: Path, form: str) -> None:
    store = LayeredStore(tmp_path, form=form)
    store.save("kernels", "parent", b"1")
    entered = threading.Event()

    def linger() -> None:
        with store.own._lock:
            entered.set()
            time.sleep(0.3)

    thread = threading.Thread(target=linger)
    thread.start()
    entered.wait()
    child = multiprocessing.get_context("fork").Process(target=save_in_child, args=(store,))
    child.start()
    child.join(20)
    thread.join()
    assert child.exitcode == 0
    assert store.load("kernels", "child") == b"2"


def save_in_child(store: LayeredStore) -> None:
    assert getattr(store.own, "_connection", None) is None, "a connection must not be in two processes"
    store.save("kernels", "child", b"2")


# --- folders that cannot be used ---------------------------------------------------------------------------------


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes what lies in the folder read-only, for the superuser as well."""

    def make() -> None:
        for path in [*tmp_path.rglob("*"), tmp_path]:
            path.chmod(path.stat().st_mode & 0o555)
        if os.getuid() == 0:
            access, opened = os.access, os.open
            monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and not mode & os.W_OK)

            def refuse(path, flags, *rest, **named):
                if flags & os.O_CREAT:
                    raise PermissionError(13, "Permission denied", str(path))
                return opened(path, flags, *rest, **named)

            monkeypatch.setattr(os, "open", refuse)

    return make


def test_read_only_folder_is_read_and_what_is_new_stays_in_memory(tmp_path: Path, form: str, read_only) -> None:
    before = LayeredStore(tmp_path, form=form)
    before.save("kernels", "old", b"1")
    before.own.finish()
    read_only()
    store = LayeredStore(tmp_path, form=form)
    assert store.load("kernels", "old") == b"1"
    with pytest.warns(CacheUnwritable, match=r"cannot be written.*FERRITE_CACHE_DIR|readonly"):
        store.save("kernels", "new", b"2")
    store.save("kernels", "newer", b"3")  # a second warning would be an error here
    assert [key for key, _ in store.scan("kernels")] == ["new", "newer", "old"]
    assert LayeredStore(tmp_path, form=form).load("kernels", "new") is None


def test_empty_read_only_folder_is_no_error(tmp_path: Path, form: str, read_only) -> None:
    read_only()
    store = LayeredStore(tmp_path, form=form)
    assert store.load("kernels", "abcd") is None
    assert not list(store.scan("kernels"))


def test_folder_that_cannot_exist_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = LayeredStore(tmp_path / "file" / "store")
    with pytest.warns(CacheUnwritable, match="cannot be used"):
        store.save("kernels", "abcd", b"data")
    assert store.load("kernels", "abcd") == b"data", "from memory, and there is no second warning"


def test_full_disk_leaves_entries_in_memory(tmp_path: Path, form: str) -> None:
    store = LayeredStore(tmp_path, form=form)
    store.save("kernels", "small", b"1")
    fill = "PRAGMA max_page_count = 1"
    with pytest.MonkeyPatch.context() as patch:
        if form == "sqlite":
            store.own._run(lambda db: db.execute(fill).fetchone())
        else:
            patch.setattr(os, "write", lambda handle, data: len(data) // 2)
        with pytest.warns(CacheUnwritable, match="cannot be written"):
            store.save("kernels", "large", bytes(200_000))
        assert store.load("kernels", "large") == bytes(200_000)
    if form == "sqlite":
        store.own.close()
    store.save("kernels", "later", b"2")
    fresh = LayeredStore(tmp_path, form=form)
    assert fresh.load("kernels", "large") == bytes(200_000), "what was held is written when there is room again"
    assert (fresh.load("kernels", "small"), fresh.load("kernels", "later")) == (b"1", b"2")


def test_folder_of_somebody_else_is_not_read(tmp_path: Path, monkeypatch) -> None:
    LayeredStore(tmp_path).save("kernels", "abcd", b"data")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    os.chown(tmp_path, 54321, -1) if os.geteuid() == 0 else pytest.skip("only the superuser gives files away")
    with pytest.warns(CacheUnwritable, match="belongs to user 54321"):
        assert LayeredStore(tmp_path).load("kernels", "abcd") is None


def test_file_of_somebody_else_is_not_read(tmp_path: Path, form: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only the superuser gives files away")
    before = LayeredStore(tmp_path, form=form)
    before.save("kernels", "abcd", b"foreign")
    for path in tmp_path.iterdir():
        os.chown(path, 54321, -1)
    store = LayeredStore(tmp_path, form=form)
    assert store.load("kernels", "abcd") is None
    store.save("kernels", "abcd", b"own")
    assert LayeredStore(tmp_path, form=form).load("kernels", "abcd") == b"own"


def test_new_folder_and_files_are_private(tmp_path: Path, form: str) -> None:
    old = os.umask(0)
    try:
        LayeredStore(tmp_path / "store", form=form).save("kernels", "abcd", b"data")
    finally:
        os.umask(old)
    for path in [tmp_path / "store", *(tmp_path / "store").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_writer_that_is_held_up_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    monkeypatch.setattr(database_file, "PATIENCE", 1.0)
    monkeypatch.setattr(database, "PATIENCE", 1.0)
    store = LayeredStore(tmp_path)
    store.save("kernels", "a", b"1")
    store.own.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "store-2.1.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        for key in "bcdefghij":
            store.save("kernels", key, b"2")
        assert time.monotonic() - started < 5.0, "only the first of them waits"
        assert (store.load("kernels", "a"), store.load("kernels", "j")) == (b"1", b"2")
        other.execute("ROLLBACK")
    store.own._blocked_until[True] = 0.0
    store.save("kernels", "k", b"3")
    assert len(list(LayeredStore(tmp_path).scan("kernels"))) == 11, "nothing was lost"


# --- layers ------------------------------------------------------------------------------------------------------


def test_user_layer_lies_over_shared_ones(tmp_path: Path, form: str) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    system = LayeredStore(shared, form=form)
    system.save("kernels", "both", b"system")
    system.save("kernels", "system", b"system")
    store = LayeredStore(own, (tmp_path / "missing", shared))
    store.save("kernels", "both", b"user")
    with pytest.warns(CacheUnwritable, match="as a read-only layer it is left out"):
        assert store.load("kernels", "system") == b"system"
    assert store.load("kernels", "both") == b"user"
    assert dict(store.scan("kernels")) == {"both": b"user", "system": b"system"}
    store.remove("kernels", "system")
    assert store.load("kernels", "system") is None
    assert not list(store.scan("kernels", "sy"))
    assert LayeredStore(own, (shared,)).load("kernels", "system") == b"system", "nobody writes to a shared layer"


def test_shared_layer_that_anybody_may_write_is_left_out(tmp_path: Path) -> None:
    LayeredStore(tmp_path / "shared").save("native", "lib", b"evil")
    (tmp_path / "shared").chmod(0o777)
    store = LayeredStore(tmp_path / "own", (tmp_path / "shared",))
    with pytest.warns(CacheUnwritable, match="can be written by anybody"):
        assert store.load("native", "lib") is None


# --- size --------------------------------------------------------------------------------------------------------


def test_least_recently_used_entries_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]
    monkeypatch.setattr(database.time, "time", lambda: now[0])
    store = LayeredStore(tmp_path, limit=1 << 20)
    store.save("records", "precious", b"r")
    for i in range(40):
        now[0] += 86400
        store.save("kernels", f"k{i:02}", bytes([i]) * 50_000)
        assert store.load("kernels", "k00") is not None, "it is used every day"
        store.own.flush()
        assert (tmp_path / "store-2.1.sqlite").stat().st_size < 1.2 * (1 << 20)
    kept = [key for key, _ in store.scan("kernels")]
    assert kept[0] == "k00"
    assert kept[-1] == "k39"
    assert 10 < len(kept) <= 21
    assert kept[1:] == [f"k{i:02}" for i in range(41 - len(kept), 40)]
    assert store.load("records", "precious") == b"r"
    store.save("kernels", "huge", bytes(1 << 20))
    assert store.load("kernels", "k39") is not None, "what does not fit throws nothing out"
    assert store.own.collect(200_000) > 0
    assert store.own.file_size() < 300_000


def test_packs_are_merged_and_make_room(tmp_path: Path) -> None:
    for i in range(30):
        packs = Packs(tmp_path, rest=0.0)
        packs.save("kernels", f"k{i:02}", bytes([i]) * 10_000)
        packs.save("records", f"r{i}", b"r")
        packs.save("kernels", "same", bytes([i]) * 10_000)
    packs = Packs(tmp_path, rest=0.0)
    packs.remove("kernels", "k07")
    packs = Packs(tmp_path, rest=0.0)
    assert len(list(tmp_path.glob("*.pack"))) > 10
    packs.collect(1 << 30)
    assert len(list(tmp_path.glob("*.pack"))) <= 2
    fresh = Packs(tmp_path, rest=0.0)
    assert len(fresh.keys("kernels")) == 30
    assert fresh.load("kernels", "same") == bytes([29]) * 10_000
    assert fresh.load("kernels", "k07") is None
    assert packs.file_size() < 320_000, "what was replaced is gone"
    assert fresh.collect(100_000) > 0
    left = Packs(tmp_path, rest=0.0)
    assert left.file_size() <= 100_000
    assert len(left.keys("records")) == 30, "measurements are carried over"


def test_long_pack_has_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packs = Packs(tmp_path)
    for i in range(600):
        packs.save("kernels", f"k{i}", b"%d" % i)
    packs.finish()
    (index,) = tmp_path.glob("*.index")
    packs.save("kernels", "later", b"after the index was written")
    read: list[int] = []
    whole = pack_index.read_frames
    monkeypatch.setattr(pack_index, "read_frames", lambda pack, start: read.append(start) or whole(pack, start))
    fresh = Packs(tmp_path)
    assert len(fresh.keys("kernels")) == 601
    assert read[0] > 600 * 50, "only what stands behind the index is read frame by frame"
    for spoil in (lambda data: data[:-1], lambda data: data.replace(b"k599", b"k598"), lambda data: b""):
        index.write_bytes(spoil(index.read_bytes()))
        assert Packs(tmp_path).load("kernels", "k599") == b"599"
    (pack,) = tmp_path.glob("*.pack")
    pack.write_bytes(pack.read_bytes()[:2000])
    assert Packs(tmp_path).load("kernels", "k0") == b"0"
    pack.unlink()
    assert Packs(tmp_path).load("kernels", "k0") is None
    Packs(tmp_path).collect(1 << 30)
    assert not list(tmp_path.iterdir())


def test_pack_in_use_is_not_touched(tmp_path: Path) -> None:
    for i in range(3):
        Packs(tmp_path).save("kernels", f"k{i}", bytes(1000))
    Packs(tmp_path).collect(0)
    assert len(Packs(tmp_path).keys("kernels")) == 3


def test_torn_end_of_a_pack_is_stepped_over(tmp_path: Path) -> None:
    packs = Packs(tmp_path)
    packs.save("kernels", "a", b"1" * 100)
    packs.save("kernels", "b", b"2" * 100)
    (file,) = tmp_path.glob("*.pack")
    file.write_bytes(file.read_bytes()[:-10])
    fresh = Packs(tmp_path)
    assert fresh.load("kernels", "a") == b"1" * 100
    assert fresh.load("kernels", "b") is None
    assert not fresh.verify(), "an entry that was never whole was never there"
    fresh.save("kernels", "b", b"3")
    assert Packs(tmp_path).load("kernels", "b") == b"3"
