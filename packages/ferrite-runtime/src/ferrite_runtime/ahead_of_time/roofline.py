"""A picture of how near kernels are to the bandwidth of their device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ferrite_runtime.ahead_of_time.kernel_times import TimesReport
from ferrite_runtime.errors import DeviceUnavailable

# Names are written beside the kernels that take most of the time, not beside all.
NAMED = 8
_MARKS = (("policy", "o", "config of the policy"), ("measured", "^", "config by measurement"))


def plot_roofline(report: TimesReport, path: Path) -> None:
    """Draws the time of each kernel over the bytes that it moves, beside the bound, into a PNG file.

    Raises:
        DeviceUnavailable: if matplotlib is not installed.
    """
    pyplot = _pyplot()
    rows = [row for row in report.kernels if row.spread is not None and row.bytes > 0]
    figure, axes = pyplot.subplots(figsize=(9, 6))
    sizes = sorted({row.bytes for row in rows}) or [1 << 20]
    edges = [sizes[0] / 2, sizes[-1] * 2]
    bound = [size / report.bandwidth * 1e6 for size in edges]
    axes.plot([edge / 2**20 for edge in edges], bound, color="black", label=f"{report.bandwidth / 1e12:.2f} TB/s")
    for source, marker, label in _MARKS:
        found = [row for row in rows if row.source == source]
        times = [row.spread.median * 1e3 for row in found if row.spread]
        axes.scatter([row.bytes / 2**20 for row in found], times, s=24, marker=marker, label=label)
    longest = sorted(rows, key=lambda row: row.spread.median * row.launches if row.spread else 0.0, reverse=True)
    for row in longest[:NAMED]:
        assert row.spread is not None
        point = (row.bytes / 2**20, row.spread.median * 1e3)
        axes.annotate(row.name, point, fontsize=7, rotation=-30, va="top", xytext=(3, -3), textcoords="offset points")
    if rows:
        axes.set_ylim(bottom=min(row.spread.median for row in rows if row.spread) * 1e3 / 10)
    axes.set(xscale="log", yscale="log", xlabel="MiB that a launch moves", ylabel="µs", title=report.device)
    axes.legend()
    figure.savefig(path, dpi=150, format="png")
    pyplot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise DeviceUnavailable(
            'a plot needs matplotlib, which is not installed: pip install "ferrite-runtime[plot]"'
        ) from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt
