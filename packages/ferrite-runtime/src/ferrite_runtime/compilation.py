"""From a job to its binary: this process's memory first, then the store, then a compile worker."""

from __future__ import annotations

import functools
import logging
import os
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from ferrite_runtime.binary import Binary, CorruptEntry
from ferrite_runtime.canonical import digest
from ferrite_runtime.errors import FerriteRuntimeError
from ferrite_runtime.options import Options
from ferrite_runtime.pool import shared_pool
from ferrite_runtime.settings import read_settings
from ferrite_runtime.store import DiskStore, MemoryStore, Store
from ferrite_runtime.triton_adapter import Job, triton_version

_LOG = logging.getLogger("ferrite_runtime")

# Raised whenever a stored binary would mean something else to a newer runtime.
RUNTIME_FORMAT = 1
KERNELS = "kernels"


@functools.cache
def _device_functions() -> str:
    """Returns a digest of the device functions, which become part of every kernel that calls them."""
    sources = sorted(Path(__file__).with_name("fmath").glob("*.py"))
    return digest([source.read_text(encoding="utf-8") for source in sources])


@functools.cache
def _environment() -> tuple[str, ...]:
    return (triton_version(), _device_functions())


def job_key(job: Job) -> str:
    """Returns the identity of a job's binary: kernel, config, target, alignment, compiler, device functions."""
    return digest(
        [RUNTIME_FORMAT, job.spec.id, job.config.to_mapping(), job.target.to_mapping(), job.aligned, *_environment()]
    )


class Submits(Protocol):
    """What compiles jobs: a pool, or a fake."""

    def submit(self, job: Job, seconds: float = 300.0) -> Future[Binary]:
        """Returns the future of the compiled job."""


class Compiler:
    """Compiles jobs, each at most once; safe to use from several threads."""

    def __init__(self, pool: Submits, store: Store, seconds: float = 300.0) -> None:
        self._pool = pool
        self._store = store
        self._seconds = seconds
        # Reentrant, because a pool without workers is done before it returns.
        self._lock = threading.RLock()
        self._futures: dict[str, Future[Binary]] = {}
        self._pid = os.getpid()

    def submit(self, job: Job) -> Future[Binary]:
        """Returns the future of a job's binary; equal jobs share one."""
        key = job_key(job)
        if self._pid != os.getpid():
            self._start_over()
        with self._lock:
            future = self._futures.get(key)
            if future is None:
                future = self._futures[key] = self._begin(job, key)
        return future

    def _start_over(self) -> None:
        """Forgets what the parent of a forked process was still compiling: nobody will finish it here."""
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._futures = {key: future for key, future in self._futures.items() if future.done()}

    def _begin(self, job: Job, key: str) -> Future[Binary]:
        stored = self._read(key)
        if stored is not None:
            done: Future[Binary] = Future()
            done.set_result(stored)
            return done
        future = self._pool.submit(job, self._seconds)
        future.add_done_callback(lambda done: self._finish(key, done))
        return future

    def _read(self, key: str) -> Binary | None:
        data = self._store.load(KERNELS, key)
        if data is None:
            return None
        try:
            return Binary.from_bytes(data)
        except (CorruptEntry, ValueError) as error:
            _LOG.warning("kernel %s in the store is corrupt, it is compiled again: %s", key[:12], error)
            self._store.remove(KERNELS, key)
            return None

    def _finish(self, key: str, done: Future[Binary]) -> None:
        if done.exception() is None:
            self._store.save(KERNELS, key, done.result().to_bytes())
        elif not isinstance(done.exception(), FerriteRuntimeError):
            with self._lock:
                self._futures.pop(key, None)


@functools.cache
def disk_store(root: Path) -> DiskStore:
    """Returns the process's store in a folder."""
    return DiskStore(root / f"v{RUNTIME_FORMAT}")


@functools.cache
def memory_store() -> MemoryStore:
    """Returns the process's store in memory."""
    return MemoryStore()


def choose_store(options: Options) -> Store:
    """Returns the store that the options and the environment ask for."""
    return disk_store(read_settings().cache_dir) if options.use_cache else memory_store()


_COMPILERS: dict[tuple[int | None, float, int], Compiler] = {}


def shared_compiler(options: Options) -> Compiler:
    """Returns the compiler that all programs with such options share."""
    store = choose_store(options)
    key = (options.workers, options.compile_seconds, id(store))
    if key not in _COMPILERS:
        _COMPILERS[key] = Compiler(shared_pool(options.workers), store, options.compile_seconds)
    return _COMPILERS[key]
