"""Shows where compile time goes: one model, one backend, caches empty, host phases and Python's most expensive calls.

python benchmarks/compile_time.py --model llama --mode training --profile
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))


from backends import compile_with, count_work
from cell import Cell, build_module, inference_step, training_step, wait
from tree import add_packages_to_path, results_folder
from workloads import WORKLOADS


def torch_phases() -> dict[str, float]:
    """Returns seconds per phase as torch's own timers saw them; nested phases hold their inner ones."""
    from torch._dynamo.utils import compile_times

    names, values = compile_times(repr="csv", aggregate=True)
    return {name: float(value) for name, value in zip(names, values, strict=False)}


def compile_once(plan: argparse.Namespace) -> dict[str, Any]:
    """Returns the wall-clock seconds of the first call, torch's phases and the backend's own counts."""
    cell = Cell(plan.model, plan.mode, plan.backend, "cold", plan.size, plan.device, plan.dtype, 1, 1)
    workload = WORKLOADS[plan.model]
    module, inputs = build_module(cell, workload)
    wait(plan.device)
    profiler = cProfile.Profile() if plan.profile else None
    started = time.perf_counter()
    if profiler:
        profiler.enable()
    compiled = compile_with(plan.backend, module)
    if plan.mode == "training":
        training_step(compiled, module, inputs, workload.learning_rate)[1]()
    else:
        inference_step(compiled, inputs)()
    wait(plan.device)
    if profiler:
        profiler.disable()
    record: dict[str, Any] = {"seconds": time.perf_counter() - started, **count_work(plan.backend)}
    record["phases"] = torch_phases()
    if profiler:
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats(plan.lines)
        pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(plan.lines)
        record["profile"] = text.getvalue()
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(WORKLOADS), default="gpt2")
    parser.add_argument("--mode", choices=("inference", "training"), default="training")
    parser.add_argument("--backend", default="ferrite")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--profile", action="store_true", help="also profile Python, which slows it down")
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--out", type=Path, default=results_folder())
    plan = parser.parse_args()
    with tempfile.TemporaryDirectory() as caches:
        places = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "FERRITE_CACHE_DIR")
        os.environ.update({name: f"{caches}/{name.lower()}" for name in places})
        record = compile_once(plan)
    name = f"compile-{plan.model}-{plan.mode}-{plan.backend}"
    plan.out.mkdir(parents=True, exist_ok=True)
    if "profile" in record:
        (plan.out / f"{name}.txt").write_text(record.pop("profile"))
        print(f"profile in {plan.out / name}.txt")
    (plan.out / f"{name}.json").write_text(json.dumps(record, indent=1, default=str))
    for phase, seconds in sorted(record["phases"].items(), key=lambda item: -item[1])[:20]:
        print(f"{seconds:9.3f} s  {phase}")
    print(f"{record['seconds']:9.3f} s  first call, all of it ({plan.model} {plan.mode} {plan.backend})")
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
