"""What the scheduler is told of a GPU: what the runtime's descriptors say, whether it is here or only named."""

from __future__ import annotations

import pytest

from ferrite_runtime.devices import descriptors
from ferrite_runtime.devices.descriptors import known_devices
from ferrite_torch.devices import facts
from ferrite_torch.devices.targets import target_of
from ferrite_torch.exporting.export import scheduler_target


@pytest.fixture
def an_h200(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(facts.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(facts.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(descriptors, "device_facts", lambda index: known_devices()["h200"])
    monkeypatch.setattr(facts, "_parameter_bytes", lambda: 32_764)
    facts._cuda_facts.cache_clear()
    yield
    facts._cuda_facts.cache_clear()


@pytest.mark.usefixtures("an_h200")
def test_a_program_is_scheduled_alike_where_it_runs_and_where_it_is_exported() -> None:
    assert target_of("cuda") == scheduler_target("sm_90")
    assert target_of("cuda").bandwidth == known_devices()["h200"].bandwidth


@pytest.mark.usefixtures("an_h200")
def test_changes_of_the_user_go_first() -> None:
    assert target_of("cuda", {"processors": 3}).processors == 3


def test_the_cpu_has_no_facts() -> None:
    assert facts.device_facts("cpu") == {}
