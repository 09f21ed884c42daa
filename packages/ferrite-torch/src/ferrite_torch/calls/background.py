"""Graphs that are compiled beside their calls: these run op by op until the program is there, and are switched then.

    a call ──► graph.run ──► waits until the deadline, if there is one ──► graph.eager
                  ▲
                  └── set once, by the thread that does the rest: schedule, write, load, wait for the workers

Both ways take and give tensors in the same strides, so a forward and its backward switch at different calls, in any
order (decision 0053).
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ferrite_runtime.process.forking import renewed_in_children, reset_in_children
from ferrite_torch.calls.compiled_graph import Boxed, CompiledGraph
from ferrite_torch.diagnostics.logs import BACKGROUND
from ferrite_torch.diagnostics.statistics import record_settled, record_waiting
from ferrite_torch.thresholds import INTERPRETER

_NO_DEVICE = -1
"""What `torch.cuda.device` takes for leaving the device as it is."""


class _Process:
    """What the background threads of a process share."""

    def __init__(self) -> None:
        self.turn = renewed_in_children(threading.Lock())
        self.is_ending = False
        self._usual: float | None = None

    def end(self) -> None:
        """Has threads say nothing of what fails because the process ends."""
        self.is_ending = True

    @contextmanager
    def making(self) -> Iterator[None]:
        """Has one thread at a time make programs, which calls do not wait for longer than they must."""
        with self.turn:
            self._usual = sys.getswitchinterval()
            sys.setswitchinterval(min(self._usual, INTERPRETER.turn_seconds))
            try:
                yield
            finally:
                self.restore()

    def restore(self) -> None:
        """Gives threads their usual time again."""
        if self._usual is not None:
            sys.setswitchinterval(self._usual)
            self._usual = None


_process = _Process()
reset_in_children(_process.restore)
atexit.register(_process.end)


class _Beside:
    """The compilation of one graph that goes on beside its calls."""

    def __init__(self, graph: CompiledGraph, kind: str, seconds: float, give_up: Callable[[Exception], None]) -> None:
        self._graph, self._kind, self._give_up = graph, kind, give_up
        self._began = time.monotonic()
        self._deadline = self._began + seconds
        self._device = torch.cuda.current_device() if _has_used_cuda() else _NO_DEVICE
        self._lock = renewed_in_children(threading.Lock())
        self._eager_calls = 0
        self._pid = 0
        self._settled = threading.Event()

    def start(self) -> None:
        """Starts the thread that does the rest."""
        self._settled = threading.Event()
        self._pid = os.getpid()  # calls of other threads go on from here
        # The process does not wait for it when it ends.
        threading.Thread(target=self._work, name="ferrite-background", daemon=True).start()

    def call(self, arguments: list[Any]) -> Any:
        """Runs the graph: compiled, if that comes in time, else op by op."""
        if self._pid != os.getpid():
            self._start_again()
        left = self._deadline - time.monotonic()
        if left > 0:
            self._settled.wait(min(left, threading.TIMEOUT_MAX))
        if self._settled.is_set():
            return self._graph.run(arguments)
        with self._lock:
            self._eager_calls += 1
        return self._graph.eager(arguments)

    def _start_again(self) -> None:
        """Starts anew in a forked child, which has no thread of its parent's but the one that forked."""
        with self._lock:
            if self._pid != os.getpid():
                self.start()

    def _work(self) -> None:
        is_ready = False
        try:
            with torch.cuda.device(self._device):
                run = self._compiled()
            is_ready = True
        except Exception as error:  # noqa: BLE001  # of any layer, and whatever the compiler of kernels raises
            if _process.is_ending:
                return
            run = self._without(error)
        self._graph.run, self._graph.rest = run, None
        record_settled(self, is_ready=is_ready)
        seconds = time.monotonic() - self._began
        state = "ready, calls are compiled from now on" if is_ready else "given up, calls stay as they are"
        BACKGROUND.info("%s graph: %s (%.2f s, %d calls ran eagerly)", self._kind, state, seconds, self._eager_calls)
        self._settled.set()

    def _compiled(self) -> Boxed:
        assert self._graph.rest is not None
        with _process.making():
            compiled = self._graph.rest()
        compiled.wait()
        return compiled.run

    def _without(self, error: Exception) -> Boxed:
        """Returns what calls do instead: run op by op, or raise."""
        try:
            self._give_up(error)
        except Exception as raised:  # noqa: BLE001  # it is the caller's
            return _raising(raised)
        return self._graph.eager


def _has_used_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _raising(error: Exception) -> Boxed:
    trace = error.__traceback__

    def run(arguments: list[Any]) -> Any:
        raise error.with_traceback(trace)  # each time as it was

    return run


def go_on_beside(graph: CompiledGraph, kind: str, seconds: float, give_up: Callable[[Exception], None]) -> None:
    """Has the rest of a graph's compilation done beside its calls.

    Args:
        graph: the graph, which runs op by op.
        kind: ``forward``, ``backward`` or ``inference``, for the log.
        seconds: for which calls wait for it, from now on.
        give_up: is told what went wrong, in the background; what it raises, later calls raise.
    """
    beside = _Beside(graph, kind, seconds, give_up)
    record_waiting(beside)
    BACKGROUND.info("%s graph: waiting, calls run eagerly after %g s until it is ready", kind, seconds)
    graph.run = beside.call
    beside.start()
