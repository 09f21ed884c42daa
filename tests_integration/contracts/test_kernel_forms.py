"""Kernel forms of the scheduler and those of the runtime: by one name, each layer says what agrees with the other."""

from __future__ import annotations

from typing import get_args

import pytest

from ferrite_runtime.formats.facts import spec_forms
from ferrite_scheduler.model.forms import FORMS, Waiting

WRITTEN = {"template", "user"}
"""Forms of kernels that no schedule has."""


def test_specs_have_the_forms_of_schedules() -> None:
    assert set(spec_forms()) - WRITTEN == set(FORMS)


@pytest.mark.parametrize("name", FORMS)
def test_layers_agree(name: str) -> None:
    form, known = FORMS[name], spec_forms()[name]
    assert known.joins or not form.joins, "the scheduler may make it a part of a mixed combo"
    assert known.waits == (form in get_args(Waiting))
