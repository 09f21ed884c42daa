"""What is said of the rows of many models together: how many times as fast, the worst, memory, compile time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.models.report import BASE, MEMORY_BAR, OPPONENT, geomean, ratio

Row = dict[str, Any]
WORST = 10
"""Rows that are named of a backend's slowest ones."""


def wide_figures(rows: Sequence[Row]) -> Iterator[str]:
    """Yields lines about the rows of a report; times of a backend whose results are wrong do not count for it."""
    backends = [name for name in dict.fromkeys(name for row in rows for name in row["ms"]) if name != BASE]
    for backend in backends:
        yield from untrusted(rows, backend)
    for mode in dict.fromkeys(row["mode"] for row in rows):
        chosen = [row for row in rows if row["mode"] == mode]
        for backend in (BASE, *backends):
            said = means(chosen, backend, backends)
            if said:
                yield f"{mode}, {backend}: {said}"
    for backend in backends:
        if backend != OPPONENT:
            yield from worst_rows(rows, backend)
            yield from rows_above(rows, backend)


def label(row: Row) -> str:
    return f"{row['model']} {row['mode']}"


def untrusted(rows: Sequence[Row], backend: str) -> Iterator[str]:
    """Yields lines about rows that a backend fails, is wrong in, or has no time of."""
    wrong = [label(row) for row in rows if row["right"].get(backend) is False]
    missing = [label(row) for row in rows if row["ms"].get(backend) is None]
    if wrong:
        yield f"{backend} is wrong in {len(wrong)} of {len(rows)}: {', '.join(wrong)}"
    if missing:
        yield f"{backend} has no time of {len(missing)} of {len(rows)}: {', '.join(missing)}"


def speedups(rows: Sequence[Row], backend: str, other: str) -> dict[str, float]:
    """Returns by row how many times as fast as another backend one is, where both are known and it is not wrong."""
    found = {
        label(row): ratio(row["ms"].get(other), row["ms"].get(backend))
        for row in rows
        if row["right"].get(backend) is not False and row["right"].get(other) is not False
    }
    return {name: value for name, value in found.items() if value is not None}


def ratios(rows: Sequence[Row], field: str, backend: str, other: str) -> dict[str, float]:
    """Returns by row a backend's figure over another's, where both are known."""
    found = {label(row): ratio(row[field].get(backend), row[field].get(other)) for row in rows}
    return {name: value for name, value in found.items() if value is not None}


def means(rows: Sequence[Row], backend: str, backends: Sequence[str]) -> str:
    """Returns a backend's geometric means over some rows: speed, busy device, memory; and seconds of compiling."""
    said = []
    for other in (OPPONENT, BASE):
        if other != backend and (other == BASE or other in backends):
            fast = speedups(rows, backend, other)
            slower = sum(value < 1.0 for value in fast.values())
            said.append(f"{geomean(fast.values()):.3f} x {other} of {len(fast)} ({slower} below 1)")
    busy = [row["busy"][backend] for row in rows if row["busy"].get(backend)]
    if busy:
        said.append(f"busy {geomean(busy):.2f}")
    memory = {other: ratios(rows, "mib", backend, other) for other in (BASE, OPPONENT) if other != backend}
    said += [f"memory {geomean(found.values()):.3f} of {other}'s" for other, found in memory.items() if found]
    for field in ("cold_s", "warm_s"):
        seconds = [row[field][backend] for row in rows if row[field].get(backend) is not None]
        if seconds and backend != BASE:
            said.append(f"{field[:4]} {sum(seconds):.0f} s")
    return ", ".join(said)


def worst_rows(rows: Sequence[Row], backend: str) -> Iterator[str]:
    """Yields the rows in which a backend is slowest beside the opponent."""
    fast = speedups(rows, backend, OPPONENT)
    if not fast:
        return
    yield f"{backend} / {OPPONENT}, the slowest:"
    times = {label(row): row["ms"] for row in rows}
    for name in sorted(fast, key=lambda name: fast[name])[:WORST]:
        told = ", ".join(f"{other} {ms:.3f}" for other, ms in times[name].items() if ms)
        yield f"    {fast[name]:.2f}  {name}  (ms: {told})"


def rows_above(rows: Sequence[Row], backend: str) -> Iterator[str]:
    """Yields lines about the rows in which a backend is slower than another one, or needs more memory than eager."""
    for other in (OPPONENT, BASE):
        below = {name: value for name, value in speedups(rows, backend, other).items() if value < 1.0}
        yield f"{backend} slower than {other}: {listed(below)}"
    above = {name: value for name, value in ratios(rows, "mib", backend, BASE).items() if value > MEMORY_BAR}
    yield f"{backend} peaks above {BASE}'s: {listed(above)}"


def listed(values: dict[str, float]) -> str:
    return (
        ", ".join(f"{name} {value:.2f}" for name, value in sorted(values.items(), key=lambda item: item[1])) or "none"
    )
