"""Thresholds of config policies are documented, each of them and nothing else."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass

import pytest

from ferrite_runtime.host import thresholds as of_calls
from ferrite_runtime.policies import thresholds as of_configs

ALL = [each for module in (of_configs, of_calls) for each in vars(module).values() if is_dataclass(type(each))]


@pytest.mark.parametrize("thresholds", ALL, ids=lambda each: type(each).__name__)
def test_every_threshold_is_documented_and_nothing_else_is(thresholds: object) -> None:
    attributes = (type(thresholds).__doc__ or "").split("Attributes:")[1]
    named = [name for line in re.findall(r"^ {8}(\w[\w, ]*):", attributes, re.MULTILINE) for name in line.split(", ")]
    assert sorted(named) == sorted(field.name for field in fields(thresholds))  # type: ignore[arg-type]
