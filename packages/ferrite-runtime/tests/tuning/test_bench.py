"""Samples of a device that may have waited for the host are taken again, on a simulated timeline."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ferrite_runtime.tuning import timing
from ferrite_runtime.tuning.timing import MOST_READINGS, EventMeter

KERNEL_US = 5.0
READING_US = 30.0


class Timeline:
    """A host and a device that works through what the host queues, in microseconds."""

    def __init__(self, host_us: float) -> None:
        self.host_us = host_us  # that a launch takes
        self.now = self.free = 0.0
        self.runs = 0

    def queue(self, host_us: float, device_us: float) -> float:
        """Returns when the device is done with what was queued."""
        self.now += host_us
        self.free = max(self.free, self.now) + device_us
        return self.free

    def run(self) -> None:
        self.runs += 1
        self.queue(self.host_us, KERNEL_US)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        timeline = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = timeline.queue(1.0, 0.0)

            def query(self) -> bool:
                timeline.now += 1.0
                return timeline.now >= self.at

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) / 1e3

        def make_reader(size: int, readings: int) -> Any:
            return lambda: timeline.queue(10.0, READING_US * readings if size else 0.0)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(timing, "make_reader", make_reader)


def test_host_in_time_takes_each_sample_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(host_us=8)
    timeline.install(monkeypatch)
    assert EventMeter(1 << 20).sample(timeline.run, 3) == pytest.approx([KERNEL_US / 1e3] * 3)
    assert timeline.runs == 3


def test_late_host_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(host_us=200)
    timeline.install(monkeypatch)
    meter = EventMeter(1 << 20)
    assert meter.sample(timeline.run, 3) == pytest.approx([KERNEL_US / 1e3] * 3)
    before = timeline.runs
    assert before > 3
    assert meter.sample(timeline.run, 3) == pytest.approx([KERNEL_US / 1e3] * 3)
    assert timeline.runs == before + 3, "the meter remembers how much time this host needs"


def test_hopeless_host_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(host_us=1e6)
    timeline.install(monkeypatch)
    meter = EventMeter(1 << 20)
    assert len(meter.sample(timeline.run, 2)) == 2
    assert timeline.runs <= 2 * MOST_READINGS.bit_length()


def test_warm_cache_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(host_us=200)
    timeline.install(monkeypatch)
    assert len(EventMeter(0).sample(timeline.run, 3)) == 3
    assert timeline.runs == 3
