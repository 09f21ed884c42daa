"""The store: entries come back whole or not at all, whoever writes at the same time."""

from __future__ import annotations

import logging
import multiprocessing
import os
from concurrent.futures import Future
from pathlib import Path

import pytest

from ferrite_runtime.binary import Binary, CorruptEntry, seal, unseal
from ferrite_runtime.compilation import KERNELS, Compiler, job_key
from ferrite_runtime.config import Config
from ferrite_runtime.errors import CacheUnwritable
from ferrite_runtime.settings import read_settings, worker_environment
from ferrite_runtime.spec import KernelSpec
from ferrite_runtime.store import DiskStore, MemoryStore, load_record, load_sealed, save_record
from ferrite_runtime.target import Target
from ferrite_runtime.triton_adapter import Job
from runtime_fakes import FakePool
from runtime_kernels import pointwise

JOB = Job(KernelSpec.from_mapping(pointwise("a + 1")), Config.of({"XBLOCK": 256}, 4), Target.parse("sm_90"))


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path):
    return DiskStore(tmp_path / "store") if request.param == "disk" else MemoryStore()


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


def test_many_processes_share_one_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=write_and_read, args=(str(tmp_path), worker)) for worker in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    content = unseal(DiskStore(tmp_path).load("kernels", "feed"))
    assert len(set(content)) == 1
    assert not list(tmp_path.rglob(".new-*")), "no file is left aside"


def write_and_read(root: str, worker: int) -> None:
    store = DiskStore(Path(root))
    for i in range(60):
        store.save("kernels", "feed", seal(bytes([worker]) * (100_000 + i)))
        assert len(set(unseal(store.load("kernels", "feed")))) == 1


@pytest.mark.skipif(os.getuid() == 0, reason="the superuser may write anywhere")
def test_read_only_folder_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    store = DiskStore(tmp_path)
    with pytest.warns(CacheUnwritable, match=r"cannot be written.*FERRITE_CACHE_DIR"):
        store.save("kernels", "abcd", b"data")
    assert store.load("kernels", "abcd") is None


def test_folder_that_cannot_exist_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = DiskStore(tmp_path / "file" / "store")
    with pytest.warns(CacheUnwritable, match="cannot be used"):
        store.save("kernels", "abcd", b"data")
    assert store.load("kernels", "abcd") is None, "and there is no second warning, which would be an error here"


def test_folder_of_somebody_else_is_not_read(tmp_path: Path, monkeypatch) -> None:
    DiskStore(tmp_path).save("kernels", "abcd", b"data")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    os.chown(tmp_path, 54321, -1) if os.geteuid() == 0 else pytest.skip("only the superuser gives files away")
    with pytest.warns(CacheUnwritable, match="belongs to user 54321"):
        assert DiskStore(tmp_path).load("kernels", "abcd") is None


def test_new_folder_is_private(tmp_path: Path) -> None:
    DiskStore(tmp_path / "store").save("kernels", "abcd", b"data")
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0


def test_folder_comes_from_the_environment() -> None:
    assert read_settings({"FERRITE_CACHE_DIR": "/a", "HOME": "/h"}).cache_dir == Path("/a")
    assert read_settings({"XDG_CACHE_HOME": "/x", "HOME": "/h"}).cache_dir == Path("/x/ferrite")
    assert read_settings({"HOME": "/h"}).cache_dir == Path("/h/.cache/ferrite")
    assert read_settings({}).cache_dir.name.startswith("ferrite-")


def test_worker_environment_compiles_without_line_numbers(monkeypatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    environment = worker_environment(["", "/p", "/q"], "/scratch")
    assert "TRITON_INTERPRET" not in environment
    assert environment["TRITON_DISABLE_LINE_INFO"] == "1"
    assert environment["PYTHONPATH"] == f"/p{os.pathsep}/q"
