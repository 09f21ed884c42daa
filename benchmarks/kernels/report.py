"""Results of `benchmarks/kernels/run.py` for people, as a Markdown table; `plot` draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks.kernels.results import Result, compile_seconds, geomean, ratios

OPPONENTS = ("inductor", "inductor-max")
"""Backends whose times are compared with ferrite's row by row."""


def markdown_table(results: Sequence[Result], backends: Sequence[str]) -> str:
    """Returns a row for each case and type, with what bounds it, shares of the bound, ratios and the prediction.

    Geometric means, the worst of each column and the seconds of compiling everything come last, and below the table
    why some cases do not wait for memory.
    """
    cells = {(*r.row, r.backend): r for r in results}
    rows = {r.row: r for r in results}
    opponents = [name for name in OPPONENTS if name in backends and "ferrite" in backends]
    compared = {name: ratios(results, name) for name in opponents}
    limits = list(dict.fromkeys(r.limit for r in results if r.limit))
    heads = ["case", "type", "MiB", "bound by", *backends, *(f"{name} / ferrite" for name in opponents), "predicted"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (case, dtype), row in rows.items():
        bound = f"[{limits.index(row.limit) + 1}]" if row.limit else "memory"
        shares = [_cell(cells.get((case, dtype, backend))) for backend in backends]
        beside = [_ratio(compared[name].get((case, dtype))) for name in opponents]
        predicted = _predicted(cells.get((case, dtype, "ferrite")))
        lines.append(f"| {' | '.join([case, dtype, f'{row.bytes / 2**20:.0f}', bound, *shares, *beside, predicted])} |")
    lines += _summary(results, backends, compared)
    lines += ["", *(f"[{number}] {limit}" for number, limit in enumerate(limits, 1))]
    return "\n".join(lines).rstrip() + "\n"


def _summary(
    results: Sequence[Result], backends: Sequence[str], compared: Mapping[str, Mapping[tuple[str, str], float]]
) -> list[str]:
    """Returns the rows about all cases: means, worst, means of the cases that memory bounds, compile time."""
    shares = [[r for r in results if r.backend == backend and r.share] for backend in backends]
    factors = [max(r.factor, 1 / r.factor) for r in results if r.backend == "ferrite" and r.factor]
    count, seconds = compile_seconds(results, backends)
    means = [_ratio(geomean(each.values())) for each in compared.values()]
    worst = [_ratio(min(each.values(), default=math.nan)) for each in compared.values()]
    none = ["" for _ in compared]
    rows = [
        ["geometric mean", *(percent(geomean(r.share for r in each if r.share)) for each in shares), *means],
        ["where memory bounds it", *(percent(geomean(_bound(each))) for each in shares), *none],
        ["worst of these", *(percent(min(_bound(each), default=math.nan)) for each in shares), *worst],
        [f"s to compile {count} rows", *(f"{seconds[b]:.1f}" if b in seconds else "" for b in backends), *none],
    ]
    error = f"x {geomean(factors):.2f} either way" if factors else ""
    return [
        f"| {' | '.join([name, '', '', '', *rest, error if not n else ''])} |" for n, (name, *rest) in enumerate(rows)
    ]


def _bound(results: Sequence[Result]) -> list[float]:
    return [r.share for r in results if r.share and r.is_memory_bound]


def _cell(result: Result | None) -> str:
    if result is None or result.failed or result.share is None or result.ms is None:
        return "failed" if result is not None else "-"
    return f"{result.share * 100:.0f} % ({result.ms * 1e3:.0f} µs)"


def _predicted(result: Result | None) -> str:
    """Returns the predicted time, and the measured one over it."""
    if result is None or result.predicted_ms is None or result.factor is None:
        return "-"
    return f"{result.predicted_ms * 1e3:.0f} µs (x {result.factor:.2f})"


def percent(share: float) -> str:
    """Returns a share in words."""
    return "-" if math.isnan(share) else f"{share * 100:.1f} %"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None or math.isnan(ratio) else f"{ratio:.2f}"
