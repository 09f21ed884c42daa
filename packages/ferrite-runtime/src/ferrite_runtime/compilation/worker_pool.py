"""A pool of compile worker processes: started when there is work, replaced when they die, gone with this process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ferrite_runtime.compilation.triton_adapter import Job, compile_job, is_interpreting
from ferrite_runtime.compilation.worker_messages import encode_frame, read_frame
from ferrite_runtime.errors import WorkerError, compile_failure
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.process.environment_variables import worker_environment
from ferrite_runtime.process.forking import renewed_in_children, reset_in_children

_LOG = logging.getLogger("ferrite_runtime")

MAX_WORKERS = 16
IDLE_SECONDS = 120.0
START_SECONDS = 120.0
REAPING_SECONDS = 2.0
ATTEMPTS = 2
"""How often a job is tried whose worker ends, hangs or answers nonsense; one that crashes does so every time."""
CRASHES = frozenset((signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS, signal.SIGFPE))


def default_workers() -> int:
    """Returns the number of workers to use: one per core that this process may run on, 16 at most."""
    return max(1, min(MAX_WORKERS, len(os.sched_getaffinity(0))))


class _Crashed(WorkerError):
    """The compiler itself ended a worker process, by an invalid access or an abort."""

    hint = "another config of the kernel is taken where one compiles; report the kernel to Triton"


class Worker:
    """One worker process and the pipes to it; ``title`` is what messages call it."""

    def __init__(self, process: subprocess.Popen[bytes], scratch: str, log: Any, title: str = "compile worker") -> None:
        self.process = process
        self.title = title
        self._scratch = scratch
        self._log = log

    @classmethod
    def start(cls, command: list[str] | None = None, title: str = "compile worker") -> Worker:
        """Starts a worker process.

        Raises:
            WorkerError: if no process can be started.
        """
        command = command or [sys.executable, "-P", "-m", "ferrite_runtime.compilation.worker"]
        scratch = tempfile.mkdtemp(prefix="ferrite-worker-")
        log = tempfile.TemporaryFile()  # noqa: SIM115  # the worker object closes it
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=worker_environment(sys.path, scratch),
                # An interrupt at the terminal is for the parent, which then ends its workers in order.
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise WorkerError(f"a {title} does not start: {error}") from error
        return cls(process, scratch, log, title)

    def receive(self, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Returns the next message.

        Raises:
            WorkerError: if none is complete within ``seconds``, or the process died.
        """
        deadline = time.monotonic() + seconds
        stream = self.process.stdout
        assert stream is not None

        # Not select, which refuses descriptors above 1023; a process that trains has more files open.
        poll = select.poll()
        poll.register(stream, select.POLLIN)

        def read(size: int) -> bytes:
            parts = bytearray()
            while len(parts) < size:
                left = deadline - time.monotonic()
                if left <= 0 or not poll.poll(1000 * left):
                    raise WorkerError(f"a {self.title} gave no answer within {seconds:.0f} s")
                part = os.read(stream.fileno(), size - len(parts))
                if not part:
                    break
                parts += part
            return bytes(parts)

        frame = read_frame(read)
        if frame is None:
            raise self._death()
        return frame

    def send(self, message: bytes) -> None:
        """Sends a message; raises `WorkerError` if the process is gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(message)
            self.process.stdin.flush()
        except (BrokenPipeError, OSError, ValueError) as error:
            raise self._death() from error

    def _death(self) -> WorkerError:
        """Returns what to say of a process whose pipe is closed, with what it wrote last."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(REAPING_SECONDS)
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        text = self._log.read().decode(errors="replace").strip()
        words = f":\n{text}" if text else ""
        if code is not None and -code in CRASHES:
            return _Crashed(f"the compiler crashed ({signal.Signals(-code).name}){words}")
        return WorkerError(f"a {self.title} died{'' if code is None else f' with status {code}'}{words}")

    def kill(self) -> None:
        """Ends the process and removes its files; what waits for an answer learns that the process died."""
        self.process.kill()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def close(self) -> None:
        """Ends the process and releases everything that belongs to it."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _encode_job(job: Job) -> bytes:
    return encode_frame(
        {
            "spec": job.spec.to_mapping(),
            "config": job.config.to_mapping(),
            "target": job.target.to_mapping(),
            "aligned": job.aligned,
            "wants_ptx": job.wants_ptx,
            "divisors": job.divisors,
        }
    )


class CompilePool:
    """Compiles jobs in worker processes; with 0 workers, in this process, when they are submitted.

    Where this process interprets kernels (``TRITON_INTERPRET=1``) it cannot compile any; 0 workers then are one.

    Args:
        workers: the number of processes at most.
        start: makes a worker; tests pass their own.
        idle_seconds: a worker that had nothing to do for so long is ended.
    """

    def __init__(
        self, workers: int, start: Callable[[], Worker] = Worker.start, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self.workers = workers
        self._start = start
        self._idle_seconds = idle_seconds
        self._begin()

    def _begin(self) -> None:
        self._lock = renewed_in_children(threading.Lock())
        self._queue: queue.SimpleQueue[tuple[Job | None, float, Future[Binary]]] = queue.SimpleQueue()
        self._threads = 0
        self._waiting = 0
        self._running = 0
        self._live: set[Worker] = set()
        self._closed = False
        self._pid = os.getpid()

    def submit(self, job: Job, seconds: float = 300.0) -> Future[Binary]:
        """Returns the future of the compiled job; ``seconds`` is the time after which its worker counts as hung."""
        future: Future[Binary] = Future()
        if self.workers == 0 and sys.executable and is_interpreting():
            # Workers do not interpret, whatever the environment of this process says.
            return shared_pool(1).submit(job, seconds)
        if self.workers == 0:
            _settle(future, lambda: compile_job(job))
        else:
            self._enqueue(job, seconds, future)
        return future

    def warm_up(self) -> None:
        """Starts all workers now, so that they have imported Triton by the time there is work."""
        for _ in range(self.workers):
            self._enqueue(None, START_SECONDS, Future())

    def _enqueue(self, job: Job | None, seconds: float, future: Future[Binary]) -> None:
        if self._pid != os.getpid():
            # A forked child has neither the threads nor, in any useful sense, the workers of its parent.
            self._begin()
        with self._lock:
            if self._closed:
                raise WorkerError("the compile pool is closed")
            self._waiting += 1
            self._queue.put((job, seconds, future))
            if self._threads < min(self.workers, self._running + self._waiting):
                self._threads += 1
                threading.Thread(target=self._work, name="ferrite-compile", daemon=True).start()

    def _work(self) -> None:
        """Serves one worker process until there has been nothing to do for a while."""
        worker: Worker | None = None
        try:
            while True:
                try:
                    job, seconds, future = self._queue.get(timeout=self._idle_seconds)
                except queue.Empty:
                    with self._lock:
                        if self._waiting:
                            continue
                        self._threads -= 1
                    return
                with self._lock:
                    self._waiting -= 1
                    self._running += 1
                worker = self._serve(worker, job, seconds, future)
                with self._lock:
                    self._running -= 1
        finally:
            self._discard(worker)

    def _serve(self, worker: Worker | None, job: Job | None, seconds: float, future: Future[Binary]) -> Worker | None:
        """Does one job, on a fresh process if need be; returns the process to go on with."""
        problem = WorkerError("a compile worker does not start")
        for _ in range(ATTEMPTS):
            try:
                if worker is None:
                    worker = self._open()
                if job is None:
                    return worker
                worker.send(_encode_job(job))
                head, code = worker.receive(seconds)
            except WorkerError as error:
                self._discard(worker)
                worker = None
                if self._closed:
                    # Whoever closed the pool ended its workers: their deaths are no news.
                    problem = WorkerError("the compile pool is closed")
                    break
                problem = error
                what = f"kernel {job.spec.name} ({job.config})" if job is not None else "starting"
                if isinstance(error, _Crashed):
                    _LOG.info("%s: %s", what, error)
                    break
                _LOG.warning("%s: %s", what, error)
                continue
            _settle(future, functools.partial(_read_answer, job, head, code))
            return worker
        if job is not None:
            future.set_exception(compile_failure(job.spec, str(problem)))
        return worker

    def _open(self) -> Worker:
        worker = self._start()
        with self._lock:
            self._live.add(worker)
            if self._closed:  # meanwhile, by someone who did not see this worker
                worker.kill()
        try:
            worker.receive(START_SECONDS)
        except WorkerError:
            self._discard(worker)
            raise
        return worker

    def _discard(self, worker: Worker | None) -> None:
        if worker is not None:
            with self._lock:
                self._live.discard(worker)
            worker.close()

    def close(self) -> None:
        """Ends all workers; jobs that are not done fail."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            live = list(self._live)
        for worker in live:
            worker.kill()


def _read_answer(job: Job, head: dict[str, Any], code: bytes) -> Binary:
    if head.get("ok") is True:
        return Binary.from_header(head["header"], code)
    raise compile_failure(job.spec, head.get("message", "the worker gave no reason"))


def _settle(future: Future[Binary], compute: Callable[[], Binary]) -> None:
    try:
        future.set_result(compute())
    except Exception as error:  # noqa: BLE001  # whoever waits for the future gets it
        future.set_exception(error)


# --- the pool that a process shares ---------------------------------------------------------------------------------


class _Shared:
    """The pools of this process by number of workers."""

    def __init__(self) -> None:
        self.lock = renewed_in_children(threading.Lock())
        self.pools: dict[int, CompilePool] = {}


_SHARED = _Shared()


def shared_pool(workers: int | None = None) -> CompilePool:
    """Returns this process's pool with so many workers (None: the default number), made on first use."""
    count = default_workers() if workers is None else workers
    if count > 0 and not sys.executable:
        count = 0  # an embedded interpreter has no command to start workers with
    with _SHARED.lock:
        if count not in _SHARED.pools:
            _SHARED.pools[count] = CompilePool(count)
        return _SHARED.pools[count]


def _forget_pools() -> None:
    # A forked child inherits pipes that belong to the parent's conversation with its workers.
    _SHARED.pools.clear()


def _close_pools() -> None:
    for pool in _SHARED.pools.values():
        pool.close()


reset_in_children(_forget_pools)
atexit.register(_close_pools)
