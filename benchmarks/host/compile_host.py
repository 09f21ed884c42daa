"""Measures what compiling costs the host, without a GPU: processor time of a cold and a warm process, by phase.

    python benchmarks/host/compile_host.py --models gpt2,bert
    python benchmarks/host/compile_host.py --models gpt2 --modes inference --profile warm
    python benchmarks/host/compile_host.py --models vit,resnet50 --modes training --dynamic

Models of full depth on short inputs are compiled for a GPU that does nothing (`idle_gpu.py`); kernels are compiled for
an H200. Processor time is what counts where others use the same cores: of the process, from the import of the backend
to the end of the third call, and of everything that it started. ``--dynamic`` compiles for any sizes; the second call
has another batch size.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import json
import os
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.tools.tree import add_packages_to_path, caches_in, compile_bytecode

BATCHES, ANY_BATCHES = (2, 2, 2), (2, 3, 2)


def short(model: str, inputs: tuple[Any, ...], batch: int) -> tuple[Any, ...]:
    """Returns the start of a batch: compilers do the same work for it, and extern calls take no time."""
    if model in ("vit", "resnet50"):
        return tuple(x[:batch].clone() for x in inputs)
    return tuple(x[:batch, :64].clone() for x in inputs)


def measure(model: str, mode: str, *, profile: bool, dynamic: bool) -> dict[str, Any]:
    """Returns what compiling took in this process, in seconds of processor time."""
    import idle_gpu
    import torch
    import transformers.models.bert.modeling_bert
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401

    from benchmarks.models.cell import Cell, build_module, inference_step, training_step
    from benchmarks.models.workloads import WORKLOADS

    torch.set_num_threads(1)
    workload = WORKLOADS[model]
    cell = Cell(model, mode, "ferrite", "cold", "full", "cpu", "bfloat16", 1, 1)
    module, inputs = build_module(cell, workload)
    batches = [short(model, inputs, batch) for batch in (ANY_BATCHES if dynamic else BATCHES)]
    profiler = cProfile.Profile(time.thread_time) if profile else None
    collected = collection_seconds()
    marks = {"thread": time.thread_time(), "process": time.process_time(), "wall": time.perf_counter()}
    if profiler:
        profiler.enable()
    import ferrite_torch

    idle_gpu.install()
    compiled = torch.compile(module, backend="ferrite", dynamic=dynamic or None, options={"fallback": False})
    imported = time.thread_time() - marks["thread"]
    if mode == "training":
        steps = [training_step(compiled, module, given, workload.learning_rate)[1] for given in batches]
    else:
        steps = [inference_step(compiled, given) for given in batches]
    calls = []
    for step in steps:
        began = time.thread_time()
        step()
        calls.append(time.thread_time() - began)
    if profiler:
        profiler.disable()
    began = time.thread_time()
    steps[-1]()
    steady = time.thread_time() - began
    spent = {
        "thread": time.thread_time() - marks["thread"] - (len(steps) + 1) * steady,
        "process": time.process_time() - marks["process"] - (len(steps) + 1) * steady,
        "wall": time.perf_counter() - marks["wall"] - (len(steps) + 1) * steady,
    }
    garbage = sum(collected)
    record = {"import": imported, "calls": calls, "garbage": garbage, **spent, "statistics": ferrite_torch.statistics()}
    if profiler:
        text = io.StringIO()
        stats = pstats.Stats(profiler, stream=text)
        stats.sort_stats("cumulative").print_stats(150)
        stats.sort_stats("tottime").print_stats(60)
        record["profile"] = text.getvalue()
    return record


def collection_seconds() -> list[float]:
    """Returns a list that fills up with what each collection of garbage takes from now on, in processor time."""
    seconds: list[float] = []
    started = 0.0

    def watch(phase: str, _: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.thread_time()
        else:
            seconds.append(time.thread_time() - started)

    gc.callbacks.append(watch)
    return seconds


def run_process(model: str, mode: str, caches: Path, *, profile: bool, dynamic: bool) -> dict[str, Any]:
    """Returns the record of a new process, with the seconds of processor time of what it started."""
    out = caches / "record.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | caches_in(caches)
    command = [sys.executable, str(Path(__file__).resolve()), "--record", str(out), "--models", model, "--modes", mode]
    command += [*(["--profile", "here"] if profile else []), *(["--dynamic"] if dynamic else [])]
    subprocess.run(command, check=True, env=environment)
    record: dict[str, Any] = json.loads(out.read_text())
    return record


def children_seconds() -> float:
    """Returns the processor seconds of all processes that this one started, those that still run included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    for thread in Path("/proc/self/task").iterdir():
        for child in (thread / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def write_record(plan: argparse.Namespace) -> None:
    record = measure(plan.models[0], plan.modes[0], profile=plan.profile == "here", dynamic=plan.dynamic)
    record["children"] = children_seconds()
    plan.record.write_text(json.dumps(record, default=str))


def split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=split, default=("gpt2", "bert", "llama", "vit", "resnet50"))
    parser.add_argument("--modes", type=split, default=("inference", "training"))
    parser.add_argument("--repeat", type=int, default=1, help="pairs of processes per row; the least time counts")
    parser.add_argument("--profile", choices=("cold", "warm", "here"), help="print where the time of one phase goes")
    parser.add_argument("--dynamic", action="store_true", help="compile for any sizes")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    plan = parser.parse_args()
    if plan.record:
        write_record(plan)
        return 0
    compile_bytecode()
    print(
        "processor seconds: main thread (import of the backend, first call, collecting garbage), other threads, "
        "processes started; wall"
    )
    for model in plan.models:
        for mode in plan.modes:
            rows: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
            for _ in range(plan.repeat):
                with tempfile.TemporaryDirectory() as folder:
                    for phase, records in rows.items():
                        profile = plan.profile == phase
                        record = run_process(model, mode, Path(folder), profile=profile, dynamic=plan.dynamic)
                        records.append(record)
            for phase, records in rows.items():
                best = min(records, key=lambda record: record["thread"])
                own = best["statistics"].get("seconds", {})
                print(
                    f"{model:9}{mode:10} {phase}  {best['thread']:6.2f} "
                    f"({best['import']:.2f}, {best['calls'][0]:.2f}, {best['garbage']:.2f})"
                    f"  {best['process'] - best['thread']:6.2f}  {best['children']:6.2f}   {best['wall']:6.2f}   "
                    + ", ".join(f"{name} {seconds:.2f}" for name, seconds in own.items()),
                    flush=True,
                )
                if plan.profile == phase:
                    print(best["profile"])
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
