"""Compiles the cases of `benchmarks/kernels/run.py` first, in many processes at once.

A process compiles a series of cases for one backend, and keeps to its share of the cores. Seconds are those of
`torch.compile` and the first call of a case, with empty caches, which every backend has its own of. What a compiler
takes to start, its imports and its own processes, is measured on a tiny function before, and told apart: on another one
in each process, as one that is in the caches starts nothing. The device is shared: what a backend measures while it
compiles is measured beside others.
"""

from __future__ import annotations

import gc
import json
import queue
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tools.cores import take_cores
from benchmarks.tools.tree import caches_in
from benchmarks.tools.zygote import Zygote, run_child, start_zygote, stop_zygote

COMPILE = "benchmarks.kernels.preparation:compile_series"
"""What a process is told to run."""
TIMEOUT = 300.0
"""Seconds after which a process is given up."""
PREPARING = 0.5
"""Part of the plan's time after which no process begins to compile."""
SERIES = 3
"""Series that a process's place is given, one after the other: so that none is busy long after the others."""

Key = tuple[str, str, str]
"""A case, a type and a backend."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What compiling everything took.

    Attributes:
        processes: how many compiled at once.
        wall_s: seconds until all were done.
        start_s: by backend, the median of the seconds that it takes to start in a process.
        compile_s: the seconds of compiling each cell.
        failed: cells that were not compiled, and why.
    """

    processes: int
    wall_s: float
    start_s: Mapping[str, float]
    compile_s: Mapping[Key, float]
    failed: Mapping[Key, str]

    def facts(self) -> dict[str, Any]:
        """Returns what is written down beside the results."""
        failed = {" ".join(key): reason for key, reason in self.failed.items()}
        seconds = {" ".join(key): seconds for key, seconds in self.compile_s.items()}
        own = {"processes": self.processes, "wall_s": self.wall_s, "start_s": dict(self.start_s)}
        return own | {"compile_s": seconds, "failed": failed}

    def slowest(self, count: int) -> list[Key]:
        """Returns the cells that took longest to compile."""
        return sorted(self.compile_s, key=lambda key: -self.compile_s[key])[:count]


def is_tuned(backend: str) -> bool:
    """Returns whether a backend chooses configs by measuring all that it can think of."""
    return backend.endswith("-max")


def prepare_all(plan: Namespace, gpus: Sequence[str]) -> Prepared:
    """Compiles every chosen case into ``plan.caches``, in ``plan.prepare`` processes at once, by turns on the GPUs.

    Backends that tune do so only if the plan says so: what they measure beside each other they have to measure again.
    """
    started = time.perf_counter()
    backends = [name for name in plan.backends if name != "eager" and (plan.prepare_tuned or not is_tuned(name))]
    rows = [(case.name, dtype) for dtype in plan.dtypes for case in plan.chosen]
    length = -(-len(rows) * len(backends) // (SERIES * plan.prepare)) or 1
    jobs = [(backend, rows[first : first + length]) for first in range(0, len(rows), length) for backend in backends]
    slots: queue.Queue[tuple[int, Zygote]] = queue.Queue()
    zygotes = [start_zygote(("torch",)) for _ in range(min(plan.prepare, len(jobs)))]
    for slot in enumerate(zygotes):
        slots.put(slot)
    starts: dict[str, list[float]] = {backend: [] for backend in backends}
    seconds: dict[Key, float] = {}
    failed: dict[Key, str] = {}

    def compile_in_child(number: int) -> None:
        backend, series = jobs[number]
        reason = "the time was over"
        if time.perf_counter() - started < plan.deadline * PREPARING:
            slot, zygote = slots.get()
            out, log = work / f"{number}.json", work / f"{number}.log"
            arguments = {"backend": backend, "rows": series, "share": [slot, len(zygotes)], "out": str(out)}
            arguments["number"] = number
            arguments["settings"] = {name: getattr(plan, name) for name in ("device", "scale", "policy", "tf32")}
            environment = caches_in(plan.caches / backend)
            if gpus:
                environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
            ended = run_child(
                zygote, "benchmarks.kernels.preparation:compile_series", arguments, environment, log, TIMEOUT
            )
            slots.put((slot, zygote))
            reason = "timed out" if ended.timed_out else last_words(log)
            if out.exists():
                record = json.loads(out.read_text())
                starts[backend].append(record["start_s"])
                seconds.update({(*row, backend): found for *row, found in record["compile_s"]})
                failed.update({(*row, backend): why for *row, why in record["failed"]})
        for row in series:
            if (*row, backend) not in seconds:
                failed.setdefault((*row, backend), reason)

    with tempfile.TemporaryDirectory(prefix="ferrite-kernels-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        with ThreadPoolExecutor(len(zygotes) or 1) as pool:
            list(pool.map(compile_in_child, range(len(jobs))))
    for zygote in zygotes:
        stop_zygote(zygote)
    medians = {backend: statistics.median(found) for backend, found in starts.items() if found}
    return Prepared(len(zygotes), time.perf_counter() - started, medians, seconds, failed)


def last_words(log: Path) -> str:
    """Returns the last line of a log that names an error, or the last one."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " ".join(([line for line in lines if "Error" in line] or lines)[-1:])


def compile_series(
    backend: str,
    rows: Sequence[Sequence[str]],
    share: Sequence[int],
    settings: Mapping[str, Any],
    number: int,
    out: str,
) -> None:
    """Compiles the cases of a series for one backend, in this process, and writes down the seconds after each.

    ``settings`` are those of the run: device, scale, policy, and whether convolutions may round to TF32.
    """
    import torch

    from benchmarks.kernels.case_sets import case_named
    from benchmarks.kernels.cases import outcome
    from benchmarks.tools.backends import compile_with

    take_cores(*share)
    device, policy = settings["device"], settings["policy"]
    torch.set_default_device(device)
    torch.backends.cudnn.allow_tf32 = settings["tf32"]
    tiny, ones = compile_with(backend, lambda x: x * 2 + number, policy=policy), torch.ones(1000)
    record: dict[str, Any] = {"start_s": seconds_of(lambda: tiny(ones), device), "compile_s": [], "failed": []}
    for name, dtype in rows:
        torch._dynamo.reset()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()  # others are on the device
        try:
            case = case_named(name)
            inputs = case.make(getattr(torch, dtype), settings["scale"])
            call = compile_with(backend, case.function, policy=policy, fullgraph=True, dynamic=False)
            seconds = seconds_of(lambda case=case, call=call, inputs=inputs: outcome(case, call, inputs), device)
            record["compile_s"].append([name, dtype, seconds])
        except Exception as error:  # noqa: BLE001 - the others of the series are compiled all the same
            record["failed"].append([name, dtype, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"])
        Path(out).write_text(json.dumps(record))


def seconds_of(call: Callable[[], Any], device: str) -> float:
    """Returns the seconds of a call, the device's included."""
    import torch

    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - started
