"""Says of results of `benchmarks/kernels/run.py` whether they reach the figures that are published for them.

    python benchmarks/kernels/verdict.py benchmark-results/kernels.json more-results.json

Results of several runs count together: of one cell the last; ``--out`` writes them as if one run had measured them,
without the configs of each kernel. Prints PASS, FAIL or, where a backend was not measured,
OPEN for each figure, and the cells that stand in its way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.kernels.plot import plot_kernels
from benchmarks.kernels.report import markdown_table
from benchmarks.kernels.results import (
    Result,
    as_json,
    bandwidths_of,
    compile_seconds,
    geomean,
    ratios,
    read_runs,
    results_of,
)

MEAN_SHARE, LEAST_SHARE, TUNED_SHARE = 0.80, 0.60, 0.85
"""Geometric mean of the bandwidth bound in default mode, the least of any case, and the mean with configs measured."""
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
"""Per cent of the bound that a case has to reach: the best of compilers and hand-written kernels."""


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


def figures(results: Sequence[Result]) -> list[Figure]:
    """Returns every figure, judged by these results; cells that failed count as not reaching anything."""
    return [
        _shares(results, "ferrite", MEAN_SHARE, LEAST_SHARE),
        _shares(results, "ferrite-max", TUNED_SHARE, 0.0),
        _speed(results, "inductor", FASTER, SLOWER),
        _speed(results, "inductor-max", FASTER_THAN_TUNED, None),
        _bars(results),
        _compilation(results),
        _predictions(results),
    ]


def _shares(results: Sequence[Result], backend: str, mean: float, least: float) -> Figure:
    """Judges the shares of the bandwidth bound; cases with a limit other than memory are not asked."""
    name = f"{backend}: geometric mean of the bandwidth bound over {mean * 100:.0f} %"
    name += f", no case under {least * 100:.0f} %" if least else ""
    cells = [r for r in results if r.backend == backend and r.is_memory_bound]
    if not cells:
        return Figure(name, None, "not measured")
    found = geomean(r.share for r in cells if r.share)
    low = sorted((r for r in cells if (r.share or 0.0) < least), key=lambda r: r.share or 0.0)
    reached = found >= mean and not low and all(r.share for r in cells)
    worst = min(cells, key=lambda r: r.share or 0.0)
    text = f"{found * 100:.1f} % over {len(cells)} cells, the worst {_cell(worst)}"
    return Figure(name, reached, text, tuple(map(_cell, low)))


def _speed(results: Sequence[Result], opponent: str, mean: float, least: float | None) -> Figure:
    name = f"ferrite: {mean}x as fast as {opponent} in geometric mean"
    name += f", no case slower by more than {(least - 1) * 100:.0f} %" if least else ""
    found = ratios(results, opponent)
    if not found:
        return Figure(name, None, "not measured")
    failed = [r for r in results if r.backend == "ferrite" and not r.ms]
    slow = sorted((ratio, row) for row, ratio in found.items() if least and ratio < 1 / least)
    lines = [f"{' '.join(row)}: {ratio:.2f}" for ratio, row in slow] + list(map(_cell, failed))
    worst = min(found, key=lambda row: found[row])
    total = geomean(found.values())
    text = f"{total:.3f} over {len(found)} cells, the worst {' '.join(worst)}: {found[worst]:.2f}"
    return Figure(name, total >= mean and not lines, text, tuple(lines))


def _bars(results: Sequence[Result]) -> Figure:
    name = "ferrite: every case of the published table at the best that was seen"
    cells = [r for r in results if r.backend == "ferrite" and r.case in BARS]
    low = [r for r in cells if (r.share or 0.0) * 100 < BARS[r.case]]
    lines = [f"{_cell(r)}, bar {BARS[r.case]} %" for r in low]
    missing = [case for case in BARS if case not in {r.case for r in cells}]
    if missing:
        lines.append(f"not measured: {', '.join(missing)}")
    if not cells:
        return Figure(name, None, "not measured")
    reached = False if low else None if missing else True
    return Figure(name, reached, f"{len(cells) - len(low)} of {len(cells)} cells", tuple(lines))


def _compilation(results: Sequence[Result]) -> Figure:
    """Judges the seconds of compiling the rows that both compiled; the tuned backends' stand below."""
    name = f"ferrite: everything compiled in {COMPILE_SHARE} of the time of inductor"
    count, seconds = compile_seconds(results, ("inductor", "ferrite"))
    if len(seconds) < 2 or not count:
        return Figure(name, None, "not measured")
    tuned, tuning = compile_seconds(results, ("inductor-max", "ferrite-max"))
    lines = [f"{backend}: {total:.0f} s for {tuned} rows" for backend, total in tuning.items()]
    own, theirs = seconds["ferrite"], seconds["inductor"]
    text = f"{own / theirs:.2f} over {count} rows ({own:.0f} s, {theirs:.0f} s)"
    return Figure(name, own <= COMPILE_SHARE * theirs, text, tuple(lines))


def _predictions(results: Sequence[Result]) -> Figure:
    """Tells how far predictions are off; there is no bar, and the worst are named."""
    name = "ferrite: measured over predicted time, as a factor either way"
    found = {r.row: r.factor for r in results if r.backend == "ferrite" and r.factor}
    if not found:
        return Figure(name, None, "not measured")
    factors = {row: max(factor, 1 / factor) for row, factor in found.items()}
    worst = sorted(factors, key=lambda row: -factors[row])[:6]
    lines = tuple(f"{' '.join(row)}: {found[row]:.2f}" for row in worst)
    return Figure(name, True, f"{geomean(factors.values()):.3f} in geometric mean over {len(factors)} cells", lines)


def _cell(result: Result) -> str:
    what = f"{result.share * 100:.1f} %" if result.share else f"failed: {result.failed}"
    return f"{result.case} {result.dtype}: {what}"


def main() -> int:
    """Prints the figures; returns 1 if one is not reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="JSON of runs of run.py")
    parser.add_argument("--table", type=Path, help="file for a Markdown table of all of them")
    parser.add_argument("--plot", type=Path, help="file for a plot (PNG) of all of them")
    parser.add_argument("--out", type=Path, help="file for all of them together")
    parser.add_argument("--machine", default="", help="what was measured on, where results do not say")
    chosen = parser.parse_args()
    runs = read_runs(chosen.results)
    results, bandwidths = results_of(runs), bandwidths_of(runs)
    machine = ", ".join(dict.fromkeys(run.get("machine", chosen.machine) for run in runs))
    backends = list(dict.fromkeys(r.backend for r in results))
    if chosen.table:
        chosen.table.write_text(markdown_table(results, backends))
    if chosen.plot and not plot_kernels(results, backends, bandwidths[0], machine, chosen.plot):
        print("no plot: matplotlib is not installed")
    if chosen.out:
        chosen.out.write_text(as_json(bandwidths, [replace(r, kernels=()) for r in results], machine=machine))
    judged = figures(results)
    print("\n".join(map(str, judged)))
    return 1 if any(figure.reached is False for figure in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
