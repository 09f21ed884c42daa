"""Judges and prints the model benchmark: one row per model and mode, geomeans, and which bars are met."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.models.accuracy import deviation, relative_error, worst_tensor

OWN, OPPONENT, BASE = "ferrite", "inductor", "eager"

ERROR_BAR = 1.5  # times eager's own error against float32
ERROR_FLOOR = 1e-4  # relative error that no bar asks to undercut: float32 against itself has none
LOSS_FLOOR = 0.01  # relative loss deviation that no bar asks to undercut: one part in a hundred over the curve
TIME_BAR = 1.05  # geomean against the opponent
COMPILE_BAR = 1.0
MEMORY_BAR = 1.005  # on each row; half a percent is the allocator's rounding

Records = Mapping[str, Mapping[str, Any]]
Row = dict[str, Any]


def geomean(values: Iterable[float]) -> float:
    kept = [value for value in values if value > 0.0 and math.isfinite(value)]
    return math.exp(statistics.fmean(map(math.log, kept))) if kept else math.nan


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def load_samples(folder: Path, name: str) -> dict[str, torch.Tensor] | None:
    path = folder / f"{name}.pt"
    return torch.load(path) if path.exists() else None


def step_time(records: Records, row: str, backend: str) -> float | None:
    """Returns the median milliseconds of a step over both processes, which ran at different moments."""
    times = [t for phase in ("cold", "warm") for t in records.get(f"{row}-{backend}-{phase}", {}).get("times_ms", [])]
    return statistics.median(times) if times else None


def judge_errors(row: str, backends: Iterable[str], folder: Path) -> Row:
    """Returns each backend's error against float32 and the tensor that is furthest from eager's."""
    reference = load_samples(folder, f"{row}-reference")
    if reference is None:
        return {}
    samples = {backend: load_samples(folder, f"{row}-{backend}-cold") for backend in backends}
    found = {name: value for name, value in samples.items() if value is not None}
    judged: Row = {"error": {name: relative_error(value, reference) for name, value in found.items()}}
    if BASE in found:
        judged["worst"] = {
            name: worst_tensor(value, found[BASE], reference) for name, value in found.items() if name != BASE
        }
    return judged


def judge_losses(records: Records, row: str, backends: Iterable[str]) -> Row:
    """Returns the deviation of each backend's loss curve from eager's, and eager's own from float32."""
    eager = records.get(f"{row}-{BASE}-cold", {})
    own = eager.get("losses") or []
    exact = eager.get("reference", {}).get("losses") or []
    if not own:
        return {}
    curves = {name: records.get(f"{row}-{name}-cold", {}).get("losses") or [] for name in backends}
    return {
        "losses": {name: deviation(curve, own) for name, curve in curves.items() if name != BASE and curve},
        "losses_from_exact": {name: deviation(curve, exact) for name, curve in curves.items() if curve},
    }


def judge_row(model: str, mode: str, records: Records, folder: Path) -> Row:
    """Returns everything the table shows about one model in one mode."""
    row = f"{model}-{mode}"
    mine = [record["cell"]["backend"] for key, record in records.items() if key.startswith(f"{row}-")]
    backends = list(dict.fromkeys(mine))
    cold = {name: records.get(f"{row}-{name}-cold", {}) for name in backends}
    warm = {name: records.get(f"{row}-{name}-warm", {}) for name in backends}
    # The first process of a cell says it, but where that only compiled: then the second one does.
    known = {name: {**warm[name], **cold[name]} for name in backends}
    times = {name: step_time(records, row, name) for name in backends}
    judged: Row = {
        "model": model,
        "mode": mode,
        "ms": times,
        "busy_ms": {name: record.get("profile", {}).get("busy_ms") for name, record in known.items()},
        "busy": {name: busy_share(record.get("profile", {}), times[name]) for name, record in known.items()},
        "mib": {name: record.get("peak_step_mib") for name, record in known.items()},
        "cold_s": {name: record.get("compile_s") for name, record in cold.items()},
        "warm_s": {name: record.get("compile_s") for name, record in warm.items()},
        "breaks": {name: record.get("graph_breaks") for name, record in known.items()},
        "kernels": {name: record.get("kernels") for name, record in known.items()},
        "extern_calls": {name: record.get("extern_calls") for name, record in known.items()},
        "launches": {name: launches_of(record) for name, record in known.items()},
        "failed": {
            f"{name} {phase}": record["failed"]
            for phase, group in (("cold", cold), ("warm", warm))
            for name, record in group.items()
            if "failed" in record
        },
        **judge_errors(row, backends, folder),
        **judge_losses(records, row, backends),
    }
    judged["correct"] = is_correct(judged)
    judged["right"] = {name: is_correct(judged, name) for name in backends if name != BASE}
    return judged


def busy_share(profile: Mapping[str, Any], ms: float | None) -> float | None:
    """Returns the part of a step's wall time in which the device is busy, as the profile of another step tells."""
    union = profile.get("union_ms")
    return min(1.0, union / ms) if union and ms else None


def launches_of(record: Mapping[str, Any]) -> dict[str, int]:
    kinds = record.get("profile", {}).get("kinds", {})
    return {kind: int(total["launches"]) for kind, total in kinds.items()}


def is_correct(row: Row, backend: str = OWN) -> bool | None:
    """Returns whether a backend's numbers may be trusted on this row; None where they are missing."""
    errors = row.get("error", {})
    if backend not in errors or BASE not in errors:
        return None
    if not errors[backend] <= max(ERROR_BAR * errors[BASE], ERROR_FLOOR):
        return False
    if row["mode"] != "training":
        return True
    allowed = max(ERROR_BAR * row["losses_from_exact"].get(BASE, 0.0), LOSS_FLOOR)
    return row["losses"].get(backend, math.inf) <= allowed


def judge(models: Sequence[str], modes: Sequence[str], records: Records, folder: Path) -> dict[str, Any]:
    """Returns all rows, the geomeans and the bars of a run."""
    rows = [judge_row(model, mode, records, folder) for model in models for mode in modes]
    bars = [
        each_bar("correct on every row", rows, lambda row: row["correct"]),
        geomean_bar("time / inductor", rows, "ms", TIME_BAR),
        each_bar("peak memory <= inductor", rows, lambda row: is_leaner(row, OPPONENT)),
        each_bar("peak memory <= eager", rows, lambda row: is_leaner(row, BASE)),
        geomean_bar("cold compile / inductor", rows, "cold_s", COMPILE_BAR),
        geomean_bar("warm compile / inductor", rows, "warm_s", COMPILE_BAR),
    ]
    return {"rows": rows, "bars": bars, "passed": all(bar["passed"] is not False for bar in bars)}


def is_leaner(row: Row, other: str) -> bool | None:
    own = ratio(row["mib"].get(OWN), row["mib"].get(other))
    return None if own is None else own <= MEMORY_BAR


def each_bar(name: str, rows: Sequence[Row], judged: Callable[[Row], bool | None]) -> dict[str, Any]:
    """Returns a bar that every measured row must meet; a row that failed to run does not meet it."""
    results = {f"{row['model']} {row['mode']}": judged(row) for row in rows}
    own_rows = [row for row in rows if OWN in row["ms"]]
    if not own_rows:
        return {"name": name, "passed": None, "detail": "not measured"}
    losing = [label for label, result in results.items() if result is not True]
    if all(result is None for result in results.values()):
        return {"name": name, "passed": None, "detail": "not measured"}
    return {"name": name, "passed": not losing, "detail": "losing: " + ", ".join(losing) if losing else "all rows"}


def geomean_bar(name: str, rows: Sequence[Row], field: str, bar: float) -> dict[str, Any]:
    """Returns a bar on the geomean of ferrite over the opponent; rows without both are named."""
    ratios = {f"{r['model']} {r['mode']}": ratio(r[field].get(OWN), r[field].get(OPPONENT)) for r in rows}
    known = {label: value for label, value in ratios.items() if value is not None}
    if not known:
        return {"name": name, "passed": None, "detail": "not measured"}
    mean = geomean(known.values())
    worst = max(known, key=lambda label: known[label])
    missing = [label for label, value in ratios.items() if value is None]
    detail = f"geomean {mean:.3f} (bar {bar}), worst {worst} {known[worst]:.2f}"
    detail += f", missing: {', '.join(missing)}" if missing else ""
    return {"name": name, "passed": mean <= bar and not missing, "value": mean, "detail": detail}


def print_progress(number: int, total: int, record: Mapping[str, Any], seconds: float) -> None:
    """Prints one line about a cell that has just ended."""
    cell = record["cell"]
    variant = [str(cell[name]) for name in ("batch", "layout", "dtype") if cell["batch"] and cell[name]]
    label = " ".join((cell["model"], *variant, cell["mode"], cell["backend"], cell["phase"]))
    head = f"[{seconds:5.0f} s] {number}/{total} {label:36s}"
    if "failed" in record:
        print(f"{head} FAILED: {record['failed']}", flush=True)
        for line in record.get("last_words", [])[-4:]:
            print(f"          {line[:180]}", flush=True)
        return
    time = statistics.median(record.get("times_ms") or [record["last_call_s"] * 1e3])
    compiled = f"compile {record['compile_s']:6.2f} s" if cell["backend"] != BASE else ""
    print(f"{head} {time:9.3f} ms  {compiled}  process {record['process_s']:.1f} s", flush=True)


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def columns(row: Row, field: str, names: Sequence[str], digits: int = 2, scale: float = 1.0) -> str:
    values = (row[field].get(name) for name in names)
    return " ".join(f"{number(value * scale if value is not None else None, digits):>6s}" for value in values)


def print_table(rows: Sequence[Row]) -> None:
    """Prints a line for each row, and what failed."""
    three, two = (BASE, OPPONENT, OWN), (OPPONENT, OWN)
    wide = max((len(row["model"]) + 1 for row in rows), default=9)
    print("\ne eager, i inductor, f ferrite; busy: part of a step in which the device works")
    print("k/x kernels and library launches in one step; err: error / eager's error")
    print(
        f"{'model':{wide}s}{'mode':6s}|{'ms e':>6s} {'i':>6s} {'f':>6s} {'f/i':>5s} "
        f"|{'busy e':>6s} {'i':>6s} {'f':>6s} |{'GiB e':>6s} {'i':>6s} {'f':>6s} "
        f"|{'cold i':>6s} {'f':>6s} |{'warm i':>6s} {'f':>6s} |{'k/x i':>9s} {'f':>9s} |{'brk i':>5s} {'f':>3s} "
        f"|{'err i':>5s} {'f':>5s} |{'loss f':>7s} {'e':>7s} | ok"
    )
    for row in rows:
        print(row_text(row, wide, three, two))
    for row in rows:
        for label, reason in row["failed"].items():
            print(f"failed: {row['model']} {row['mode']} {label}: {reason}")


def print_report(verdict: Mapping[str, Any], seconds: float) -> None:
    """Prints the table and the bars, shortest last."""
    rows: Sequence[Row] = verdict["rows"]
    print_table(rows)
    for label, own in (("all", MODES_ALL), ("inference", ("inference",)), ("training", ("training",))):
        chosen = [row for row in rows if row["mode"] in own]
        means = {
            name: geomean(filter(None, (ratio(r["ms"].get(name), r["ms"].get(OPPONENT)) for r in chosen)))
            for name in (BASE, OWN)
        }
        print(f"geomean time / inductor, {label}: eager {means[BASE]:.3f}, ferrite {means[OWN]:.3f}")
    for bar in verdict["bars"]:
        result = {True: "PASS", False: "FAIL", None: "n/a "}[bar["passed"]]
        print(f"{result}  {bar['name']}: {bar['detail']}")
    print(f"total {seconds:.0f} s")


MODES_ALL = ("inference", "training")


def launch_text(row: Row, name: str) -> str:
    kinds = row["launches"].get(name) or {}
    return f"{kinds.get('triton', 0)}/{kinds.get('library', 0) + kinds.get('copy', 0)}" if kinds else "-"


def row_text(row: Row, wide: int, three: Sequence[str], two: Sequence[str]) -> str:
    """Returns the table's line about one row."""
    errors = row.get("error", {})
    factors = {name: ratio(errors.get(name), errors.get(BASE)) for name in two}
    return (
        f"{row['model']:{wide}s}{row['mode'][:5]:6s}|{columns(row, 'ms', three)} "
        f"{number(ratio(row['ms'].get(OWN), row['ms'].get(OPPONENT))):>5s} |{columns(row, 'busy', three)} "
        f"|{columns(row, 'mib', three, 2, 1 / 1024)} "
        f"|{columns(row, 'cold_s', two, 1)} |{columns(row, 'warm_s', two, 1)} "
        f"|{launch_text(row, OPPONENT):>9s} {launch_text(row, OWN):>9s} "
        f"|{row['breaks'].get(OPPONENT, '-')!s:>5s} {row['breaks'].get(OWN, '-')!s:>3s} "
        f"|{number(factors[OPPONENT]):>5s} {number(factors[OWN]):>5s} "
        f"|{number(row.get('losses', {}).get(OWN), 4):>7s} {number(row.get('losses_from_exact', {}).get(BASE), 4):>7s} "
        f"| {({True: 'yes', False: 'NO', None: '-'})[row['correct']]}"
    )
