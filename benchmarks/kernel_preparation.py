"""Compiles the cases of `benchmarks/kernels.py` first, many at once, each for each backend in a process of its own.

Seconds are those of `torch.compile` and the first call, in a process that keeps to its share of the cores, with empty
caches, which every backend has its own of. What a compiler takes to start, its imports and its own processes, is
measured on a tiny function before, and told apart. The device is shared: what a backend measures while it compiles is
measured beside others.
"""

from __future__ import annotations

import json
import os
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

from tree import caches_in
from zygote import Zygote, run_child, start_zygote, stop_zygote

TIMEOUT = 300.0
"""Seconds after which a process is given up."""
PREPARING = 0.5
"""Part of the plan's time after which no process begins to compile."""

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
        own = {"processes": self.processes, "wall_s": self.wall_s, "start_s": dict(self.start_s)}
        return own | {"failed": failed}


def prepare_all(plan: Namespace, gpus: Sequence[str]) -> Prepared:
    """Compiles every chosen case into ``plan.caches``, in ``plan.prepare`` processes at once, by turns on the GPUs."""
    started = time.perf_counter()
    backends = [name for name in plan.backends if name != "eager"]
    keys = [(case.name, dtype, backend) for dtype in plan.dtypes for case in plan.chosen for backend in backends]
    slots: queue.Queue[tuple[int, Zygote]] = queue.Queue()
    zygotes = [start_zygote(("torch",)) for _ in range(min(plan.prepare, len(keys)))]
    for slot in enumerate(zygotes):
        slots.put(slot)
    records: dict[Key, dict[str, float]] = {}
    failed: dict[Key, str] = {}

    def compile_in_child(number: int) -> None:
        if time.perf_counter() - started > plan.deadline * PREPARING:
            failed[keys[number]] = "the time was over"
            return
        slot, zygote = slots.get()
        key, out, log = keys[number], work / f"{number}.json", work / f"{number}.log"
        arguments = {"key": key, "share": [slot, len(zygotes)], "out": str(out)}
        arguments |= {"device": plan.device, "scale": plan.scale, "policy": plan.policy}
        environment = caches_in(plan.caches / key[2])
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        ended = run_child(zygote, "kernel_preparation:compile_cell", arguments, environment, log, TIMEOUT)
        slots.put((slot, zygote))
        if out.exists():
            records[key] = json.loads(out.read_text())
            return
        words = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        named = [line for line in words if "Error" in line] or words
        failed[key] = "timed out" if ended.timed_out else " ".join(named[-1:])

    with tempfile.TemporaryDirectory(prefix="ferrite-kernels-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        with ThreadPoolExecutor(len(zygotes) or 1) as pool:
            list(pool.map(compile_in_child, range(len(keys))))
    for zygote in zygotes:
        stop_zygote(zygote)
    starts = {name: [record["start_s"] for key, record in records.items() if key[2] == name] for name in backends}
    return Prepared(
        len(zygotes),
        time.perf_counter() - started,
        {name: statistics.median(seconds) for name, seconds in starts.items() if seconds},
        {key: record["compile_s"] for key, record in records.items()},
        failed,
    )


def compile_cell(
    key: Sequence[str], share: Sequence[int], device: str, scale: int, policy: Mapping[str, Any], out: str
) -> None:
    """Compiles one case in one type for one backend, in this process, and writes down the seconds."""
    import torch

    from backends import compile_with
    from kernel_cases import CASES, outcome
    from limit_cases import LIMIT_CASES

    name, dtype, backend = key
    take_cores(*share)
    torch.set_default_device(device)
    tiny = compile_with(backend, lambda x: x * 2 + 1, policy=policy)
    ones = torch.ones(1000)
    start_s = seconds_of(lambda: tiny(ones), device)
    torch._dynamo.reset()
    case = next(case for case in (*CASES, *LIMIT_CASES) if case.name == name)
    inputs = case.make(getattr(torch, dtype), scale)
    call = compile_with(backend, case.function, policy=policy, fullgraph=True, dynamic=False)
    compile_s = seconds_of(lambda: outcome(case, call, inputs), device)
    Path(out).write_text(json.dumps({"start_s": start_s, "compile_s": compile_s}))


def seconds_of(call: Callable[[], Any], device: str) -> float:
    """Returns the seconds of a call, the device's included."""
    import torch

    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - started


def take_cores(number: int, parts: int) -> None:
    """Keeps this process to its share of the cores, the ``number``-th of so many parts: at least one."""
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // parts)
    first = number * each % len(cores)
    os.sched_setaffinity(0, cores[first : first + each])
