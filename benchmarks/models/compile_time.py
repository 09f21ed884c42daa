"""Shows where compile time goes: one model, one backend, caches empty, host phases and Python's most expensive calls.

python benchmarks/models/compile_time.py --model llama --mode training --profile
python benchmarks/models/compile_time.py --model gpt2 --mode training --phases    # cold and warm process
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


from benchmarks.models.cell import Cell, build_module, inference_step, training_step, wait
from benchmarks.models.workloads import WORKLOADS
from benchmarks.tools.backends import compile_with, count_work
from benchmarks.tools.tree import add_packages_to_path, caches_in, compile_bytecode, results_folder


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
    if plan.backend == "ferrite":
        import ferrite_torch  # noqa: F401
    imported = time.perf_counter() - started
    compiled = compile_with(plan.backend, module)
    if plan.mode == "training":
        training_step(compiled, module, inputs, workload.learning_rate)[1]()
    else:
        inference_step(compiled, inputs)()
    wait(plan.device)
    if profiler:
        profiler.disable()
    record: dict[str, Any] = {"seconds": time.perf_counter() - started, **count_work(plan.backend)}
    record["import_s"] = imported
    record["phases"] = torch_phases()
    if profiler:
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats(plan.lines)
        pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(plan.lines)
        record["profile"] = text.getvalue()
    return record


def phase_row(record: dict[str, Any]) -> dict[str, float]:
    """Returns the seconds of each phase, without those inside it, in the order in which they happen."""
    torch_seconds, own = record["phases"], dict(record.get("statistics", {}).get("seconds", {}))
    capture = torch_seconds.get("_compile.compile_inner", 0.0)
    behind = torch_seconds.get("OutputGraph.call_user_compiler", 0.0)
    row = {"import of the backend": record["import_s"], "dynamo": capture - behind}
    row["AOTAutograd and its cache" if own else "AOTAutograd and backend"] = max(0.0, behind - sum(own.values()))
    row |= own
    row["rest: kernels, first run"] = max(0.0, record["seconds"] - record["import_s"] - capture)
    return {**row, "first call, all of it": record["seconds"]}


def compare_phases(plan: argparse.Namespace, arguments: list[str]) -> None:
    """Prints the phases of two processes, the second of which finds the caches of the first."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for phase in ("cold", "warm"):
            out = Path(folder) / phase
            kept = ["--caches", f"{folder}/caches", "--out", str(out)]
            script = [sys.executable, str(Path(__file__).resolve()), *arguments, *kept]
            subprocess.run(script, check=True, stdout=subprocess.DEVNULL)
            rows[phase] = phase_row(json.loads(next(out.glob("*.json")).read_text()))
    print(f"{plan.model} {plan.mode} {plan.backend}, seconds")
    print(f"{'':28}{'cold':>9}{'warm':>9}")
    for name in dict.fromkeys([*rows["cold"], *rows["warm"]]):
        cells = (f"{row[name]:9.3f}" if name in row else " " * 9 for row in rows.values())
        print(f"{name:28}{''.join(cells)}")


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
    parser.add_argument("--phases", action="store_true", help="only print the phases of a cold and a warm process")
    parser.add_argument("--caches", type=Path, help="folder of caches to use and keep; a new one without it")
    plan = parser.parse_args()
    compile_bytecode()
    if plan.phases:
        compare_phases(plan, [argument for argument in sys.argv[1:] if argument != "--phases"])
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        os.environ.update(caches_in(Path(plan.caches or fresh)))
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
