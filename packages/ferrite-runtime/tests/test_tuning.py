"""Choosing among candidates, with measurements made up."""

from __future__ import annotations

import pytest

from ferrite_runtime.choices import Choices
from ferrite_runtime.config import Config
from ferrite_runtime.devices import known_devices
from ferrite_runtime.spec import KernelSpec
from ferrite_runtime.store import MemoryStore
from ferrite_runtime.tuning import (
    Budget,
    Candidate,
    Choice,
    choose_config,
    measurements_of,
    neighbours,
    situation_of,
    without_spills,
)
from runtime_fakes import FakeBench, FakeClock
from runtime_kernels import row_sum

DEVICES = known_devices()
SPEC = KernelSpec.from_mapping(row_sum(4096, 4096))
A, B, C = (Config.of({"XBLOCK": 1, "RBLOCK": block}, 4) for block in (512, 1024, 2048))


def candidates(*spills: int) -> list[Candidate]:
    return [Candidate(config, spill, lambda: None) for config, spill in zip((A, B, C), spills, strict=False)]


def test_fastest_wins_but_noise_does_not() -> None:
    assert choose_config(candidates(0, 0, 0), FakeBench([3.0, 1.0, 2.0])).config == B
    assert choose_config(candidates(0, 0, 0), FakeBench([1.0, 0.99, 2.0])).config == A
    assert choose_config(candidates(0, 0, 0), FakeBench([float("inf"), float("inf"), 5.0])).config == C


def test_spilling_candidates_are_left_out_unless_all_spill() -> None:
    assert [c.config for c in without_spills(candidates(0, 500, 64))] == [A, C]
    assert [c.config for c in without_spills(candidates(500, 200, 200))] == [B, C]
    bench = FakeBench()
    assert choose_config(candidates(0, 500), bench).config == A
    assert bench.calls == 0, "one contender needs no measurement"
    with pytest.raises(ValueError, match="nothing to choose from"):
        choose_config([], bench)


def test_choice_is_remembered_per_kernel_device_and_size() -> None:
    choices, device = Choices(MemoryStore()), DEVICES["h200"]
    situation = situation_of(SPEC, device)
    choices.add(measurements_of(situation, Choice(B, ((A, 2.0), (B, 1.0), (C, float("inf")))), 7))
    assert choices.recall(situation) == B
    assert [record.config for record in choices.measured(situation) if record.ms == 2.0] == [A]
    assert choices.recall(situation_of(SPEC, DEVICES["h100"])) is None
    assert choices.recall(situation_of(SPEC, device, divisible=(1,))) is None
    assert choices.recall(situation_of(KernelSpec.from_mapping(row_sum(8, 8)), device)) is None
    assert situation_of(SPEC, device, {"x": 4095, "r": 4000}) == situation_of(SPEC, device, {"x": 4096, "r": 4096})


def test_neighbours_are_one_step_away() -> None:
    found = neighbours(SPEC, DEVICES["h200"], A, {"x": 1, "r": 600})
    assert Config.of({"XBLOCK": 1, "RBLOCK": 1024}, 4) in found
    assert Config.of({"XBLOCK": 1, "RBLOCK": 512}, 8) in found
    assert all(config.block("XBLOCK") == 1 for config in found)
    assert all(config.block("RBLOCK") <= 1024 for config in found)


def test_budget_ends() -> None:
    clock = FakeClock()
    budget = Budget.start(clock, 2.0)
    assert not budget.is_spent()
    clock.time = 2.0
    assert budget.is_spent()
