"""Kernel forms are found by the place of their modules, and each says all that policies ask."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

import pytest

from ferrite_runtime import SpecError, kernel_forms
from ferrite_runtime.formats.facts import Facts, spec_forms
from ferrite_runtime.policies.kernel_form import KernelForm

MODULES = [found.name for found in iter_modules(kernel_forms.__path__)]


def test_specs_are_read_with_the_forms_of_all_modules() -> None:
    names = [form.name for name in MODULES for form in import_module(f"{kernel_forms.__name__}.{name}").FORMS]
    assert max(Counter(names).values()) == 1
    assert list(spec_forms()) == names


@pytest.mark.parametrize("name", spec_forms())
def test_a_form_has_facts_and_configs(name: str) -> None:
    form = spec_forms()[name]
    assert isinstance(form, KernelForm)
    assert issubclass(form.facts, Facts)
    assert not (form.waits and form.joins), "programs of other parts would be waited for"
    with pytest.raises(SpecError, match="has no such fact"):
        form.read_facts({"no_such_fact": 1}, "facts")
