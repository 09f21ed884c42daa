"""Programs that benchmarks draw from a seed, and what is said of their results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.figures.random_figures import random_figures
from benchmarks.kernels.random_cases import random_case, random_cases
from benchmarks.kernels.results import Result


@pytest.mark.parametrize("name", ["random", "convolutions", "convolution-training", "images"])
@pytest.mark.parametrize("seed", range(3))
def test_a_seed_gives_programs_that_are_found_by_name(name: str, seed: int) -> None:
    drawn = random_cases(name, seed, 150)
    assert [each.name for each in drawn] == [each.name for each in random_cases(name, seed, 150)]
    assert len({each.name for each in drawn}) == 150
    assert random_case(drawn[17].name).name == drawn[17].name


def test_backends_that_fail_are_told_and_have_no_times() -> None:
    def result(case: str, backend: str, ms: float | None) -> Result:
        return Result(case=case, dtype="float32", backend=backend, ms=ms, failed=None if ms else "wrong results")

    results = [
        *(result("one", backend, ms) for backend, ms in (("eager", None), ("inductor", 2.0), ("ferrite", 1.0))),
        *(result("two", backend, ms) for backend, ms in (("eager", 3.0), ("inductor", 1.0), ("ferrite", 2.0))),
    ]
    lines = list(random_figures(results, ["eager", "inductor", "ferrite"]))
    assert lines[:2] == ["eager fails 1 of 2:", "    one: wrong results"]
    compared = lines.index(
        next(line for line in lines if line.startswith("ferrite / inductor: 1.000 in geometric mean of 2"))
    )
    assert lines[compared + 1 :] == [
        "    0.50  two  (us: eager 3000, inductor 1000, ferrite 2000)",
        "    2.00  one  (us: inductor 2000, ferrite 1000)",
    ]
