"""Config policies: which configurations of a kernel to try on a device, best guess first."""

from __future__ import annotations

from collections.abc import Mapping

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.blocks import next_power_of_two, previous_power_of_two, tile_elements
from ferrite_runtime.policies.interpreted import interpreter_config
from ferrite_runtime.policies.kernel_form import kernel_form
from ferrite_runtime.policies.resources import REGISTER_BYTES, registers_of
from ferrite_runtime.policies.shape import Shape

__all__ = [
    "configs",
    "interpreter_config",
    "launch_bytes",
    "next_power_of_two",
    "previous_power_of_two",
    "roomier_configs",
    "wider_configs",
]


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
    found = tuple(dict.fromkeys(kernel_form(spec).configs(shape)))
    return found[: _count(shape, tune)]


def wider_configs(spec: KernelSpec, device: DeviceFacts, sizes: Mapping[str, int] | None = None) -> tuple[Config, ...]:
    """Returns more configurations than `configs` has, for where even these leave something to gain; see `tables`."""
    table = kernel_form(spec).table
    if table is None:
        return ()
    shape = Shape.of(spec, device, sizes)
    known = set(configs(spec, device, "full", sizes))
    return tuple(config for config in dict.fromkeys(table(shape)) if config not in known)


def roomier_configs(
    spec: KernelSpec, device: DeviceFacts, config: Config, spilled: int, sizes: Mapping[str, int] | None = None
) -> tuple[Config, ...]:
    """Returns the configs to try of a kernel that keeps some values of a thread in memory with ``config``.

    First those whose threads should have registers for everything, if what they need is in proportion to the values
    that they hold; then the others. Both best guess first.

    Args:
        spec: the kernel.
        device: facts about the device.
        config: the one that was compiled.
        spilled: bytes that a thread of it has in memory.
        sizes: the size of every axis, by name; the expected sizes without it.
    """
    needed = (registers_of(config, device) + spilled / REGISTER_BYTES) / _held(spec, config, device)
    others = [other for other in configs(spec, device, "max", sizes) if other != config]
    return tuple(sorted(others, key=lambda c: needed * _held(spec, c, device) > registers_of(c, device)))


def _held(spec: KernelSpec, config: Config, device: DeviceFacts) -> float:
    """Returns the values that a thread of a config holds at once."""
    held = kernel_form(spec).held
    if held is not None:
        return held(spec, config, device)
    return tile_elements(spec, dict(config.blocks)) / (config.num_warps * device.target.warp_size)


def _count(shape: Shape, tune: str) -> int | None:
    if tune in ("quick", "full", "max"):
        return None
    return None if tune == "default" and kernel_form(shape.spec).is_measured else 1


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
