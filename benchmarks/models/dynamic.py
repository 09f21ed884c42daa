"""Measures one compilation for many sizes against one compilation for each size, and against the opponent's both.

    python benchmarks/models/dynamic.py                                        # two workers on each visible GPU
    python benchmarks/models/dynamic.py --prepare 20                           # compile all first, 20 processes at once
    python benchmarks/models/dynamic.py --part 0/4 --out part0.jsonl           # a quarter of the sweeps, on one GPU
    python benchmarks/models/dynamic.py --merge part*.jsonl                    # the table of several parts
    python benchmarks/models/dynamic.py --kernels "layer norm" --models gpt2 --modes inference
    python benchmarks/models/dynamic.py --device cpu --tiny                    # does it run: no times worth reading

Every backend gets the same sizes in the same order, small and odd ones among them. "Dynamic" compiles with
``dynamic=True`` and keeps what it compiled over the whole sweep; "static" compiles for each size anew (the opponent,
whose static times bear on no bar, at a few sizes only). Results, and samples of all gradients in training, are compared
with eager and with float32 before anything is timed. Compilations are counted by dynamo, per captured graph. At each
size all backends are called 40 times, or for half a second, then take turns, batch by batch, and the fastest batch of
each counts, once a second one was about as fast: of kernels on the device alone, of models as a program runs them. No
backend sees what torch notes, in tensors or beside them, of the sizes that another one was called with: it would
compile by that. While a worker times, no other one compiles or times: compilers take all cores. ``--budget`` seconds
after the start no backend begins another size, nor does one that failed at two; what was not run is said to be missing.

Most of the time goes into compilations. ``--prepare`` has every backend compile each sweep in a process of its own,
many at once, into the backends' caches. What is measured then is compiled from there; what the backends themselves
measured meanwhile, to choose between builds of a kernel, beside each other, they have to measure again.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import gc
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from benchmarks.figures.dynamic_figures import MINE, OTHER, STATIC, Row, read_rows, sizes_text, table
from benchmarks.models.dynamic_sweeps import Sweep, kernel_sweeps, model_sweeps
from benchmarks.models.workloads import WORKLOADS
from benchmarks.tools.backends import compile_with
from benchmarks.tools.forgetting import forget_choices
from benchmarks.tools.timing import visible_gpus

BACKENDS = {
    "eager": ("eager", None),
    MINE: ("ferrite", True),
    STATIC: ("ferrite", False),
    OTHER: ("inductor", True),
    "inductor static": ("inductor", False),
}
FEW = (0, 5, 9)
"""Positions of the sizes that the opponent is compiled for one by one."""
FAILURES = 2
"""Sizes at which a backend may fail before it is not asked for others: each failure takes as long as a compilation."""
SHARES = 3
"""Processes that share the sizes of a sweep that is compiled for each of them, with --prepare."""

BATCHES = 7, 40
"""Least and most batches of each backend at each size."""
REPEATED, PATIENCE = 1.03, 3
"""The fastest batch counts once another one took at most 3 % longer, or after three times as many seconds."""
WARM_CALLS, WARM_SECONDS = 40, 0.5
"""Calls of each backend at each size before it is timed: ferrite prepares the host for sizes that came 32 times.

Calls that take longer are the device's; half a second of them is enough.
"""
BATCH_MS = 20.0
"""Milliseconds that a timed batch of calls aims at."""
ERROR_FACTOR, ERROR_FLOOR = 2.0, 1e-2
"""A result may be this many times as far from float32 as eager's, and that much more, relative to its norm."""


# --- how it is judged and measured ----------------------------------------------------------------------------------


def flat_of(results: Any) -> Tensor:
    """Returns all numbers of a result in a row."""
    tensors = results if isinstance(results, (list, tuple)) else [results]
    return torch.cat([x.detach().float().reshape(-1) for x in tensors])


def error_of(mine: Any, exact: Tensor) -> float:
    found = flat_of(mine)
    if found.shape != exact.shape or not torch.isfinite(found).all():
        return math.inf
    return float((found - exact).norm() / exact.norm())


def text_of(size: Iterable[int]) -> str:
    return "x".join(map(str, size))


class References:
    """Float32's results and eager's distance from them at each size, computed once per sweep."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.eager = sweep.build(lambda function: function)
        self.known: dict[tuple[int, ...], tuple[Tensor, float]] = {}

    def at(self, size: tuple[int, ...], given: tuple[Any, ...]) -> tuple[Tensor, float]:
        if size not in self.known:
            exact = flat_of(self.sweep.exact(*given)).cpu()
            self.known[size] = exact, error_of(self.eager(*given), exact.to(given[0].device))
        return self.known[size]


def arguments(sweep: Sweep, size: tuple[int, ...]) -> tuple[Any, ...]:
    torch.manual_seed(sum(size))
    return sweep.make(size)


class Runner:
    """One backend on one sweep: what it has compiled, and what it has done."""

    def __init__(self, sweep: Sweep, label: str, warm_calls: int) -> None:
        self.row = Row(sweep.name, label)
        self._sweep, self._warm_calls = sweep, warm_calls
        self._call: Callable[..., Any] | None = None
        self._notes: Any = None
        self.failures = 0

    def compiled(self) -> Callable[..., Any]:
        """Returns the function of the sweep: one for all sizes, which a static backend compiles anew for each."""
        if self._call is None:
            backend, dynamic = BACKENDS[self.row.backend]
            options = {} if dynamic is None else {"dynamic": dynamic}
            self._call = self._sweep.build(lambda function: compile_with(backend, function, **options))
        return self._call

    @contextmanager
    def _own_notes(self) -> Iterator[None]:
        """Has dynamo find, of the sizes that functions were called with, what it noted of calls of this backend."""
        from torch._dynamo import pgo

        others, pgo._CODE_STATE = pgo._CODE_STATE, self._notes
        try:
            yield
        finally:
            self._notes, pgo._CODE_STATE = pgo._CODE_STATE, others

    def ready(self, size: tuple[int, ...], references: References | None) -> Callable[[], Any] | None:
        """Returns a call at a size, compiled, judged and warm, or None if it failed; without references unjudged."""
        with self._own_notes():
            return self._ready(size, references)

    def _ready(self, size: tuple[int, ...], references: References | None) -> Callable[[], Any] | None:
        from torch._dynamo.utils import counters

        before, started = counters["stats"]["unique_graphs"], time.perf_counter()
        try:
            given = arguments(self._sweep, size)  # its own: torch marks those of a dynamic compilation
            call = self.compiled()
            result = call(*given)
            if references is not None:
                exact, eager = references.at(size, given)
                error = error_of(result, exact.to(given[0].device))
                if error > ERROR_FACTOR * eager + ERROR_FLOOR:
                    self.row.wrong.append(f"{text_of(size)}: error {error:.1e}, eager's {eager:.1e}")
            run = functools.partial(call, *given, **({"is_judged": False} if call.__name__ == "train" else {}))
            self._warm_up(run)
        except Exception as error:  # noqa: BLE001 - a backend that fails is a result
            self.row.wrong.append(f"{text_of(size)}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
            self.failures += 1
            return None
        finally:
            self.row.graphs += counters["stats"]["unique_graphs"] - before
            self.row.seconds += time.perf_counter() - started
        return run

    def _warm_up(self, run: Callable[[], Any]) -> None:
        until = time.perf_counter() + WARM_SECONDS
        for number in range(self._warm_calls):
            if number % 8 == 0 and torch.cuda.is_available():
                torch.cuda.synchronize()
            if time.perf_counter() > until:
                return
            run()


def runners_of(sweep: Sweep, plan: argparse.Namespace) -> dict[str, Runner]:
    """Returns a runner for each backend."""
    warm_calls = 0 if plan.compile_only else 1 if plan.tiny else WARM_CALLS
    return {label: Runner(sweep, label, warm_calls) for label in plan.backends}


def measure(sweep: Sweep, runners: dict[str, Runner], plan: argparse.Namespace, until: float) -> None:
    """Has every backend run a sweep, up to a point of time; their rows fill up size by size."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    references = None if plan.compile_only else References(sweep)
    part, parts = map(int, plan.sizes.split("/"))
    for place, size in enumerate(sweep.sizes):
        if place % parts != part:
            continue
        ready: dict[str, Callable[[], Any]] = {}
        with turn_on_host(plan, is_alone=False):
            for label, runner in runners.items():
                if label == "inductor static" and place not in FEW and not plan.all_static:
                    continue
                if time.monotonic() > until or runner.failures >= FAILURES:
                    reason = "the time was over" if runner.failures < FAILURES else "it failed before"
                    runner.row.wrong.append(f"{text_of(size)}: not run, {reason}")
                    continue
                run = runner.ready(size, references)
                if run is not None and references is not None:
                    ready[label] = run
        if not ready:
            continue
        with turn_on_host(plan, is_alone=True):
            for label, milliseconds in timed(ready, sweep, plan).items():
                runners[label].row.times[text_of(size)] = milliseconds


@contextmanager
def turn_on_host(plan: argparse.Namespace, *, is_alone: bool) -> Iterator[None]:
    """Waits until the workers that share a lock let this one go on: alone, or beside others that are not alone."""
    if plan.lock is None:
        yield
        return
    with plan.lock.open("a") as file:  # closing it gives the lock back
        with gate_of(plan.lock).open("a") as gate:  # who waits to be alone has nobody go first who came later
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield


def gate_of(lock: Path) -> Path:
    """Returns the file whose lock is held while waiting for another one."""
    return lock.with_suffix(".gate")


def timed(runs: dict[str, Callable[[], Any]], sweep: Sweep, plan: argparse.Namespace) -> dict[str, float]:
    """Returns the milliseconds per call in the fastest batch of each: what disturbs the host makes others slower.

    They take turns batch by batch, so that a host that is slower for a while is so for all; where a batch takes little
    time there are more of them.
    """
    once = {label: sweep.clock(run, 1, plan.device) for label, run in runs.items()}
    launches = {label: plan.launches or max(3, min(20, round(BATCH_MS / max(ms, 1e-3)))) for label, ms in once.items()}
    fastest = {label: [math.inf, math.inf] for label in runs}
    least, most = BATCHES
    started = time.perf_counter()
    for turn in range(1 if plan.tiny else most):
        seconds = time.perf_counter() - started
        is_bound = all(second <= best * REPEATED for best, second in fastest.values())
        if turn >= least and seconds > sweep.seconds * (1 if is_bound else PATIENCE):
            break
        for label, run in runs.items():
            run()  # what the others have driven out of the host's caches is there again
            fastest[label] = sorted([*fastest[label], sweep.clock(run, launches[label], plan.device)])[:2]
    return {label: best for label, (best, _) in fastest.items()}


def run_sweeps(sweeps: Iterable[Sweep], plan: argparse.Namespace, report: Callable[[Row], None]) -> None:
    """Measures every backend on the sweeps, until the time is over; reports what there is also where it is stopped."""
    until = time.monotonic() + plan.budget
    for sweep in sweeps:
        runners = runners_of(sweep, plan)
        try:
            measure(sweep, runners, plan, until)
        except BaseException as error:
            for runner in runners.values():
                runner.row.wrong.append(f"stopped by {type(error).__name__}, sizes are missing")
            raise
        finally:
            for runner in runners.values():
                report(runner.row)
        gc.collect()
        if plan.device == "cuda":
            torch.cuda.empty_cache()


# --- processes for each GPU -----------------------------------------------------------------------------------------


def run_on_all(gpus: Sequence[str], plan: argparse.Namespace) -> list[Row]:
    """Returns the rows of all sweeps, run by processes on each GPU."""
    places = [gpu for _ in range(plan.workers) for gpu in gpus]
    outs = [plan.out.with_suffix(f".{number}.jsonl") for number in range(len(places))]
    lock = plan.out.with_suffix(".lock")
    workers = []
    for number, (gpu, out) in enumerate(zip(places, outs, strict=True)):
        out.unlink(missing_ok=True)
        command = [
            sys.executable,
            __file__,
            *sys.argv[1:],
            "--prepare",
            "0",
            "--part",
            f"{number}/{len(places)}",
            "--out",
            str(out),
            "--lock",
            str(lock),
        ]
        workers.append(subprocess.Popen(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu}))
    try:
        for worker in workers:
            worker.wait()
    finally:
        for worker in workers:
            worker.terminate()  # of those that have ended nothing is left to do
        for file in (lock, gate_of(lock)):
            file.unlink(missing_ok=True)
    return [row for out in outs if out.exists() for row in read_rows(out)]


def prepare(gpus: Sequence[str], plan: argparse.Namespace) -> None:
    """Has every backend compile every sweep, so many processes at once, by turns on the GPUs; the slowest first."""
    models = [] if plan.only == "kernels" else [(name, mode) for name in plan.models for mode in plan.modes]
    chosen = [("--only", "models", "--models", name, "--modes", mode) for name, mode in reversed(models)]
    if plan.only != "models":
        chosen.append(("--only", "kernels", "--kernels", *plan.kernels))
    backends = [label for label in plan.backends if BACKENDS[label][0] != "eager"]
    backends.sort(key=lambda label: BACKENDS[label] != BACKENDS[OTHER])
    jobs = [
        (*words, "--backends", label, "--sizes", f"{part}/{parts}")
        for label in backends
        for words in chosen
        for parts in (SHARES if label == STATIC else 1,)
        for part in range(parts)
    ]

    def run(number: int) -> float:
        flags = ["--compile-only", "--part", "0/1", "--out", os.devnull, *(["--tiny"] if plan.tiny else [])]
        command = [sys.executable, __file__, "--device", plan.device, *flags, *jobs[number]]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else None
        began = time.perf_counter()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        return time.perf_counter() - began

    started = time.perf_counter()
    with ThreadPoolExecutor(plan.prepare) as pool:
        seconds = list(pool.map(run, range(len(jobs))))
    forget_choices()
    longest = max(range(len(jobs)), key=seconds.__getitem__)
    print(
        f"prepared sweeps in {len(jobs)} processes in {time.perf_counter() - started:.0f} s, "
        f"the longest {seconds[longest]:.0f} s: {' '.join(jobs[longest])}",
        flush=True,
    )


def main() -> int:
    """Returns 0 if every bar was reached, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="*", default=[], help="names; all without it")
    parser.add_argument("--models", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--modes", nargs="*", default=["inference", "training"])
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS))
    parser.add_argument("--only", choices=["kernels", "models"])
    parser.add_argument("--part", default="", help="k/n: of n shares of the sweeps the k-th, in this process")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--launches", type=int, default=0, help="calls of a timed batch; 0 chooses by their time")
    parser.add_argument("--all-static", action="store_true", help="the opponent's static times at all sizes")
    parser.add_argument("--budget", type=float, default=500.0, help="seconds after which no backend is begun")
    parser.add_argument("--out", type=Path, default=Path("dynamic.jsonl"), help="where the rows go, one JSON a line")
    parser.add_argument("--merge", nargs="+", type=Path, help="rows of other runs: prints their table, runs nothing")
    parser.add_argument("--fix-floats", action="store_true", help="floats of modules are constants for all backends")
    parser.add_argument("--sizes", default="0/1", help="k/n: every n-th size, from the k-th")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--prepare", type=int, default=0, help="processes that compile everything first")
    parser.add_argument("--workers", type=int, default=2, help="on each GPU: while one times the others wait")
    parser.add_argument("--lock", type=Path, help="file by which workers agree on whose turn it is to time")
    parser.add_argument("--compile-only", action="store_true", help="measure nothing")
    plan = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if plan.prepare:
        prepare(visible_gpus() if plan.device == "cuda" else [], plan)
    if plan.merge:
        rows = [row for path in plan.merge for row in read_rows(path)]
    elif plan.device == "cuda" and not plan.part and len(visible_gpus()) * plan.workers > 1:
        rows = run_on_all(visible_gpus(), plan)
    else:
        rows = run_here(plan)
    text, is_good = table(rows)
    print(text)
    return int(not is_good)


def run_here(plan: argparse.Namespace) -> list[Row]:
    """Returns the rows of this process's part of the sweeps, written down as they come."""
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.specialize_float = plan.fix_floats
    torch.backends.cudnn.allow_tf32 = False  # float32 is what the others are judged by
    sweeps = [] if plan.only == "models" else list(kernel_sweeps(plan))
    sweeps += [] if plan.only == "kernels" else list(model_sweeps(plan))
    part, parts = map(int, (plan.part or "0/1").split("/"))
    rows: list[Row] = []
    with plan.out.open("w") as out:

        def report(row: Row) -> None:
            rows.append(row)
            out.write(json.dumps(asdict(row)) + "\n")
            out.flush()
            print(sizes_text(row), flush=True)

        run_sweeps(share(sweeps, part, parts), plan, report)
    return rows


def share(sweeps: Sequence[Sweep], part: int, parts: int) -> list[Sweep]:
    """Returns the sweeps of a part, dealt out back and forth: those of one model lie side by side."""
    rounds = [sweeps[start : start + parts] for start in range(0, len(sweeps), parts)]
    return [
        dealt[place]
        for turn, dealt in enumerate(rounds)
        if (place := part if turn % 2 == 0 else parts - 1 - part) < len(dealt)
    ]


if __name__ == "__main__":
    sys.exit(main())
