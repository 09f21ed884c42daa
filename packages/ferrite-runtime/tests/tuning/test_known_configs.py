"""What is known of kernels' configs: added to, merged, looked up."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

import pytest

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.measurements import RECORDS, Measurement, Situation, choose_measurement, merge
from ferrite_runtime.store.interface import MemoryStore, save_record
from ferrite_runtime.tuning.known_configs import Choices

HERE = Situation("k" * 64, "NVIDIA H200", "sm_90", "3.6.0", (("x", 1024),))
SMALL, LARGE = (Config.of({"XBLOCK": block}, 4) for block in (256, 1024))


def measured(config: Config, ms: float, when: int = 0, *, won: bool = False, where: Situation = HERE) -> Measurement:
    return Measurement(where, config, ms, ms, ms, 9, won, when)


def test_measurements_add_up() -> None:
    choices = Choices(MemoryStore())
    assert choices.recall(HERE) is None
    choices.add([measured(SMALL, 1.0, won=True)])
    choices.add([measured(LARGE, 2.0)])
    assert choices.recall(HERE) == SMALL
    assert {record.config for record in choices.measured(HERE)} == {SMALL, LARGE}
    assert choices.recall(replace(HERE, divisors=((2, 16),))) is None


def test_every_field_of_a_situation_counts() -> None:
    others = {"kernel": "j" * 64, "device": "x", "target": "sm_80", "compiler": "3", "bucket": (), "policy": 0}
    for name, value in {**others, "divisors": ((1, 8),)}.items():
        other = replace(HERE, **{name: value})
        assert other.key != HERE.key
        (line,) = HERE.differences(other)
        assert line.startswith(f"{name}: ")


def test_records_read_back() -> None:
    odd = replace(HERE, divisors=((1, 16), (2, 16)))
    failed = replace(measured(LARGE, float("inf"), where=odd), failure="needs 300000 bytes of shared memory")
    for record in (measured(SMALL, 1.0, 5, won=True), failed):
        read = Measurement.from_mapping(record.to_mapping())
        assert (read.situation, read.ms, read.when, read.failure) == (
            record.situation,
            record.ms,
            record.when,
            record.failure,
        )


def test_merging_does_not_depend_on_order_or_repetition() -> None:
    records = [measured(SMALL, 1.0, 1, won=True), measured(SMALL, 3.0, 2), measured(LARGE, 2.0, 2, won=True)]
    wanted = merge(records)
    assert {record.ms for record in wanted} == {3.0, 2.0}
    assert choose_measurement(wanted).config == LARGE
    for order in itertools.permutations(records):
        assert merge([*order, *order[:2]]) == wanted
        assert merge([*merge(order[:1]), *merge(order[1:])]) == wanted


def test_later_of_two_choices_counts() -> None:
    both = [measured(SMALL, 1.0, 1, won=True), measured(LARGE, 2.0, 2, won=True)]
    assert choose_measurement(both).config == choose_measurement(reversed(both)).config == LARGE
    assert choose_measurement([]) is None


def test_measurements_that_came_with_the_kernel_count() -> None:
    choices = Choices(MemoryStore(), lambda kernel: [measured(LARGE, 1.0, won=True)] if kernel == HERE.kernel else [])
    assert choices.recall(HERE) == LARGE
    choices.add([measured(SMALL, 0.5, 9, won=True)])
    assert choices.recall(HERE) == SMALL


def test_record_of_another_make_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    for record in ({}, [], {**measured(SMALL, 1.0).to_mapping(), "config": {"blocks": {}, "num_warps": 3}}):
        save_record(store, RECORDS, HERE.key, record)
        with caplog.at_level(logging.WARNING):
            assert Choices(store).recall(HERE) is None
            assert not Choices(store).measured(HERE)
        assert "does not read and was removed" in caplog.text
        assert store.load(RECORDS, HERE.key) is None
