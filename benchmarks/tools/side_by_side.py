"""Backends in processes of their own: their first calls run side by side, then their steps are timed in turns."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.tools.backends import UNCOMPILED
from benchmarks.tools.timing import machine_name
from benchmarks.tools.tree import caches_in, results_folder
from benchmarks.tools.turns import Turn

Step = Callable[[], Any]

_steps: list[Step] = []
"""The step of this process's backend."""


@dataclass(slots=True)
class Contender:
    """One backend: what it counted, and its times in milliseconds.

    Attributes:
        name: of the backend.
        first_seconds: seconds of the first step, while others compile.
        error: how far its results are off, as the benchmark says.
        loss: the loss.
        work: what it made of the step: graphs, kernels, extern calls.
        peak: bytes at the peak of a step.
        times: milliseconds of a step, in each round.
    """

    name: str
    first_seconds: float = 0.0
    error: float = 0.0
    loss: float = 0.0
    work: dict[str, Any] = field(default_factory=dict)
    peak: int = 0
    times: list[float] = field(default_factory=list)


Make = Callable[..., tuple[Contender, Step]]
"""``make(name, *given)`` checks a backend, takes its first steps, and returns it with its step."""


def make_step(model: torch.nn.Module, compiled: Callable[..., Any], *given: Any) -> Step:
    """Returns a forward and a backward pass; it leaves gradients in the model, and returns the loss."""

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = compiled(*given)
        loss.backward()
        return loss.detach()

    return step


def whole_graph(name: str) -> dict[str, bool]:
    """Returns the options by which a backend has to make one graph."""
    return {} if name == UNCOMPILED else {"fullgraph": True}


def parser_of(description: str | None, steps: int) -> argparse.ArgumentParser:
    """Returns a parser of what all such benchmarks are told; ``steps`` is the default number in a turn."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["inductor", "ferrite"])
    parser.add_argument("--device", choices=("cuda",), default="cuda")
    parser.add_argument("--rounds", type=int, default=9, help="turns of all backends")
    parser.add_argument("--steps", type=int, default=steps, help="steps in a turn")
    parser.add_argument("--lock", type=Path, help="a file; processes that name it time one after the other")
    parser.add_argument("--out", type=Path, default=results_folder())
    return parser


def compare(
    plan: argparse.Namespace,
    make: Make,
    check: Callable[[list[Contender]], None],
    timer: Callable[..., float],
    *timed: Any,
) -> list[Contender]:
    """Returns all backends of a plan, eager mode first, with the times of their steps.

    Args:
        plan: by `parser_of`.
        make: is given the name of a backend, and the plan.
        check: raises where results are not to be timed.
        timer: is given a step, how many steps to take, and ``timed``; it returns milliseconds for one.
        timed: see ``timer``.

    Raises:
        SystemExit: by ``make`` or ``check``.
    """
    names = (UNCOMPILED, *(each for each in plan.backends if each != UNCOMPILED))
    with tempfile.TemporaryDirectory() as fresh:
        os.environ.update(caches_in(Path(fresh)))
        backends = SideBySide(names)
        found = backends.prepare(make, plan)
        check(found)
        Turn(plan.lock).take()
        times = backends.times(plan.rounds, timer, plan.steps, *timed)
        backends.end()
    for each in found:
        each.times = times[each.name]
    return found


def require_errors(found: list[Contender], allowed: float, what: str) -> None:
    """Fails where an error of ours is greater than allowed, or is not a number; those of others are only shown.

    Raises:
        SystemExit: it is; ``what`` says of what the error is one.
    """
    for each in found:
        if each.name.startswith("ferrite") and not each.error <= allowed:
            raise SystemExit(f"{each.name}: {what} is off by {each.error:.2e}, {allowed:.2e} is allowed")


def keep_record(plan: argparse.Namespace, name: str, **record: Any) -> None:
    """Writes a file of JSON in the folder of the results, with the machine; contenders are written field by field."""
    plan.out.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine_name(plan.device), **record}
    (plan.out / f"{name}.json").write_text(json.dumps(record, indent=1, default=_as_json))


class SideBySide:
    """A process for each backend. What they are given, and what they find, is pickled."""

    def __init__(self, names: Sequence[str]) -> None:
        self._pools = {name: ProcessPoolExecutor(1, get_context("spawn")) for name in names}

    def prepare(self, make: Make, *given: Any) -> list[Contender]:
        """Returns what ``make(name, *given)`` finds for each backend; the step that it returns with it is kept there.

        Raises:
            SystemExit: what ``make`` raised.
        """
        waiting = [pool.submit(_prepare, make, name, *given) for name, pool in self._pools.items()]
        return [each.result() for each in waiting]

    def times(self, rounds: int, timer: Callable[..., float], *given: Any) -> dict[str, list[float]]:
        """Returns what ``timer(step, *given)`` says of each backend's step, in so many rounds, one after the other."""
        found: dict[str, list[float]] = {name: [] for name in self._pools}
        for _ in range(rounds):
            for name, pool in self._pools.items():
                found[name].append(pool.submit(_time, timer, *given).result())
        return found

    def end(self) -> None:
        """Lets the processes end."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


def _as_json(value: Any) -> Any:
    return asdict(value) if isinstance(value, Contender) else str(value)


def _prepare(make: Make, *given: Any) -> Contender:
    found, step = make(*given)
    _steps[:] = [step]
    return found


def _time(timer: Callable[..., float], *given: Any) -> float:
    return timer(*_steps, *given)
