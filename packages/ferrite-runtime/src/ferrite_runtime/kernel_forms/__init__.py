"""Kernel forms, a module for each, or for a few that are alike: in comes a kernel's spec, out go its configs and rules.

A module's ``FORMS`` are the forms that it adds. All modules of this folder are found by `all_forms`, when the first
spec is read; nobody lists them. What a form brings stands in its module: its configs, what foresees that one fails, the
record of its facts where no other form has it. What several share is in `policies`, as are all configs of columns.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from ferrite_runtime.policies.kernel_form import KernelForm


@cache
def all_forms() -> dict[str, KernelForm]:
    """Returns all kernel forms, by name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    found: dict[str, KernelForm] = {}
    for module in modules:
        for form in module.FORMS:
            assert isinstance(form, KernelForm), f"{module.__name__}.FORMS has {form!r}"
            assert form.name not in found, f"two kernel forms are called {form.name}"
            found[form.name] = form
    return found
