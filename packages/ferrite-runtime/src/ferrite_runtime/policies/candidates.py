"""Config policies: which configurations of a kernel to try on a device, best guess first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import TemplateFacts, facts_as
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.attention import attention_configs
from ferrite_runtime.policies.blocks import next_power_of_two, previous_power_of_two
from ferrite_runtime.policies.interpreted import interpreter_config
from ferrite_runtime.policies.mixed_combos import mixed_combo_configs
from ferrite_runtime.policies.pointwise import pointwise_configs
from ferrite_runtime.policies.reductions import (
    contraction_configs,
    grid_reduction_configs,
    look_back_configs,
    looped_configs,
    persistent_configs,
    register_norm_configs,
    row_column_configs,
    scan_configs,
    sort_configs,
)
from ferrite_runtime.policies.shape import Shape
from ferrite_runtime.policies.tables import looped_table, persistent_table, pointwise_table
from ferrite_runtime.policies.tiled_contractions import tiled_contraction_configs

__all__ = [
    "configs",
    "interpreter_config",
    "launch_bytes",
    "next_power_of_two",
    "previous_power_of_two",
    "wider_configs",
]

# Forms whose candidates are all measured by default, each a compilation before the first result: those that a person
# has written down. What the compiler writes takes its first guess (decision 0013).
MEASURED_BY_DEFAULT = ("user",)


def template_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the config that a template's facts ask for: ``num_warps`` and ``num_stages``."""
    facts = facts_as(shape.spec.facts, TemplateFacts)
    return (Config.of(dict(shape.fit({}, 1).blocks), facts.num_warps, facts.num_stages),)


def user_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the configs that a kernel's writer states, the first being the default; Triton's own default without."""
    return shape.spec.configs or (Config.of({}, 4, 3),)


_FORMS: dict[str, Callable[[Shape], tuple[Config, ...]]] = {
    "pointwise": pointwise_configs,
    "combo": pointwise_configs,
    "mixed_combo": lambda shape: mixed_combo_configs(shape, lambda part: _FORMS[part.spec.form](part)),
    "persistent": persistent_configs,
    "row_column": row_column_configs,
    "looped": looped_configs,
    "contraction": contraction_configs,
    "grid_reduction": grid_reduction_configs,
    "register_norm": register_norm_configs,
    "scan": scan_configs,
    "look_back": look_back_configs,
    "sort": sort_configs,
    "tiled_contraction": tiled_contraction_configs,
    "attention": attention_configs,
    "template": template_configs,
    "user": user_configs,
}


def configs(
    spec: KernelSpec, device: DeviceFacts, tune: str = "default", sizes: Mapping[str, int] | None = None
) -> tuple[Config, ...]:
    """Returns the configurations of a kernel to try on a device, without repetitions, best guess first.

    Args:
        spec: the kernel.
        device: facts about the device.
        tune: ``"none"`` for the first only, ``"default"`` for those that a person has stated, another word for all.
        sizes: the size of every axis, by name; the expected sizes without it.
    """
    shape = Shape.of(spec, device, sizes)
    found = tuple(dict.fromkeys(_FORMS[spec.form](shape)))
    return found[: _count(shape, tune)]


_TABLES: dict[str, Callable[[Shape], tuple[Config, ...]]] = {
    "pointwise": pointwise_table,
    "combo": pointwise_table,
    "persistent": persistent_table,
    "row_column": persistent_table,
    "looped": looped_table,
    "contraction": looped_table,
}


def wider_configs(spec: KernelSpec, device: DeviceFacts, sizes: Mapping[str, int] | None = None) -> tuple[Config, ...]:
    """Returns more configurations than `configs` has, for where even these leave something to gain; see `tables`."""
    table = _TABLES.get(spec.form)
    if table is None:
        return ()
    shape = Shape.of(spec, device, sizes)
    known = set(configs(spec, device, "full", sizes))
    return tuple(config for config in dict.fromkeys(table(shape)) if config not in known)


def _count(shape: Shape, tune: str) -> int | None:
    if tune in ("quick", "full", "max"):
        return None
    return None if tune == "default" and shape.spec.form in MEASURED_BY_DEFAULT else 1


def launch_bytes(spec: KernelSpec, device: DeviceFacts, sizes: Mapping[str, int] | None = None) -> int | None:
    """Returns the bytes that a launch has to move, None where the facts do not say."""
    if spec.parts:
        whole = spec.hint_sizes() if sizes is None else sizes
        own = [launch_bytes(part, device, spec.of_part(whole, k)) for k, part in enumerate(spec.alone)]
        return sum((each or 0) * part.copies for each, part in zip(own, spec.parts, strict=True))
    stated = spec.facts.bytes
    if stated is None:
        return None
    shape = Shape.of(spec, device, sizes)
    actual, expected = shape.points * shape.reduction, shape.expected_points
    return stated if actual == expected else stated * actual // expected
