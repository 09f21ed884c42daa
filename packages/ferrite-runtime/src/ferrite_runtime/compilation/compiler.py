"""From a job to its binary: this process's memory first, then the store, then a compile worker."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from ferrite_runtime.compilation.triton_adapter import Job, is_triton_installed, triton_version
from ferrite_runtime.compilation.worker_pool import CompilePool, shared_pool
from ferrite_runtime.errors import FerriteRuntimeError, NoVariantForTarget, TrustNeeded
from ferrite_runtime.formats.binary import Binary, CorruptEntry
from ferrite_runtime.formats.canonical_json import digest
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Measurement
from ferrite_runtime.formats.target import Target
from ferrite_runtime.kernel_source.allowed_text import check_text
from ferrite_runtime.kernel_source.provenance import HERE, Provenance
from ferrite_runtime.process.environment_variables import read_settings
from ferrite_runtime.process.forking import renewed_in_children
from ferrite_runtime.process.options import Options
from ferrite_runtime.process.store_addresses import StoreAddress
from ferrite_runtime.store.interface import MemoryStore, Store, save_record
from ferrite_runtime.store.layers import LayeredStore

_LOG = logging.getLogger("ferrite_runtime")
_CACHE_LOG = logging.getLogger("ferrite.cache")

# Raised whenever a stored binary would mean something else to a newer runtime.
RUNTIME_FORMAT = 3
KERNELS = "kernels"
JOBS = "jobs"
"""The kind of notes on what binaries were built from: `cache why-miss` compares them."""


@functools.cache
def _device_functions() -> str:
    """Returns a digest of the device functions, which become part of every kernel that calls them."""
    sources = sorted((Path(__file__).parents[1] / "fmath").glob("*.py"))
    return digest([source.read_text(encoding="utf-8") for source in sources])


@functools.cache
def _environment() -> tuple[str, ...]:
    return (triton_version(), _device_functions())


def environment_facts() -> dict[str, Any]:
    """Returns what binaries depend on beside their job."""
    compiler, functions = _environment()
    return {"format": RUNTIME_FORMAT, "compiler": compiler, "device_functions": functions[:12]}


def job_note(job: Job) -> dict[str, Any]:
    """Returns what the key of a job's binary was made of, for people."""
    names = {"kernel": job.spec.id, "name": job.spec.name, "config": job.config.to_mapping()}
    return {**names, "target": str(job.target), "aligned": job.aligned, **environment_facts()}


def job_key(job: Job) -> str:
    """Returns the identity of a job's binary: kernel, config, target, promises, compiler, device functions."""
    form = [*(["ptx"] if job.wants_ptx else []), *(["pdl"] if job.uses_pdl else [])]
    promised = [job.aligned, [list(pair) for pair in job.divisors]] if job.divisors else [job.aligned]
    facts = [RUNTIME_FORMAT, job.spec.id, job.config.to_mapping(), job.target.to_mapping(), *promised, *form]
    return digest([*facts, *_environment()])


class Submits(Protocol):
    """What compiles jobs: a pool, or a fake."""

    def submit(self, job: Job, seconds: float = 300.0) -> Future[Binary]:
        """Returns the future of the compiled job."""


class Library(Protocol):
    """Kernels that were compiled beforehand."""

    def find(self, job: Job) -> Binary | None:
        """Returns a binary that does a job's work, or None."""

    def configs(self, spec: KernelSpec, target: Target) -> tuple[Config, ...]:
        """Returns the configs of a kernel that there are binaries of for a target, the default first."""

    def measurements(self, kernel: str) -> Sequence[Measurement]:
        """Returns what was measured of a kernel before the library was made."""


class Compiler:
    """Compiles jobs, each at most once; safe to use from several threads.

    What a library of prebuilt kernels has is not compiled, nor is text that may not be run, coming from where it does
    (``provenance``). ``sources`` tells by key where the binary of each job so far came from: ``prebuilt``, ``stored``
    or ``compiled``.
    """

    def __init__(
        self,
        pool: Submits,
        store: Store,
        seconds: float = 300.0,
        library: Library | None = None,
        provenance: Provenance = HERE,
    ) -> None:
        self.library = library
        self._provenance = provenance
        self.sources: dict[str, str] = {}
        self._pool = pool
        self._store = store
        self._seconds = seconds
        # Reentrant, because a pool without workers is done before it returns.
        self._lock = renewed_in_children(threading.RLock())
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

    def prefetch(self, jobs: Iterable[Job]) -> None:
        """Brings near the binaries of jobs that will be submitted, but for those that came prebuilt.

        Jobs are looked at only where the store has a part that is far.
        """
        self._store.prefetch(KERNELS, self._not_begun(jobs))

    def _not_begun(self, jobs: Iterable[Job]) -> Iterator[str]:
        """Yields the keys of jobs that are neither begun nor prebuilt."""
        for job in jobs:
            key = job_key(job)
            with self._lock:
                is_begun = key in self._futures
            if not is_begun and (self.library is None or self.library.find(job) is None):
                yield key

    def _start_over(self) -> None:
        """Forgets what the parent of a forked process was still compiling: nobody will finish it here."""
        self._pid = os.getpid()
        self._futures = {key: future for key, future in self._futures.items() if future.done()}

    def _begin(self, job: Job, key: str) -> Future[Binary]:
        found = None if self.library is None else self.library.find(job)
        if found is not None:
            self._note(job, key, "prebuilt")
            return _done(found)
        stored = self._read(key)
        if stored is not None:
            self._note(job, key, "stored")
            return _done(stored)
        if not self.compiles():
            return _failed(_missing_binary(job, self.library))
        try:
            check_text(job.spec, self._provenance)
        except TrustNeeded as error:
            return _failed(error)
        self._note(job, key, "compiled")
        future = self._pool.submit(job, self._seconds)
        future.add_done_callback(lambda done: self._finish(job, key, done))
        return future

    def _note(self, job: Job, key: str, source: str) -> None:
        self.sources[key] = source
        _CACHE_LOG.info("kernel %s (%s) for %s: %s, under %s", job.spec.name, job.config, job.target, source, key[:12])

    def compiles(self) -> bool:
        """Tells whether a kernel that has no binary yet could be compiled here."""
        return not isinstance(self._pool, CompilePool) or is_triton_installed()

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

    def _finish(self, job: Job, key: str, done: Future[Binary]) -> None:
        if done.exception() is None:
            self._store.save(KERNELS, key, done.result().to_bytes())
            save_record(self._store, JOBS, f"{job.spec.id}-{key}", job_note(job))
        elif not isinstance(done.exception(), FerriteRuntimeError):
            with self._lock:
                self._futures.pop(key, None)


def _done(binary: Binary) -> Future[Binary]:
    future: Future[Binary] = Future()
    future.set_result(binary)
    return future


def _failed(error: Exception) -> Future[Binary]:
    future: Future[Binary] = Future()
    future.set_exception(error)
    return future


def _missing_binary(job: Job, library: Library | None) -> NoVariantForTarget:
    where = "" if library is None else "the bundle has no binary of it, "
    return NoVariantForTarget(
        f"kernel {job.spec.name} ({job.config}) cannot run on {job.target}: {where}triton is not installed to make one"
    )


@functools.cache
def disk_store(
    root: Path, shared: tuple[Path | StoreAddress, ...] = (), limit: int = 0, form: str = "auto"
) -> LayeredStore:
    """Returns the process's store in a folder."""
    return LayeredStore(root, shared, limit, form)


@functools.cache
def memory_store() -> MemoryStore:
    """Returns the process's store in memory."""
    return MemoryStore()


def choose_store(options: Options) -> Store:
    """Returns the store that the options and the environment ask for."""
    if not options.use_cache:
        return memory_store()
    settings = read_settings()
    return disk_store(settings.cache_dir, settings.shared, settings.cache_limit, settings.cache_form)


_COMPILERS: dict[tuple[int | None, float, int], Compiler] = {}


def shared_compiler(options: Options) -> Compiler:
    """Returns the compiler that all programs with such options share."""
    store = choose_store(options)
    key = (options.workers, options.compile_seconds, id(store))
    if key not in _COMPILERS:
        _COMPILERS[key] = Compiler(shared_pool(options.workers), store, options.compile_seconds)
    return _COMPILERS[key]
