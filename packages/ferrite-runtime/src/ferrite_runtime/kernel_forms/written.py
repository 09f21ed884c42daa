"""Kernels whose configs their writers state: templates, text around device functions, and those that people write."""

from __future__ import annotations

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import Facts, TemplateFacts, facts_as
from ferrite_runtime.formats.kernel_spec import USER, KernelSpec
from ferrite_runtime.policies.kernel_form import KernelForm
from ferrite_runtime.policies.shape import Shape


def template_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the config that a template's facts ask for: ``num_warps`` and ``num_stages``."""
    facts = facts_as(shape.spec.facts, TemplateFacts)
    return (Config.of(dict(shape.fit({}, 1).blocks), facts.num_warps, facts.num_stages),)


def user_configs(shape: Shape) -> tuple[Config, ...]:
    """Returns the configs that a kernel's writer states, the first being the default; Triton's own default without."""
    return shape.spec.configs or (Config.of({}, 4, 3),)


def unforeseen(spec: KernelSpec, config: Config, device: DeviceFacts) -> None:
    """Returns None: what people wrote is not judged by its blocks, whose meaning nobody else knows."""


FORMS = (
    KernelForm(name="template", facts=TemplateFacts, configs=template_configs, is_settled=True, problem=unforeseen),
    KernelForm(name=USER, facts=Facts, configs=user_configs, is_settled=True, is_measured=True, problem=unforeseen),
)
