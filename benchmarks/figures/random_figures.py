"""What programs drawn from a seed say of a backend beside another: mean, quantiles, and the worst by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.kernels.results import Result, geomean

WORST = 20
OPPONENT = "inductor"


def random_figures(results: Sequence[Result], backends: Sequence[str]) -> Iterator[str]:
    """Yields lines: how many times as fast each backend is as the opponent, and its slowest programs."""
    rows: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        rows.setdefault((result.case, result.dtype), {})[result.backend] = result
    for backend in backends:
        failed = [
            f"{row[0]}: {cells[backend].failed}"
            for row, cells in rows.items()
            if backend in cells and cells[backend].failed
        ]
        if failed:
            yield f"{backend} fails {len(failed)} of {len(rows)}:"
            yield from (f"    {line}" for line in failed[:WORST])
    for backend in backends:
        if backend == OPPONENT:
            continue
        ratios = sorted(
            (cells[OPPONENT].ms / cells[backend].ms, name, cells)
            for (name, _), cells in rows.items()
            if all(each in cells and not cells[each].failed for each in (OPPONENT, backend))
        )
        if not ratios:
            continue
        mean = geomean(ratio for ratio, *_ in ratios)
        places = [ratios[int(share * (len(ratios) - 1))][0] for share in (0.0, 0.05, 0.25, 0.5, 0.75, 1.0)]
        text = " ".join(f"{place:.2f}" for place in places)
        yield f"{backend} / {OPPONENT}: {mean:.3f} in geometric mean of {len(ratios)}; min 5% 25% 50% 75% max: {text}"
        for ratio, name, cells in ratios[:WORST]:
            times = ", ".join(
                f"{each} {cells[each].ms * 1e3:.0f}" for each in backends if each in cells and cells[each].ms
            )
            yield f"    {ratio:.2f}  {name}  (us: {times})"
