"""Times of whole programs: measured once, kept as measurements are, and told apart by program, device and version."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ferrite_runtime.ahead_of_time.program_times import program_time, sample_program, situation_of_program
from ferrite_runtime.devices.descriptors import known_devices
from ferrite_runtime.errors import LaunchFailed
from ferrite_runtime.process.options import Options
from ferrite_runtime.store.interface import MemoryStore
from ferrite_runtime.tuning.known_configs import Choices
from runtime_kernels import layout, pointwise, program, tensor_input

torch = pytest.importorskip("torch")

H200 = known_devices()["h200"]
PROGRAM = {"name": "p", "steps": []}


class Runs:
    """Counts how often a program is run, and says that it took so many milliseconds."""

    def __init__(self, *ms: float) -> None:
        self.ms, self.count = list(ms), 0

    def __call__(self, program: Mapping[str, Any]) -> list[float]:
        self.count += 1
        return self.ms


def test_a_program_is_measured_once() -> None:
    store, runs = MemoryStore(), Runs(3.0, 1.0, 2.0)
    first, second = (program_time(PROGRAM, H200, store, runs) for _ in range(2))
    assert (first.ms, first.is_recorded) == (2.0, False)
    assert (second.ms, second.is_recorded) == (2.0, True)
    assert runs.count == 1
    (kept,) = Choices(store).measured(situation_of_program(PROGRAM, H200))
    assert (kept.low, kept.high, kept.runs) == (1.0, 3.0, 3)


def test_another_program_and_another_device_are_measured_anew() -> None:
    store, runs = MemoryStore(), Runs(1.0)
    for each, device in ((PROGRAM, H200), ({**PROGRAM, "name": "q"}, H200), (PROGRAM, replace(H200, name="other"))):
        program_time(each, device, store, runs)
    assert runs.count == 3


@pytest.mark.parametrize("error", [LaunchFailed("it hangs\nhere"), torch.OutOfMemoryError("too large")])
def test_what_cannot_be_run_has_no_time_and_is_tried_again(error: Exception) -> None:
    store = MemoryStore()

    def fail(program: Mapping[str, Any]) -> list[float]:
        raise error

    failed = program_time(PROGRAM, H200, store, fail)
    assert failed.ms == math.inf
    assert failed.problem in ("it hangs", "too large")
    assert program_time(PROGRAM, H200, store, Runs(1.0)).ms == 1.0


class Meter:
    """Runs what it is given."""

    def sample(self, run: Any, count: int, before: Any = None) -> list[float]:
        for _ in range(count):
            run()
        return [1.0] * count


def test_a_program_runs_with_made_up_inputs() -> None:
    double = pointwise("a * 2", size=6)
    steps = [
        {"do": "alloc", "name": "o", **layout([6])},
        {"do": "launch", "kernel": double["id"], "args": ["x", "o"]},
    ]
    made = program([tensor_input("x", [6])], [double], steps, [{"value": "o"}])
    assert sample_program(made, Options(), Meter(), torch.device("cpu"), samples=4) == [1.0] * 4
