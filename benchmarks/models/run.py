"""Measures whole models on each backend side by side: results first, then time, memory and compile time.

    python benchmarks/models/run.py                                   # everything, about eight minutes on one H200
    python benchmarks/models/run.py --models gpt2,llama --modes inference --skip-warm

Every cell (model x mode x backend) runs in a process of its own with empty caches, then once more in a second process
that finds the caches of the first. Our packages are compiled to bytecode first, as an installer does. The child
processes are forked from one that has imported torch and transformers and nothing else, so compile time holds
everything that a user waits for beyond those imports: the compiler's own imports, capture, code generation, compiler
processes and tuning.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.models.cell import Cell
from benchmarks.models.report import judge, print_progress, print_report
from benchmarks.models.workloads import WORKLOADS
from benchmarks.tools.tree import ROOT, add_packages_to_path, caches_in, compile_bytecode, results_folder
from benchmarks.tools.zygote import Zygote, run_child, start_zygote, stop_zygote

MODES = ("inference", "training")
BACKENDS = ("eager", "inductor", "ferrite")
PRELOAD = ("torch", "transformers.models.gpt2.modeling_gpt2", "transformers.models.bert.modeling_bert")


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run measures and how long it may take."""

    models: tuple[str, ...]
    modes: tuple[str, ...]
    backends: tuple[str, ...]
    phases: tuple[str, ...]
    size: str
    device: str
    dtype: str
    reps: int
    steps: int
    timeout: float
    deadline: float
    out: Path


def split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def read_plan(arguments: list[str] | None = None) -> Plan:
    """Returns the plan that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=split, default=tuple(WORKLOADS), help="comma separated")
    parser.add_argument("--modes", type=split, default=MODES)
    parser.add_argument("--backends", type=split, default=BACKENDS)
    parser.add_argument("--skip-warm", action="store_true", help="leave out the second process per cell")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--reps", type=int, default=20, help="timed steps per process")
    parser.add_argument("--steps", type=int, default=20, help="training steps of the loss comparison")
    parser.add_argument("--timeout", type=float, default=150.0, help="seconds for one process")
    parser.add_argument("--deadline", type=float, default=560.0, help="seconds after which no new process starts")
    parser.add_argument("--out", type=Path, default=results_folder() / "models")
    given = vars(parser.parse_args(arguments))
    for name, known in (("models", tuple(WORKLOADS)), ("modes", MODES)):
        unknown = set(given[name]) - set(known)
        if unknown:
            parser.error(f"unknown {name}: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    phases = ("cold",) if given.pop("skip_warm") else ("cold", "warm")
    return Plan(phases=phases, **given)


def cells_of(plan: Plan) -> Iterator[Cell]:
    """Yields the cells in running order: backends of one model next to each other, so that they see the same device."""
    for model in plan.models:
        for mode in plan.modes:
            for phase in plan.phases:
                for backend in plan.backends:
                    if phase == "warm" and backend == "eager":
                        continue
                    reps = plan.reps if phase == "cold" else max(3, plan.reps // 2)
                    yield Cell(model, mode, backend, phase, plan.size, plan.device, plan.dtype, reps, plan.steps)  # type: ignore[arg-type]


def caches_of(folder: Path, cell: Cell) -> dict[str, str]:
    """Returns the environment that gives the cell's two processes caches of their own."""
    home = folder / "caches" / f"{cell.model}-{cell.mode}-{cell.backend}"
    home.mkdir(parents=True, exist_ok=True)
    return caches_in(home)


def run_cell(zygote: Zygote, plan: Plan, cell: Cell, work: Path, left: float) -> dict[str, Any]:
    """Runs one cell in its own process; returns its record, or one that says what went wrong."""
    record, log = work / f"{cell.key}.json", work / f"{cell.key}.log"
    ended = run_child(
        zygote,
        "benchmarks.models.cell:measure",
        {"cell": asdict(cell), "folder": str(work)},
        caches_of(work, cell),
        log,
        min(plan.timeout, left),
    )
    if record.exists():
        return {**json.loads(record.read_text()), "process_s": ended.seconds}
    shutil.copy(log, plan.out / log.name)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    reason = f"timed out after {ended.seconds:.0f} s" if ended.timed_out else f"exit status {ended.status}"
    return {"cell": asdict(cell), "failed": reason, "last_words": lines[-25:], "process_s": ended.seconds}


def run(plan: Plan) -> int:
    """Runs the plan in a temporary folder; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="ferrite-models-", ignore_cleanup_errors=True) as work:
        return run_in(plan, Path(work))


def run_in(plan: Plan, work: Path) -> int:
    """Runs the plan, writing `models.json` anew after every cell, and the logs of the cells that failed."""
    started = time.monotonic()
    plan.out.mkdir(parents=True, exist_ok=True)
    compile_bytecode()
    zygote = start_zygote(PRELOAD)
    records: dict[str, dict[str, Any]] = {}
    cells = list(cells_of(plan))
    for number, cell in enumerate(cells):
        left = plan.deadline - (time.monotonic() - started)
        if left < 5.0:
            records[cell.key] = {"cell": asdict(cell), "failed": "not run: the deadline came first"}
            continue
        records[cell.key] = run_cell(zygote, plan, cell, work, left)
        print_progress(number + 1, len(cells), records[cell.key], time.monotonic() - started)
        write_details(plan, records, judge(plan.models, plan.modes, records, work))
    stop_zygote(zygote)
    verdict = judge(plan.models, plan.modes, records, work)
    write_details(plan, records, verdict)
    print_report(verdict, time.monotonic() - started)
    return 0 if verdict["passed"] else 1


def write_details(plan: Plan, records: dict[str, dict[str, Any]], verdict: dict[str, Any]) -> None:
    details = {"plan": {**asdict(plan), "out": str(plan.out)}, "records": records, "verdict": verdict}
    (plan.out / "models.json").write_text(json.dumps(details, indent=1))


if __name__ == "__main__":
    add_packages_to_path()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    sys.exit(run(read_plan()))
