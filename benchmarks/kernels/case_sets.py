"""The cases of `run.py`, by the names of their sets, and all of them by their own."""

from __future__ import annotations

from benchmarks.kernels.cases import CASES, Case
from benchmarks.kernels.limit_cases import LIMIT_CASES
from benchmarks.kernels.random_cases import FORMS, random_case, random_cases
from benchmarks.kernels.sweep_cases import BLOCK_CASES, COLUMN_CASES, ODD_CASES, SWEEP_CASES
from benchmarks.kernels.verdict import BARS

_JUDGED = CASES + LIMIT_CASES

CASE_SETS: dict[str, tuple[Case, ...]] = {
    "bar": CASES,
    "limits": LIMIT_CASES,
    "all": _JUDGED,
    "table": tuple(case for case in _JUDGED if case.name in BARS),
    "rest": tuple(case for case in _JUDGED if case.name not in BARS),
    "sweep": SWEEP_CASES,
    "columns": COLUMN_CASES,
    "blocks": BLOCK_CASES,
    "odd": ODD_CASES,
}
"""The first list, the second, both; those that have figures of their own, or the rest; and what `sweep_cases` has."""
_NAMED = {case.name: case for case in _JUDGED + SWEEP_CASES + COLUMN_CASES + BLOCK_CASES + ODD_CASES}


def cases_of(name: str, seed: int, count: int) -> tuple[Case, ...]:
    """Returns the cases of a set; of a set of random programs, so many drawn from a seed."""
    return random_cases(name, seed, count) if name in FORMS else CASE_SETS[name]


def case_named(name: str) -> Case:
    """Returns a case by its name, of those that are drawn from a seed, too."""
    return _NAMED[name] if name in _NAMED or name.partition(":")[0] not in FORMS else random_case(name)
