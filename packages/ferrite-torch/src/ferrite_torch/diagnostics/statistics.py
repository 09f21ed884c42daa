"""What the backend has done in this process: counts, reasons and times, for users, tests and benchmarks."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from ferrite_runtime.engines.cuda_graphs import capture_counts
from ferrite_runtime.process.forking import renewed_in_children
from ferrite_torch.torch_private.dynamo_state import counted_breaks

KEPT_PROGRAMS = 256
"""Number of compiled programs that `compiled_programs` remembers; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """The record of one compiled graph.

    Attributes:
        kind: ``forward``, ``backward`` or ``inference``.
        program: the program as a mapping, in the format of docs/kernel-spec.md.
        externs: ``(op, reason)`` for each extern call, in program order.
        seconds: compile seconds by phase.
        is_recalled: whether it came out of the store instead of being compiled.
        names: what the user's program calls symbols of the program's sizes.
        schedule: the schedule that the program was written from, where somebody observes (`observed`).
        uncaptured: ``(op, reason)`` for what runs from the host, where CUDA graphs are asked for.
    """

    kind: str
    program: Mapping[str, Any]
    externs: tuple[tuple[str, str], ...]
    seconds: Mapping[str, float]
    is_recalled: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    schedule: Any = field(default=None, repr=False, compare=False)
    uncaptured: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Ledger:
    """What is counted: of the process, or apart from it for an observer."""

    graphs: int = 0
    recalled: int = 0
    kernels: int = 0
    extern_calls: int = 0
    externs: Counter[tuple[str, str]] = field(default_factory=Counter)
    uncaptured: Counter[tuple[str, str]] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    specialised: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    programs: deque[GraphRecord] = field(default_factory=lambda: deque(maxlen=KEPT_PROGRAMS))
    announced: set[str] = field(default_factory=set)
    switched: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    breaks_before: Counter[str] = field(default_factory=Counter)


_ledger = Ledger()
_observer: ContextVar[Ledger | None] = ContextVar("ferrite_observer", default=None)
_lock = renewed_in_children(threading.Lock())
_waiting: WeakSet[Any] = WeakSet()
"""What compiles beside the calls of its graph and is not ready yet."""


def observer() -> Ledger | None:
    """Returns what the compilation of this moment is counted in, where somebody observes it."""
    return _observer.get()


@contextmanager
def observed(by: Ledger | None) -> Iterator[None]:
    """Has what is compiled until the end of the block counted apart, and compiled anew: not run, nor kept."""
    before = _observer.set(by)
    try:
        yield
    finally:
        _observer.reset(before)


def _counting() -> Ledger:
    return _observer.get() or _ledger


def statistics() -> dict[str, Any]:
    """Returns what happened since the start or the last reset.

    Keys: ``graphs``, ``recalled`` (those that came out of the store), ``kernels`` (launches in their programs),
    ``extern_calls``, ``externs`` (op to reason to count), ``uncaptured`` (what is in no CUDA graph, where these are
    asked for, and why, to count), ``captures`` (what is captured in CUDA graphs now, by how much they play and how many
    inputs are copied for that, to count), ``fallbacks`` (reason to count of graphs that run eagerly), ``breaks`` (what
    dynamo handed to no backend, in its words, to count; it counts for the functions of all backends together),
    ``specialised`` (what needed a symbolic size to be fixed, and why, to count), ``losses`` (of linear layers with
    large logits: whether they are computed in chunks, or why not, to count), ``background`` (of graphs that are
    compiled beside their calls: how many are ``waiting`` now, and run eagerly, and how many are ``ready`` and have
    switched) and ``seconds`` (compile seconds by phase).
    """
    with _lock:
        externs: dict[str, dict[str, int]] = {}
        for (op, reason), count in sorted(_ledger.externs.items()):
            externs.setdefault(op, {})[reason] = count
        return {
            "graphs": _ledger.graphs,
            "recalled": _ledger.recalled,
            "kernels": _ledger.kernels,
            "extern_calls": _ledger.extern_calls,
            "externs": externs,
            "uncaptured": {f"{op}: {reason}": count for (op, reason), count in sorted(_ledger.uncaptured.items())},
            "captures": dict(sorted(capture_counts().items())),
            "fallbacks": dict(sorted(_ledger.fallbacks.items())),
            "breaks": dict(sorted((counted_breaks() - _ledger.breaks_before).items())),
            "specialised": {
                f"{where}: {reason}": count for (where, reason), count in sorted(_ledger.specialised.items())
            },
            "losses": dict(sorted(_ledger.losses.items())),
            "background": {"waiting": len(_waiting), "ready": _ledger.switched},
            "seconds": dict(_ledger.seconds),
        }


def reset_statistics() -> None:
    """Sets every count to zero and forgets the compiled programs."""
    global _ledger  # noqa: PLW0603  # the one mutable record of the package
    with _lock:
        _ledger = Ledger(breaks_before=counted_breaks())


def compiled_programs() -> list[dict[str, Any]]:
    """Returns the programs compiled in this process (the last `KEPT_PROGRAMS`), as mappings in the program format."""
    with _lock:
        return [dict(record.program) for record in _ledger.programs]


def compiled_graphs() -> list[GraphRecord]:
    """Returns the records of the graphs compiled in this process (the last `KEPT_PROGRAMS`)."""
    with _lock:
        return list(_ledger.programs)


def record_graph(record: GraphRecord) -> None:
    """Counts a compiled graph."""
    steps = list(all_steps(record.program))
    ledger = _counting()
    with _lock:
        ledger.graphs += 1
        ledger.recalled += record.is_recalled
        ledger.kernels += sum(step["do"] == "launch" for step in steps)
        ledger.extern_calls += sum(step["do"] == "extern" for step in steps)
        ledger.externs.update(record.externs)
        ledger.uncaptured.update(record.uncaptured)
        ledger.programs.append(record)
        for phase, seconds in record.seconds.items():
            ledger.seconds[phase] += seconds  # type: ignore[assignment]


def all_steps(program: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a program and of the graphs that it calls."""
    for body in (program, *program.get("graphs", ())):
        yield from body["steps"]


def record_fallback(reason: str) -> None:
    """Counts a graph that runs eagerly."""
    ledger = _counting()
    with _lock:
        ledger.fallbacks[reason] += 1


def record_extern(op: str, reason: str) -> None:
    """Counts an op that torch computes, of a graph that has no record of its own."""
    ledger = _counting()
    with _lock:
        ledger.externs[op, reason] += 1


def record_waiting(compilation: Any) -> None:
    """Counts a compilation that goes on beside the calls of its graph."""
    with _lock:
        _waiting.add(compilation)


def record_settled(compilation: Any, *, is_ready: bool) -> None:
    """Counts such a compilation as ended: its graph runs compiled from now on, or never will."""
    with _lock:
        _waiting.discard(compilation)
        _ledger.switched += is_ready


def is_new(text: str) -> bool:
    """Tells whether something is said for the first time since the start or the last reset, and notes it."""
    ledger = _counting()
    with _lock:
        if text in ledger.announced:
            return False
        ledger.announced.add(text)
        return True


def record_specialisation(where: str, reason: str) -> None:
    """Counts a symbolic size that was fixed to its value."""
    ledger = _counting()
    with _lock:
        ledger.specialised[where, reason] += 1


def record_loss(text: str) -> None:
    """Counts a loss of a linear layer, with how it is computed."""
    ledger = _counting()
    with _lock:
        ledger.losses[text] += 1


class Stopwatch:
    """Times named phases, each entered with ``with stopwatch.phase("lower"):``."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time until the end of the block to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
