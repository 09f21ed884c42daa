"""Worker processes that check operators; one that crashes, hangs or loses its GPU context is replaced.

A job is an operator at one dtype with some ways of running it. What a lost worker was at counts as failed, and the rest
of its job goes to the next worker.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_RAISED = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b|File ")
"""The lines of a traceback that say what was raised, and where."""
WORKER = Path(__file__).with_name("op_worker.py")
START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Job:
    """An operator at one dtype, the ways to run it, and the greatest number of sample calls."""

    op: str
    variant: str
    dtype: str
    ways: tuple[str, ...]
    most: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.op, self.variant, self.dtype

    def text(self) -> str:
        """Returns the job as the line that a worker reads."""
        fields = {"op": self.op, "variant": self.variant, "dtype": self.dtype, "ways": self.ways, "most": self.most}
        return json.dumps(fields) + "\n"


class Lost(Exception):
    """A worker is gone, for this reason."""


class Worker:
    """One process; what it wrote to standard error since it was given its last job is kept for a report."""

    def __init__(self, device: str, gpu: str | None = None) -> None:
        self.begun = 0  # where in the log the last job begins
        self.log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(WORKER), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            start_new_session=True,  # it may have a child, which ends with it
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONFAULTHANDLER": "1",
                **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}),
            },
        )
        self.buffer = b""
        try:
            self.expect(START_SECONDS)
        except Lost:
            self.end()
            raise

    def expect(self, seconds: float) -> dict[str, Any]:
        """Returns the worker's next event.

        Raises:
            Lost: it ended, or said nothing for so long.
        """
        assert self.process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise Lost(f"hang: nothing for {seconds:.0f} s")
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise Lost(f"crash: exit code {self.process.wait()}; {self.last_words()}")
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        if "lost" in event:
            raise Lost(f"crash: {event['lost']}")
        return event

    def renewed(self) -> Worker | None:
        """Returns the worker once another process serves in it; None if none does."""
        try:
            self.expect(START_SECONDS)
        except Lost:
            self.end()
            return None
        return self

    def give(self, job: Job) -> None:
        """Hands the worker a job."""
        assert self.process.stdin is not None
        self.begun = self.log_size()
        self.process.stdin.write(job.text().encode())
        self.process.stdin.flush()

    def last_words(self) -> str:
        """Returns the line of standard error that tells most about why the process ended."""
        begun = max(self.begun, self.log_size() - 20_000)
        written = os.pread(self.log.fileno(), 20_000, begun).decode(errors="replace")
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        telling = [line for line in lines if line.startswith("Fatal") or _RAISED.match(line) or "ssertion" in line]
        return " | ".join((telling or lines or [""])[-2:])[:600]

    def log_size(self) -> int:
        return os.fstat(self.log.fileno()).st_size

    def end(self) -> None:
        """Ends the process."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            with suppress(BrokenPipeError):  # what it was given last may still be in the first
                if pipe is not None:
                    pipe.close()


@dataclass(slots=True)
class Pool:
    """Runs jobs on several workers.

    Attributes:
        device: what operators run on.
        count: the number of workers.
        seconds: the time that one way of one job may take.
        deadline: the `time.monotonic` after which no job is begun.
        gpus: the GPUs, as CUDA_VISIBLE_DEVICES names them, that workers take turns in; none leaves them all visible.
    """

    device: str
    count: int
    seconds: float
    deadline: float
    gpus: tuple[str, ...] = ()

    def run(self, jobs: Iterable[Job], report: Callable[[Job, dict[str, Any]], None]) -> list[Job]:
        """Calls ``report`` with the outcomes by way of each job as it ends; returns the jobs that were not run."""
        left = deque(jobs)
        lock = threading.Lock()
        gpus = self.gpus or (None,)
        threads = [
            threading.Thread(target=self._serve, args=(left, lock, report, gpus[number % len(gpus)]))
            for number in range(min(self.count, len(left)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return list(left)

    def _serve(
        self, left: deque[Job], lock: threading.Lock, report: Callable[[Job, dict[str, Any]], None], gpu: str | None
    ) -> None:
        worker: Worker | None = None
        try:
            while time.monotonic() < self.deadline:
                with lock:
                    if not left:
                        return
                    job = left.popleft()
                found: dict[str, Any] = {}
                while len(found) < len(job.ways):
                    rest = replace(job, ways=job.ways[len(found) :])
                    worker = self._attempt(worker, rest, found, gpu)
                with lock:
                    report(job, found)
        finally:
            if worker is not None:
                worker.end()

    def _attempt(self, worker: Worker | None, job: Job, found: dict[str, Any], gpu: str | None) -> Worker | None:
        """Runs a job, entering outcomes by way; returns the worker if it can go on."""
        try:
            worker = worker or Worker(self.device, gpu)
            worker.give(job)
            while "done" not in (event := worker.expect(self.seconds)):
                found[event["way"]] = event["outcome"]
            return worker.renewed() if event.get("last") else worker
        except (Lost, BrokenPipeError) as error:
            lost = next((way for way in job.ways if way not in found), None)
            if lost is not None:
                found[lost] = {"status": "fail", "samples": 0, "reasons": [str(error)], "externs": {}, "aten": []}
            if worker is not None:
                worker.end()
            return None


def visible_gpus(device: str) -> tuple[str, ...]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; none for another device type."""
    if device != "cuda":
        return ()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return tuple(named.split(","))
    import torch

    return tuple(map(str, range(torch.cuda.device_count())))
