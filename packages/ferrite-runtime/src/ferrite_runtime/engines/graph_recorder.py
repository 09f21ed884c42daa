"""Recording what a device does as a CUDA graph, with torch's graphs, and cleaning up behind a capture that fails.

A capture runs in a stream of its own, one at a time in the process. While it lasts, only calls of its own thread that
wait for the device make it fail, not those of others (``thread_local``): a thread that reads data or watches
collectives waits for events all the time.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ferrite_runtime.process.forking import renewed_in_children

Results = tuple[Any, ...]
Replay = Callable[[], None]

_one_capture = renewed_in_children(threading.Lock())
_failed: list[Any] = []
"""Graphs whose capture failed: torch's allocators may go on asking them what is theirs, so they have to stay."""


class Captures(Protocol):
    """What records work on a device and plays it again."""

    def __call__(self, run: Callable[[], Results], pool: Any) -> tuple[Results, Replay]:
        """Returns the results of ``run``, and a function that computes them again in the same place.

        All memory that ``run`` allocates is of ``pool``. Graphs of one pool use each other's temporary memory: they are
        played in the order in which they were captured.
        """


@dataclass(frozen=True, slots=True)
class Recorder:
    """What graphs need of a device.

    Attributes:
        capture: records work and plays it again.
        is_recorded: whether what is done now is recorded by somebody else.
        follow: makes what comes in the current stream wait for all in the stream that it is given, if it is given one;
            returns the current one.
        wait: returns when the device has nothing left to do.
        make_pool: gives back what memory nobody uses, and returns a new pool.
        is_hooked: whether functions of the user's are given what autograd saves.
        device: the ``torch.device`` of what graphs read and make; None to take what comes.
    """

    capture: Captures
    is_recorded: Callable[[], bool] = lambda: False
    follow: Callable[[Any], Any] = lambda before: None
    wait: Callable[[], None] = lambda: None
    make_pool: Callable[[], Any] = lambda: None
    is_hooked: Callable[[], bool] = lambda: False
    device: Any = None


@dataclass(frozen=True, slots=True)
class CapturePort:
    """What a capture asks of torch.

    Attributes:
        make_graph: returns an empty ``torch.cuda.CUDAGraph``.
        on_stream: a context in which the stream that captures is the current one.
        clear_workspaces: gives up the scratch memory that torch keeps for cuBLAS, for each stream and thread.
        end_allocation: has a pool no longer serve the capture that failed.
        release: has a pool no longer be kept for it.
        touch: has the device do something.
    """

    make_graph: Callable[[], Any]
    on_stream: Callable[[], AbstractContextManager[Any]]
    clear_workspaces: Callable[[], None]
    end_allocation: Callable[[Any], None]
    release: Callable[[Any], None]
    touch: Callable[[], Any]


def torch_recorder(device: Any) -> Recorder:
    """Returns torch's graphs on a device, which is the current one when they are captured and played."""
    import torch

    return Recorder(
        functools.partial(capture_graph, torch_port(device.index)),
        torch.cuda.is_current_stream_capturing,
        _follow,
        torch.cuda.synchronize,
        _make_pool,
        _is_hooked,
        device,
    )


def torch_port(index: int) -> CapturePort:
    """Returns what torch has for captures on its GPU number ``index``."""
    import torch

    return CapturePort(
        torch.cuda.CUDAGraph,
        lambda: torch.cuda.stream(_capture_stream(index)),
        torch._C._cuda_clearCublasWorkspaces,
        functools.partial(torch._C._cuda_endAllocateToPool, index),
        functools.partial(torch._C._cuda_releasePool, index),
        lambda: torch.zeros(1, device=torch.device("cuda", index)),
    )


@functools.cache
def _capture_stream(index: int) -> Any:
    import torch

    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


def _follow(before: Any) -> Any:
    import torch

    current = torch.cuda.current_stream()
    if before is not None and before != current:
        current.wait_stream(before)
    return current


def _make_pool() -> Any:
    import torch

    with _one_capture, suppress(RuntimeError):  # it refuses while somebody captures; memory is all that is lost by that
        torch.cuda.empty_cache()
    return torch.cuda.graph_pool_handle()


def _is_hooked() -> bool:
    """Tells whether hooks for saved tensors are set around this call, which torch has no public name for."""
    import torch

    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # also while something is traced


def capture_graph(port: CapturePort, run: Callable[[], Results], pool: Any) -> tuple[Results, Replay]:
    """Captures work as a CUDA graph, of a device that is the current one.

    cuBLAS has its scratch memory from the pool of the graph: what torch keeps for a stream is given up before and after
    the capture, so that no two programs share it, and nobody frees what a graph still writes to.

    Raises:
        RuntimeError: something in it cannot be captured: it waits for the device, or allocates past torch. The stream
            is the one of before, and random numbers can be drawn.
        BaseException: whatever ``run`` raises.
    """
    with _one_capture, _without_collector(), port.on_stream():
        graph, results = port.make_graph(), ()
        error: BaseException | None = None
        port.clear_workspaces()
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            results = run()
        except BaseException as raised:  # noqa: BLE001 - it is raised below, when the capture has ended
            error = raised
        try:
            graph.capture_end()
        except RuntimeError as raised:
            error = error or raised
            _clean_up(port, graph, pool)
        port.clear_workspaces()
        if error is not None:
            raise error
    return results, graph.replay


@contextmanager
def _without_collector() -> Iterator[None]:
    """Has nothing collected meanwhile: what then dies may be a graph, and to destroy one spoils a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _clean_up(port: CapturePort, graph: Any, pool: Any) -> None:
    """Has torch forget a capture that it could not end.

    Its allocator counts the pool as in use, and refuses to give back memory; its generator of random numbers believes
    that it is captured, and refuses to draw any, until a capture ends as it should.
    """
    _failed.append(graph)
    for undo in (port.end_allocation, port.release):
        with suppress(RuntimeError):
            undo(pool)
    with suppress(RuntimeError):
        spare = port.make_graph()
        spare.capture_begin(capture_error_mode="thread_local")
        port.touch()
        spare.capture_end()
