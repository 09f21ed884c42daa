"""Measures whole models on each backend side by side: results first, then time, memory and compile time.

    python benchmarks/models/run.py                                   # everything, about eight minutes on one H200
    python benchmarks/models/run.py --models gpt2,llama --modes inference --skip-warm
    python benchmarks/models/run.py --set wide --prepare 12 --workers 3 --part 0/4 --out benchmark-results/wide0
    python benchmarks/models/run.py --set wide --merge benchmark-results/wide*/models.json

Every cell (model x mode x backend) runs in a process of its own with empty caches, then once more in a second process
that finds the caches of the first. Our packages are compiled to bytecode first, as an installer does. The child
processes are forked from one that has imported torch and transformers and nothing else, so compile time holds
everything that a user waits for beyond those imports: the compiler's own imports, capture, code generation, compiler
processes and tuning.

``--set wide`` takes the architectures of `benchmarks/models/wide.py`, of which each draws a batch, a layout and a
precision, or has all that ``--batches``, ``--layouts`` and ``--dtype`` list. ``--prepare N`` has the first processes of
all cells compile and check first, N at once; the second ones, eager's as well, are timed then, one at a time: with
``--workers W``, W of them trace and load at once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.figures.wide_figures import wide_figures
from benchmarks.models.cell import Cell
from benchmarks.models.precision import PRECISIONS
from benchmarks.models.preparation import PREPARED, PREPARING, run_all, zygotes_for
from benchmarks.models.report import judge, print_progress, print_report, print_table
from benchmarks.models.variants import DRAWN, LAYOUTS, Variant, part_of, variants_of
from benchmarks.models.wide import WIDE
from benchmarks.models.workloads import WORKLOADS
from benchmarks.tools.backends import UNCOMPILED
from benchmarks.tools.forgetting import forget_choices
from benchmarks.tools.timing import machine_name
from benchmarks.tools.tree import ROOT, add_packages_to_path, caches_in, compile_bytecode, results_folder
from benchmarks.tools.zygote import Zygote, run_child

MODES = ("inference", "training")
BACKENDS = ("eager", "inductor", "ferrite")
SETS = {"five": WORKLOADS, "wide": WIDE}
PRELOAD = (
    *("torch", "transformers.models.gpt2.modeling_gpt2", "transformers.models.bert.modeling_bert"),
    *("torchvision.models", "timm"),
)
FEWEST_SECONDS = 5.0
"""Left before the deadline, with less than which no process begins."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run measures and how long it may take."""

    set: str
    variants: tuple[Variant, ...]
    modes: tuple[str, ...]
    backends: tuple[str, ...]
    phases: tuple[str, ...]
    size: str
    device: str
    reps: int
    steps: int
    prepare: int
    workers: int
    timeout: float
    deadline: float
    out: Path
    merge: tuple[Path, ...]

    @property
    def names(self) -> list[str]:
        return [variant.name for variant in self.variants]


def split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def numbers(text: str) -> tuple[str, ...]:
    """Returns the positive whole numbers of a list, or `DRAWN`."""
    found = split(text)
    if found != DRAWN and not all(part.isdecimal() and int(part) for part in found):
        raise argparse.ArgumentTypeError(f"takes positive whole numbers or {DRAWN[0]}, not {text!r}")
    return found


def make_parser() -> argparse.ArgumentParser:
    """Returns what reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=tuple(SETS), default="five")
    parser.add_argument("--models", type=split, default=(), help="comma separated; all of the set without it")
    parser.add_argument("--modes", type=split, default=MODES)
    parser.add_argument(
        "--backends", type=split, default=BACKENDS, help="also inductor-reduce, ferrite-reduce and others"
    )
    parser.add_argument("--batches", type=numbers, default=DRAWN, help="wide: such as 1,8,32; drawn without it")
    parser.add_argument("--layouts", type=split, default=DRAWN, help="wide: nchw,nhwc; drawn without it")
    parser.add_argument("--dtype", type=split, default=(), help=f"of {', '.join(PRECISIONS)}; wide: several, or drawn")
    parser.add_argument("--seed", type=int, default=0, help="wide: of what is drawn")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th variant of a model, from the k-th")
    parser.add_argument("--prepare", type=int, default=0, help="processes that compile and check everything first")
    parser.add_argument("--workers", type=int, default=1, help="after --prepare: while one is timed the others trace")
    parser.add_argument("--skip-warm", action="store_true", help="leave out the second process per cell")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--reps", type=int, default=0, help="most timed steps per process: 20, wide: 100")
    parser.add_argument("--steps", type=int, default=0, help="training steps of the loss comparison: 20, wide: 5")
    parser.add_argument("--timeout", type=float, default=150.0, help="seconds for one process")
    parser.add_argument("--deadline", type=float, default=560.0, help="seconds after which no new process starts")
    parser.add_argument("--out", type=Path, default=results_folder() / "models")
    parser.add_argument("--merge", nargs="+", type=Path, default=(), help="models.json of parts: prints all together")
    return parser


def read_plan(arguments: list[str] | None = None) -> Plan:
    """Returns the plan that the command line asks for."""
    parser = make_parser()
    given = vars(parser.parse_args(arguments))
    is_wide, known = given["set"] == "wide", SETS[given["set"]]
    dtypes = given.pop("dtype") or (DRAWN if is_wide else ("bfloat16",))
    batches, layouts, seed = given.pop("batches"), given.pop("layouts"), given.pop("seed")
    models = given.pop("models") or tuple(known)
    for name, values, allowed in (
        ("models", models, tuple(known)),
        ("modes", given["modes"], MODES),
        ("layouts", layouts, (*DRAWN, *LAYOUTS)),
        ("dtype", dtypes, (*DRAWN, *PRECISIONS)),
    ):
        unknown = set(values) - set(allowed)
        if unknown:
            parser.error(f"unknown {name}: {', '.join(sorted(unknown))}; there are {', '.join(allowed)}")
    if not is_wide and (len(dtypes) > 1 or dtypes == DRAWN):
        parser.error("the set 'five' has one dtype for all models")
    if given["workers"] > 1 and not given["prepare"]:
        parser.error("--workers goes with --prepare: else what is timed compiles with empty caches")
    if given["prepare"] and given["skip_warm"]:
        parser.error("--prepare times the second process of each cell, which --skip-warm leaves out")
    if is_wide:
        variants = list(variants_of({name: WIDE[name] for name in models}, batches, layouts, dtypes, seed))
    else:
        variants = [Variant(name, dtypes[0]) for name in models]
    try:
        chosen = part_of(variants, given.pop("part"))
    except ValueError as error:
        parser.error(f"--part: {error}")
    given["reps"] = given["reps"] or (100 if is_wide else 20)
    given["steps"] = given["steps"] or (5 if is_wide else 20)
    given["merge"] = tuple(given["merge"])
    phases = ("cold",) if given.pop("skip_warm") else ("cold", "warm")
    return Plan(phases=phases, variants=tuple(chosen), **given)


def cells_of(plan: Plan) -> Iterator[Cell]:
    """Yields the cells in running order: backends of one model next to each other, so that they see the same device.

    Where all compile first, cold cells are not timed, and eager has a second process, too.
    """
    for variant in plan.variants:
        for mode in plan.modes:
            for phase in plan.phases:
                for backend in plan.backends:
                    if phase == "warm" and backend == "eager" and not plan.prepare:
                        continue
                    cold, warm = (0, plan.reps) if plan.prepare else (plan.reps, max(3, plan.reps // 2))
                    reps = cold if phase == "cold" else warm
                    where = (plan.size, plan.device, variant.dtype, reps, plan.steps)
                    yield Cell(variant.model, mode, backend, phase, *where, variant.batch, variant.layout)  # type: ignore[arg-type]


def caches_of(folder: Path, cell: Cell) -> dict[str, str]:
    """Returns the environment that gives the cell's two processes caches of their own."""
    home = folder / "caches" / f"{cell.row}-{cell.backend}"
    home.mkdir(parents=True, exist_ok=True)
    return caches_in(home)


def run_cell(
    zygote: Zygote, cell: Cell, share: tuple[int, int], plan: Plan, work: Path, end: float, lock: Path | None = None
) -> dict[str, Any]:
    """Runs one cell in its own process, killed at the end; returns its record, or one that says what went wrong."""
    record, log = work / f"{cell.key}.json", work / f"{cell.key}.log"
    ended = run_child(
        zygote,
        "benchmarks.models.cell:measure",
        {"cell": asdict(cell), "folder": str(work), "share": share, "lock": str(lock) if lock else None},
        caches_of(work, cell),
        log,
        min(plan.timeout, end - time.monotonic()),
    )
    if record.exists():
        return {**json.loads(record.read_text()), "process_s": ended.seconds}
    shutil.copy(log, plan.out / log.name)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    reason = f"timed out after {ended.seconds:.0f} s" if ended.timed_out else f"exit status {ended.status}"
    return {"cell": asdict(cell), "failed": reason, "last_words": lines[-25:], "process_s": ended.seconds}


def time_cell(
    zygote: Zygote, cell: Cell, share: tuple[int, int], records: Mapping[str, Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """Runs one cell, but for a second process whose first one failed: there are no caches that it could find."""
    first = records.get(replace(cell, phase="cold").key, {})
    if cell.phase == "warm" and "failed" in first:
        return {"cell": asdict(cell), "failed": "not run: its first process failed"}
    return run_cell(zygote, cell, share, **more)


def prepare_cell(
    zygote: Zygote, cell: Cell, share: tuple[int, int], plan: Plan, work: Path, end: float
) -> dict[str, Any]:
    """Runs one cell beside others, and has its backend forget what it measured meanwhile."""
    record = run_cell(zygote, cell, share, plan, work, end)
    if cell.backend != UNCOMPILED and "failed" not in record:
        forget_choices(caches_of(work, cell))
    return record


def run(plan: Plan) -> int:
    """Runs the plan in a temporary folder; returns the exit status."""
    plan.out.mkdir(parents=True, exist_ok=True)
    if plan.merge:
        return merge(plan)
    with tempfile.TemporaryDirectory(prefix="ferrite-models-", ignore_cleanup_errors=True) as work:
        return run_in(plan, Path(work))


def run_in(plan: Plan, work: Path) -> int:
    """Runs the plan, writing `models.json` anew after every cell, and the logs of the cells that failed."""
    started = time.monotonic()
    compile_bytecode()
    cells = list(cells_of(plan))
    records: dict[str, dict[str, Any]] = {}

    def tell(record: dict[str, Any]) -> None:
        records[Cell(**record["cell"]).key] = record
        print_progress(len(records), len(cells), record, time.monotonic() - started)
        write_details(plan, records)

    first, then = [cell for cell in cells if not cell.reps], [cell for cell in cells if cell.reps]
    preload = [name for name in PRELOAD if importlib.util.find_spec(name.partition(".")[0])]
    with zygotes_for(max(plan.prepare, plan.workers), preload) as zygotes:
        if first:
            begin, end = (started + part * plan.deadline for part in (PREPARING, PREPARED))
            run_all(first, zygotes, partial(prepare_cell, plan=plan, work=work, end=end), begin, tell)
            print(f"all compiled in {time.monotonic() - started:.0f} s, {len(zygotes)} at once", flush=True)
        end = started + plan.deadline
        lock = work / "turn" if plan.workers > 1 else None
        run_one = partial(time_cell, records=records, plan=plan, work=work, end=end, lock=lock)
        run_all(then, zygotes[: plan.workers], run_one, end - FEWEST_SECONDS, tell)
    verdict = judge(plan.names, plan.modes, records, work)
    write_details(plan, records, verdict)
    return report(plan, verdict, time.monotonic() - started)


def report(plan: Plan, verdict: dict[str, Any], seconds: float) -> int:
    """Prints what was found; returns the exit status."""
    if plan.set == "five":
        print_report(verdict, seconds)
        return 0 if verdict["passed"] else 1
    print_table(verdict["rows"])
    print("", *wide_figures(verdict["rows"]), f"total {seconds:.0f} s", sep="\n")
    return 0


def merge(plan: Plan) -> int:
    """Prints the rows of several runs together; returns the exit status."""
    rows = [row for path in plan.merge for row in json.loads(path.read_text())["verdict"]["rows"]]
    return report(plan, {"rows": rows, "bars": [], "passed": True}, 0.0)


def write_details(plan: Plan, records: dict[str, dict[str, Any]], verdict: dict[str, Any] | None = None) -> None:
    """Writes down all that is known; the verdict, which compares results, only at the end."""
    machine = machine_name(plan.device)
    described = {**asdict(plan), "out": str(plan.out), "merge": []}
    details = {"machine": machine, "plan": described, "records": records, "verdict": verdict}
    (plan.out / "models.json").write_text(json.dumps(details, indent=1))


if __name__ == "__main__":
    add_packages_to_path()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    sys.exit(run(read_plan()))
