"""Results of `run.py` as a picture: a roofline, and shares of the bandwidth bound; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels.report import percent
from benchmarks.kernels.results import Result, geomean

STYLES = {
    "eager": ("eager", "#9e9e9e", "o"),
    "inductor": ("Inductor", "#e08214", "s"),
    "inductor-max": ("Inductor, max-autotune", "#8c510a", "D"),
    "ferrite": ("Ferrite", "#2166ac", "o"),
    "ferrite-max": ("Ferrite, tuned", "#67a9cf", "^"),
}
"""What backends are called and drawn as; their colours are told apart by those who do not see red and green."""
LINES = (0.6, 0.8, 1.0)
"""Shares of the bound that have a line: the least of any row, the mean of all that memory bounds, and the bound."""
WIDTH, ROOF_HEIGHT, ROW_HEIGHT = 7.0, 3.6, 0.165
"""Inches: of the panels of a type, of its roofline, and of a row below."""
DOTS = 110
"""Pixels of an inch."""
LOWEST = 0.01
"""Share of the bandwidth bound that is drawn for less."""


def plot_kernels(
    results: Sequence[Result], backends: Sequence[str], bandwidth: float, machine: str, path: Path
) -> bool:
    """Writes the picture as a PNG; returns False where matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    draw_kernels(results, backends, bandwidth, machine).savefig(path, dpi=DOTS)
    return True


def draw_kernels(results: Sequence[Result], backends: Sequence[str], bandwidth: float, machine: str) -> Any:
    """Returns a figure with two panels for each type: bytes per second over bytes, and shares of the bound by row.

    The rows come in the order of Ferrite's share (or of the last backend's), the nearest to the bound first; those that
    do not wait for memory come last and are drawn hollow.
    """
    from matplotlib.figure import Figure

    types = list(dict.fromkeys(r.dtype for r in results)) or [""]
    count = max(len({r.row for r in results if r.dtype == name}) for name in types)
    height = ROW_HEIGHT * (count + 6)
    figure = Figure((WIDTH * len(types), ROOF_HEIGHT + height + 1.2), layout="constrained")
    axes = figure.subplots(2, len(types), squeeze=False, height_ratios=(ROOF_HEIGHT, height))
    for column, name in enumerate(types):
        found = [r for r in results if r.dtype == name and r.ms and r.share and r.backend in backends]
        _draw_roof(axes[0, column], found, backends, bandwidth)
        _draw_shares(axes[1, column], found, backends)
        axes[0, column].set_title(name)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(", ".join(filter(None, ["Kernels of one function each", machine])))
    return figure


def _draw_roof(axes: Any, results: Sequence[Result], backends: Sequence[str], bandwidth: float) -> None:
    """Draws what rows move in a second over what they have to move, below what a copy does."""
    for backend in backends:
        own = [r for r in results if r.backend == backend]
        label = STYLES[backend][0] if backend in STYLES else backend
        _scatter(axes, own, [r.bytes / 2**20 for r in own], [_rate(r, r.ms) for r in own], backend, label)
    told = [r for r in results if r.backend == "ferrite" and r.predicted_ms and r.is_memory_bound]
    if told:
        rates = [_rate(r, r.predicted_ms) for r in told]
        axes.scatter([r.bytes / 2**20 for r in told], rates, marker="_", color="black", label="predicted for Ferrite")
    axes.axhline(bandwidth / 1e12, color="black", label="copy bandwidth")
    axes.set(xscale="log", xlabel="MiB that must be moved", ylabel="TB/s", ylim=(0, bandwidth / 1e12 * 1.15))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.25)


def _rate(result: Result, ms: float | None) -> float:
    """Returns TB/s of a row that takes so long."""
    assert ms is not None
    return result.bytes / ms / 1e9


def _drawn_share(result: Result) -> float:
    """Returns per cent of the bandwidth bound, as far as they are drawn."""
    return max(result.share or 0.0, LOWEST) * 100


def _draw_shares(axes: Any, results: Sequence[Result], backends: Sequence[str]) -> None:
    """Draws a line for each row: shares of the bandwidth bound of all backends."""
    judge = "ferrite" if "ferrite" in backends else backends[-1]
    order = {r.case: (r.is_memory_bound, r.share or 0.0) for r in results if r.backend == judge}
    cases = sorted({r.case: r for r in results}, key=lambda case: order.get(case, (False, 0.0)), reverse=True)
    place = {case: number for number, case in enumerate(cases)}
    for case, number in place.items():
        shares = [_drawn_share(r) for r in results if r.case == case]
        axes.plot([min(shares), max(shares)], [number, number], color="#dddddd", linewidth=1, zorder=0)
    for backend in backends:
        own = [r for r in results if r.backend == backend]
        mean = geomean(r.share for r in own if r.share and r.is_memory_bound)
        _scatter(axes, own, [_drawn_share(r) for r in own], [place[r.case] for r in own], backend, percent(mean))
    for line in LINES:
        axes.axvline(line * 100, color="black", linewidth=1, linestyle="-" if line == 1 else ":", zorder=0)
    axes.set(
        xlabel="% of the bandwidth bound (hollow: not bound by memory)", xlim=(0, None), ylim=(len(cases) - 0.3, -0.7)
    )
    axes.set_yticks(range(len(cases)), cases, fontsize=7)
    axes.grid(axis="x", alpha=0.25)
    axes.set_title("geometric means of what memory bounds", fontsize=8, pad=20)
    axes.legend(fontsize=8, ncols=len(backends), loc="lower center", bbox_to_anchor=(0.5, 0.995), frameon=False)


def _scatter(
    axes: Any, results: Sequence[Result], x: Sequence[float], y: Sequence[float], backend: str, label: str
) -> None:
    """Draws points, hollow where memory is not what a case waits for; our own in front."""
    _, color, marker = STYLES.get(backend, (backend, "#762a83", "v"))
    faces = [color if r.is_memory_bound else "none" for r in results]
    front = 3 if backend == "ferrite" else 2
    axes.scatter(x, y, s=16, marker=marker, facecolors=faces, edgecolors=color, linewidths=0.8, zorder=front)
    axes.scatter([], [], s=16, marker=marker, color=color, label=label)
