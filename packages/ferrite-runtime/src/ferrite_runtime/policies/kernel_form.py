"""A kernel form as policies know it: which configs to try, which are not worth trying, what its arithmetic takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import SpecForm, spec_forms
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.shape import Shape

Configs: TypeAlias = Callable[[Shape], tuple[Config, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelForm(SpecForm):
    """All that is known of a kernel form; the modules of `ferrite_runtime.kernel_forms` have one for each.

    Attributes:
        configs: the candidates, best guess first.
        table: what tuning with full effort tries besides; None for nothing.
        is_settled: whether there is nothing beside its configs to walk to, as `coordinate_descent` does.
        is_measured: whether all candidates are measured by default, each a compilation before the first result.
        has_loops: whether programs go through the reduction axis in blocks, so that the interpreter's may be bounded.
        held: values that a thread of a config holds in registers at once; None for the elements of a tile.
        problem: why a config is not worth compiling, None if it may be; None for what `resources` says of a tile.
        seconds: what the arithmetic of a launch takes; None for what `prediction` says of scalar operations.
        operations: scalar operations of a launch that the facts do not count; None for none.
    """

    configs: Configs
    table: Configs | None = None
    is_settled: bool = False
    is_measured: bool = False
    has_loops: bool = False
    held: Callable[[KernelSpec, Config, DeviceFacts], int] | None = None
    problem: Callable[[KernelSpec, Config, DeviceFacts], str | None] | None = None
    seconds: Callable[[KernelSpec, DeviceFacts], float] | None = None
    operations: Callable[[KernelSpec], float] | None = None


def kernel_form(spec: KernelSpec) -> KernelForm:
    """Returns the form of a kernel."""
    form = spec_forms()[spec.form]
    assert isinstance(form, KernelForm), f"{form.name} has no configs"
    return form
