"""The figures of `dynamic.py`: one compilation for many sizes beside others, and whether they reach their bars."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.kernels.results import geomean

MINE, STATIC, OTHER = "ferrite dynamic", "ferrite static", "inductor dynamic"
MOST_GRAPHS = 2
GEOMEAN_STATIC, WORST_STATIC, GEOMEAN_OTHER = 1.05, 1.15, 0.95


@dataclass(slots=True)
class Row:
    """What one backend did on one sweep: milliseconds by size, graphs, and what went wrong."""

    sweep: str
    backend: str
    graphs: int = 0
    seconds: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def ratios_of(rows: dict[str, Row], other: str) -> dict[str, float]:
    """Returns our dynamic times over another backend's, by size."""
    mine = rows[MINE].times if MINE in rows else {}
    theirs = rows[other].times if other in rows else {}
    return {size: mine[size] / theirs[size] for size in mine if size in theirs}


def verdict(name: str, value: float | None, bar: float) -> str:
    if value is None:
        return f"MISSING {name}"
    return f"{'PASS' if value <= bar else 'FAIL'} {name}: {value:.3f}, bar {bar:g}"


@dataclass(frozen=True, slots=True)
class Figures:
    """Our dynamic times over our static ones, by size, and over the opponent's dynamic ones."""

    static: dict[str, float]
    other: dict[str, float]

    @property
    def slowest(self) -> str:
        """Returns the size at which we are slowest beside our static selves."""
        return max(self.static, key=self.static.__getitem__, default="")

    def means(self) -> tuple[float | None, float | None, float | None]:
        """Returns the geomean and the worst over static, and the geomean over the opponent; None where unmeasured."""
        return (
            geomean(list(self.static.values())) if self.static else None,
            max(self.static.values(), default=None),
            geomean(list(self.other.values())) if self.other else None,
        )


def is_reached(figures: Figures) -> bool:
    """Returns whether all three figures are there and within their bars."""
    bars = (GEOMEAN_STATIC, WORST_STATIC, GEOMEAN_OTHER)
    return all(value is not None and value <= bar for value, bar in zip(figures.means(), bars, strict=True))


def table(rows: Sequence[Row]) -> tuple[str, bool]:
    """Returns the figures of all sweeps with their bars, and whether every bar was reached.

    The bars hold for all models together, and for each kernel.
    """
    by_sweep: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_sweep.setdefault(row.sweep, {})[row.backend] = row
    lines = [f"{'sweep':26} {'graphs':>6} {'/static':>8} {'worst':>6} {'at':>9} {'/inductor dynamic':>18}  wrong"]
    models: list[Figures] = []
    kernels: list[Figures] = []
    graphs = 0
    for name, found in by_sweep.items():
        figures = Figures(ratios_of(found, STATIC), ratios_of(found, OTHER))
        (models if name.rpartition(" ")[2] in ("inference", "training") else kernels).append(figures)
        mine = found.get(MINE, Row(name, MINE, wrong=["not run"]))
        graphs = max(graphs, mine.graphs)
        mean, peak, over_other = ("-" if value is None else f"{value:.3f}" for value in figures.means())
        mark = "" if is_reached(figures) else " *"
        lines.append(
            f"{name:26} {mine.graphs:6} {mean:>8} {peak:>6} {figures.slowest:>9} {over_other:>18}  "
            f"{len(mine.wrong) or ''}{mark}"
        )
    wrong = [f"  {row.sweep}, {row.backend}: {problem}" for row in rows for problem in row.wrong]
    own = sum(len(row.wrong) for row in rows if row.backend.startswith("ferrite"))
    verdicts = [verdict("wrong or failed at a size, ferrite", float(own), 0)]
    verdicts.append(verdict("graphs of a sweep, at most", float(graphs) if by_sweep else None, MOST_GRAPHS))
    if models:
        every = Figures(*({f"{n} {size}": value for n, one in enumerate(models) for size, value in part(one).items()}
                          for part in (lambda one: one.static, lambda one: one.other)))  # fmt: skip
        mean, peak, over_other = every.means()
        verdicts += [
            verdict("models, ferrite dynamic over static, geomean", mean, GEOMEAN_STATIC),
            verdict("models, ferrite dynamic over static, worst", peak, WORST_STATIC),
            verdict("models, ferrite dynamic over inductor dynamic, geomean", over_other, GEOMEAN_OTHER),
        ]
    if kernels:
        missed = sum(not is_reached(figures) for figures in kernels)
        verdicts.append(verdict(f"kernels of {len(kernels)} that miss one of the same bars (*)", float(missed), 0))
    text = "\n".join([*(["what went wrong:", *wrong] if wrong else []), *lines, *verdicts])
    return text, all(line.startswith("PASS") for line in verdicts)


def sizes_text(row: Row) -> str:
    """Returns a line with the times of one backend on one sweep."""
    times = "  ".join(f"{size} {ms:.4f}" for size, ms in row.times.items())
    wrong = f"  WRONG {len(row.wrong)}" if row.wrong else ""
    return f"{row.sweep}: {row.backend}: {row.graphs} graphs, {row.seconds:.0f} s: {times}{wrong}"


def read_rows(path: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]
