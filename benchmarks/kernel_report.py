"""Results of `benchmarks/kernels.py` for people: a Markdown table, and a roofline plot if matplotlib is there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def markdown_table(results: Sequence[Any], backends: Sequence[str]) -> str:
    """Returns a row per case and type, a column per backend, in per cent of the floor, and their geometric means."""
    cells = {(r.case, r.dtype, r.backend): r for r in results}
    keys = list(dict.fromkeys((r.case, r.dtype, r.bytes) for r in results))
    lines = [f"| case | type | MiB | {' | '.join(backends)} |", f"|---|---|---|{'---|' * len(backends)}"]
    for case, dtype, count in keys:
        row = [_cell(cells.get((case, dtype, backend))) for backend in backends]
        lines.append(f"| {case} | {dtype} | {count / 2**20:.0f} | {' | '.join(row)} |")
    means = [_mean([r.share for r in results if r.backend == backend and r.share]) for backend in backends]
    lines.append(f"| geometric mean | | | {' | '.join(means)} |")
    return "\n".join(lines) + "\n"


def _cell(result: Any) -> str:
    if result is None or result.failed or result.share is None:
        return "failed" if result is not None else "-"
    return f"{result.share * 100:.0f} % ({result.ms * 1e3:.0f} µs)"


def _mean(shares: Sequence[float]) -> str:
    return f"{math.exp(statistics.fmean(map(math.log, shares))) * 100:.1f} %" if shares else "-"


def plot_roofline(results: Sequence[Any], backends: Sequence[str], bandwidth: float, path: Path) -> bool:
    """Draws time over bytes for every backend beside the floor; returns False where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 6))
    sizes = sorted({r.bytes for r in results if r.bytes})
    axes.plot([s / 2**20 for s in sizes], [s / bandwidth * 1e6 for s in sizes], color="black", label="floor")
    for backend in backends:
        found = [r for r in results if r.backend == backend and r.ms is not None]
        axes.scatter([r.bytes / 2**20 for r in found], [r.ms * 1e3 for r in found], s=18, label=backend)
    axes.set(xscale="log", yscale="log", xlabel="MiB that must move", ylabel="µs", title="Memory-bound kernels")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True
