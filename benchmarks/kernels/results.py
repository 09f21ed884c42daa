"""The results of `run.py`: what a cell holds, how cells are written down and read, and their words."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

BAR = 0.80
"""Share of the bandwidth bound that a barred case has to reach."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one backend did on one case.

    Attributes:
        bar: whether the case has a published bar.
        bytes: what has to move, read or written.
        limit: why memory is not what the case waits for; empty where it is.
        ms: median milliseconds of a call; None if it failed.
        spread: of the batches' milliseconds, over the median.
        share: of the bandwidth bound.
        error: l2 error over eager's.
        compile_s: seconds of compiling and the first call; without caches if everything was compiled first.
        ready_s: the same seconds in the process that measured: with caches, if everything was compiled first.
        predicted_ms: what ferrite's model of its launches says.
        failed: what went wrong.
        kernels: of ferrite's that were measured, the times of their configs, see `first_configs`.
    """

    case: str
    dtype: str
    backend: str
    bar: bool = False
    bytes: int = 0
    limit: str = ""
    ms: float | None = None
    spread: float | None = None
    share: float | None = None
    error: float | None = None
    compile_s: float | None = None
    ready_s: float | None = None
    predicted_ms: float | None = None
    failed: str | None = None
    kernels: Sequence[Mapping[str, Any]] = ()

    @property
    def is_memory_bound(self) -> bool:
        return not self.limit

    @property
    def row(self) -> tuple[str, str]:
        """Returns what the backends have in common."""
        return self.case, self.dtype

    @property
    def factor(self) -> float | None:
        """Returns the measured time over the predicted one."""
        return self.ms / self.predicted_ms if self.ms and self.predicted_ms else None


def geomean(numbers: Iterable[float]) -> float:
    """Returns the geometric mean; nan of nothing."""
    logs = [math.log(number) for number in numbers]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def ratios(results: Sequence[Result], opponent: str, own: str = "ferrite") -> dict[tuple[str, str], float]:
    """Returns the opponent's time over ours for each row that both measured: over one where we are faster."""
    times = {(r.row, r.backend): r.ms for r in results if r.ms}
    return {
        row: theirs / times[row, own]
        for (row, backend), theirs in times.items()
        if backend == opponent and (row, own) in times
    }


def compile_seconds(results: Sequence[Result], backends: Sequence[str]) -> tuple[int, dict[str, float]]:
    """Returns how many rows all compiling backends compiled, and the seconds that each of them took for these."""
    seconds = {(r.row, r.backend): r.compile_s for r in results if r.compile_s and r.backend != "eager"}
    compiling = [backend for backend in backends if any(key[1] == backend for key in seconds)]
    rows = dict.fromkeys(r.row for r in results)
    common = [row for row in rows if all((row, backend) in seconds for backend in compiling)]
    return len(common), {backend: math.fsum(seconds[row, backend] for row in common) for backend in compiling}


def as_json(bandwidths: Sequence[float], results: Sequence[Result], **facts: Any) -> str:
    """Returns the text of a file of results, one to a line."""
    head = json.dumps({"bandwidth": list(bandwidths), **facts})
    lines = ",\n".join(json.dumps(asdict(result)) for result in results)
    return f'{head[:-1]}, "results": [\n{lines}\n]}}\n'


def read_runs(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Returns what files of results hold, as it was written down."""
    return [json.loads(path.read_text()) for path in paths]


def bandwidths_of(runs: Iterable[Mapping[str, Any]]) -> list[float]:
    """Returns the copy bandwidths of several runs."""
    return [bandwidth for run in runs for bandwidth in run["bandwidth"]]


def results_of(runs: Iterable[Mapping[str, Any]]) -> list[Result]:
    """Returns the results of several runs, of one cell the last."""
    results = (result_of(row) for run in runs for row in run["results"])
    return list({(result.row, result.backend): result for result in results}.values())


def read_results(paths: Iterable[Path]) -> list[Result]:
    """Returns the results of several files, of one cell the last."""
    return results_of(read_runs(paths))


def result_of(row: Mapping[str, Any]) -> Result:
    """Returns the result that was written down."""
    known = {field.name for field in fields(Result)}
    return Result(**{name: value for name, value in row.items() if name in known})


def print_case(results: Sequence[Result], backends: Sequence[str]) -> None:
    """Prints one line: per backend microseconds and per cent of the bandwidth bound."""
    cells = {result.backend: result for result in results}
    head = f"{results[0].case:20s} {results[0].dtype:9s} {results[0].bytes / 2**20:6.0f} MiB"
    print(head + "".join(f" | {name} {cell_text(cells.get(name))}" for name in backends), flush=True)


def cell_text(result: Result | None) -> str:
    """Returns a cell in words, the predicted time and what the measured one is of it beside it."""
    if result is None:
        return "-"
    if result.failed or result.ms is None or result.share is None:
        return f"FAILED {result.failed}"
    expected = f" (predicted {result.predicted_ms * 1e3:.1f}, x {result.factor:.2f})" if result.predicted_ms else ""
    return f"{result.ms * 1e3:8.1f} us {result.share * 100:5.1f} %{expected}"


def print_verdict(results: Sequence[Result], backends: Sequence[str]) -> int:
    """Prints geomeans and the losing cases; returns 0 if ferrite meets the bar everywhere, or was not measured."""
    print(f"\ngeomean share of the bound ({sum(r.bar and r.backend == backends[0] for r in results)} barred cases):")
    for backend in backends:
        shares = [r.share for r in results if r.backend == backend and r.bar and r.share]
        reached = sum(share >= BAR for share in shares)
        print(f"  {backend:12s} {geomean(shares) * 100:5.1f} %  (at or over {BAR * 100:.0f} %: {reached})")
    print("geomean share of the bandwidth bound, all cases:")
    for backend in backends:
        shares = [r.share for r in results if r.backend == backend and r.share]
        least = min(shares, default=math.nan)
        print(f"  {backend:12s} {geomean(shares) * 100:5.1f} %  (least {least * 100:.1f} %, {len(shares)} cases)")
    own = [r for r in results if r.backend == "ferrite"]
    if not own:
        return 0
    opponent = {r.row: r.share for r in results if r.backend == "inductor"}
    losing = [r for r in own if r.failed or (r.share or 0.0) < BAR]
    for result in sorted(losing, key=lambda r: r.share or 0.0):
        other = opponent.get(result.row)
        beside = f", inductor {other * 100:.1f} %" if other else ""
        barred = "" if result.bar else " (no bar)"
        waits = f" - {result.limit}" if result.limit else ""
        print(f"  losing: {result.case} {result.dtype}: {cell_text(result).strip()}{beside}{barred}{waits}")
    passed = not any(result.bar for result in losing)
    print(f"{'PASS' if passed else 'FAIL'}  every barred kernel at or over {BAR * 100:.0f} % of the bandwidth bound")
    return 0 if passed else 1
