"""What a kernel should take: a model of its time from its facts, with no GPU and no measurement.

A launch costs its start, and then the longer of what its memory traffic and its arithmetic take, with a share of the
shorter that the two do not overlap. The model is a roofline (Williams, Waterman, Patterson, "Roofline: an insightful
visual performance model for multicore architectures", 2009) with the corrections below; each is a number of its own,
so that a benchmark that prints predictions beside measurements says which one is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import ContractionFacts, Facts, ReductionFacts
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.blocks import expected_points
from ferrite_runtime.policies.candidates import configs
from ferrite_runtime.policies.kernel_form import kernel_form
from ferrite_runtime.policies.roofline import ROOFLINE


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one launch should take, in seconds, and the parts that it is made of."""

    seconds: float
    memory: float
    arithmetic: float


def predict(spec: KernelSpec, device: DeviceFacts, sizes: Mapping[str, int] | None = None) -> Prediction:
    """Returns what one launch of a kernel in its first config should take.

    Args:
        spec: the kernel; its facts say what it moves and computes.
        device: where it runs.
        sizes: the size of every axis, by name; the expected ones without it.
    """
    config = configs(spec, device, "none", sizes)[0]
    memory = _memory(spec, device, config)
    arithmetic = sum(_arithmetic(part, device) * copies for part, copies in _often(spec))
    longer, shorter = max(memory, arithmetic), min(memory, arithmetic)
    seconds = device.launch_nanoseconds / 1e9 + longer + ROOFLINE.overlap_loss * shorter
    seconds += _waiting(spec, device, config) + _turns(spec, device, config)
    return Prediction(seconds, memory, arithmetic)


def _waiting(spec: KernelSpec, device: DeviceFacts, config: Config) -> float:
    """Returns the seconds in which the programs of a multiprocessor all wait for what others have to add up first."""
    if spec.known_form.waits_for != "earlier":
        return 0.0
    programs = spec.expected_programs(dict(config.blocks))
    return ROOFLINE.look_back_seconds * programs / (device.multiprocessors * ROOFLINE.look_back_programs)


def _turns(spec: KernelSpec, device: DeviceFacts, config: Config) -> float:
    """Returns the seconds that programs wait for memory in the turns of a loop but the first one."""
    blocks, turns = dict(config.blocks), 1
    sizes = spec.hint_sizes()
    for axis in spec.axes:
        if axis.kind == "reduction" and axis.block in blocks:
            turns *= -(-sizes[axis.name] // blocks[axis.block])
    resident = max(1, device.threads_per_multiprocessor // (config.num_warps * device.target.warp_size))
    waves = -(-spec.expected_programs(blocks) // (device.multiprocessors * resident))
    return (turns - 1) * waves * ROOFLINE.turn_seconds


def _memory(spec: KernelSpec, device: DeviceFacts, config: Config) -> float:
    moved = sum(_moved(part.facts, device) * copies for part, copies in _often(spec))
    programs = max(1, spec.expected_programs(dict(config.blocks)))
    share = min(1.0, ROOFLINE.program_share * programs / device.multiprocessors)
    return moved / (device.bandwidth * share)


def _often(spec: KernelSpec) -> Iterator[tuple[KernelSpec, int]]:
    """Yields the parts of a kernel as kernels alone, with how often each is done; another kernel is its only part."""
    copies = [part.copies for part in spec.parts] or [1]
    yield from zip(spec.alone, copies, strict=True)


def _moved(facts: Facts, device: DeviceFacts) -> float:
    """Returns the bytes that a kernel, or a part of one, moves, those weighed that cost more than others."""
    moved = float(facts.bytes or 0)
    if isinstance(facts, ReductionFacts) and facts.passes > 1:
        moved += _read_again(facts, device, moved)
    if facts.atomics:
        moved *= ROOFLINE.atomic_factor
    if facts.has_no_contiguous_axis:
        moved *= ROOFLINE.scattered_factor
    return moved


def _read_again(facts: ReductionFacts, device: DeviceFacts, moved: float) -> float:
    """Returns the bytes that further passes over the reduction axis read from memory, not from the cache."""
    buffers = max(1, facts.loads + facts.stores)
    read = moved * facts.loads / buffers
    found = ROOFLINE.cache_share * device.l2_bytes / max(read, 1.0)
    missed = max(0.0, 1.0 - found) if facts.contiguous_axis == "x" else 0
    return float(read * (facts.passes - 1) * missed)


def _arithmetic(spec: KernelSpec, device: DeviceFacts) -> float:
    form, facts = kernel_form(spec), spec.facts
    if form.seconds is not None:
        return form.seconds(spec, device)
    points = expected_points(spec)
    buffers = facts.loads + facts.stores
    operations = float(facts.flops) + points * buffers * ROOFLINE.access_operations
    operations += points * facts.reductions * ROOFLINE.reduced_operations
    if isinstance(facts, ContractionFacts) and facts.product:
        operations /= max(1, spec.hint_sizes().get("y", 1))  # tensor cores take all rows at once
    if form.operations is not None:
        operations += form.operations(spec)
    return float(operations / (device.multiprocessors * device.lane_operations * ROOFLINE.lane_share))
