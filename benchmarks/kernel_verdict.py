"""Says of results of `benchmarks/kernels.py` whether they reach the figures that are published for them.

    python benchmarks/kernel_verdict.py benchmark-results/kernels.json more-results.json

Results of several runs count together: of one cell the last. Prints PASS, FAIL or, where a backend was not measured,
OPEN for each figure, and the cells that stand in its way.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MEAN_SHARE, LEAST_SHARE, TUNED_SHARE = 0.80, 0.60, 0.85
"""Geometric mean of the floor in default mode, the least of any case, and the mean with configs measured."""
FASTER, FASTER_THAN_TUNED, SLOWER = 1.25, 1.05, 1.05
"""Time of Inductor's default and of its max-autotune over ours, in geometric mean; how much slower a case may be."""
COMPILE_SHARE = 0.7
"""Seconds of compiling everything, over Inductor's in the same run."""

BARS = {
    "gelu+bias": 72,
    "dropout+residual": 97,
    "layer norm": 90,
    "layer norm f+b": 75,
    "rms norm f+b": 79,
    "softmax 4k": 90,
    "softmax 128k": 71,
    "softmax dim 0": 62,
    "loss 128k": 95,
    "loss 128k f+b": 63,
    "argmax 128k": 99,
    "cumsum 16k rows": 90,
    "cumsum flat": 84,
    "fp8 rows": 89,
    "group norm silu": 70,
    "index add": 50,
    "int8 product": 60,
    "batch norm training": 88,
    "swiglu": 96,
    "transpose+add": 96,
    "full sum": 96,
}
"""Per cent of the floor that a case has to reach: the best that was seen of anybody, by hand or by a compiler."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure: whether it is reached (None: not measured), what was found, and what stands in its way."""

    name: str
    reached: bool | None
    found: str
    against: tuple[str, ...] = ()

    def __str__(self) -> str:
        word = {True: "PASS", False: "FAIL", None: "OPEN"}[self.reached]
        return "\n".join((f"{word}  {self.name}: {self.found}", *(f"        {line}" for line in self.against)))


def geomean(numbers: Iterable[float]) -> float:
    """Returns the geometric mean; nan of nothing."""
    logs = [math.log(number) for number in numbers]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def figures(results: Sequence[Any]) -> list[Figure]:
    """Returns every figure, judged by these results; cells that failed count as not reaching anything."""
    table = {(r.case, r.dtype, r.backend): r for r in results}
    return [
        _shares(table, "ferrite", MEAN_SHARE, LEAST_SHARE),
        _shares(table, "ferrite-max", TUNED_SHARE, 0.0),
        _speed(table, "ferrite", "inductor", FASTER, SLOWER),
        _speed(table, "ferrite", "inductor-max", FASTER_THAN_TUNED, None),
        _bars(table),
        _compilation(table),
        _predictions(table),
    ]


Table = dict[tuple[str, str, str], Any]


def _shares(table: Table, backend: str, mean: float, least: float) -> Figure:
    """Judges the shares of the floor; sorts and searches, which are bound by arithmetic, are not asked."""
    name = f"{backend}: geometric mean of the floor over {mean * 100:.0f} %"
    name += f", no case under {least * 100:.0f} %" if least else ""
    cells = [r for r in table.values() if r.backend == backend and r.memory_bound]
    if not cells:
        return Figure(name, None, "not measured")
    found = geomean(r.share for r in cells if r.share)
    low = sorted((r for r in cells if (r.share or 0.0) < least), key=lambda r: r.share or 0.0)
    reached = found >= mean and not low and all(r.share for r in cells)
    return Figure(name, reached, f"{found * 100:.1f} % over {len(cells)} cells", tuple(map(_cell, low)))


def _speed(table: Table, backend: str, opponent: str, mean: float, least: float | None) -> Figure:
    name = f"{backend}: {mean}x as fast as {opponent} in geometric mean"
    name += f", no case slower by more than {(least - 1) * 100:.0f} %" if least else ""
    ratios = {
        key: table[(*key[:2], opponent)].ms / r.ms
        for key, r in table.items()
        if key[2] == backend and r.ms and getattr(table.get((*key[:2], opponent)), "ms", None)
    }
    if not ratios:
        return Figure(name, None, "not measured")
    failed = [r for key, r in table.items() if key[2] == backend and not r.ms]
    slow = sorted((ratio, key) for key, ratio in ratios.items() if least and ratio < 1 / least)
    lines = [f"{key[0]} {key[1]}: {ratio:.2f}" for ratio, key in slow] + list(map(_cell, failed))
    found = geomean(ratios.values())
    return Figure(name, found >= mean and not lines, f"{found:.3f} over {len(ratios)} cells", tuple(lines))


def _bars(table: Table) -> Figure:
    name = "ferrite: every case of the published table at the best that was seen"
    cells = [r for r in table.values() if r.backend == "ferrite" and r.case in BARS]
    low = [r for r in cells if (r.share or 0.0) * 100 < BARS[r.case]]
    lines = [f"{_cell(r)}, bar {BARS[r.case]} %" for r in low]
    missing = [case for case in BARS if case not in {r.case for r in cells}]
    if missing:
        lines.append(f"not measured: {', '.join(missing)}")
    if not cells:
        return Figure(name, None, "not measured")
    reached = False if low else None if missing else True
    return Figure(name, reached, f"{len(cells) - len(low)} of {len(cells)} cells", tuple(lines))


def _compilation(table: Table) -> Figure:
    name = f"ferrite: everything compiled in {COMPILE_SHARE} of the time of inductor"
    pairs = [
        (r.compile_s, other.compile_s)
        for key, r in table.items()
        if key[2] == "ferrite" and r.compile_s
        for other in [table.get((*key[:2], "inductor"))]
        if other is not None and other.compile_s
    ]
    if not pairs:
        return Figure(name, None, "not measured")
    own, theirs = map(sum, zip(*pairs, strict=True))
    return Figure(name, own <= COMPILE_SHARE * theirs, f"{own / theirs:.2f} ({own:.0f} s, {theirs:.0f} s)")


def _predictions(table: Table) -> Figure:
    """Tells how far predictions are off; there is no bar, and the worst are named."""
    name = "ferrite: measured over predicted time, as a factor either way"
    ratios = {key: r.ms / r.predicted_ms for key, r in table.items() if r.ms and r.predicted_ms and key[2] == "ferrite"}
    if not ratios:
        return Figure(name, None, "not measured")
    factors = {key: max(ratio, 1 / ratio) for key, ratio in ratios.items()}
    worst = sorted(factors, key=lambda key: -factors[key])[:6]
    lines = tuple(f"{case} {dtype}: {ratios[case, dtype, backend]:.2f}" for case, dtype, backend in worst)
    return Figure(name, True, f"{geomean(factors.values()):.3f} in geometric mean over {len(factors)} cells", lines)


def _cell(result: Any) -> str:
    what = f"{result.share * 100:.1f} %" if result.share else f"failed: {result.failed}"
    return f"{result.case} {result.dtype}: {what}"


def read_results(paths: Sequence[Path]) -> list[Any]:
    """Returns the results of several files, of one cell the last."""
    empty = {"memory_bound": True, "predicted_ms": None, "compile_s": None}
    found: dict[tuple[str, str, str], Any] = {}
    for path in paths:
        for row in json.loads(path.read_text())["results"]:
            found[row["case"], row["dtype"], row["backend"]] = SimpleNamespace(**(empty | row))
    return list(found.values())


def main(arguments: Sequence[str]) -> int:
    """Prints the figures; returns 1 if one is not reached."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    judged = figures(read_results([Path(argument) for argument in arguments]))
    print("\n".join(map(str, judged)))
    return 1 if any(figure.reached is False for figure in judged) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
