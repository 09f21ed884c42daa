"""Choosing among compiled candidates: what is measured, what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ferrite_runtime.bench import Bench, Clock
from ferrite_runtime.config import Config
from ferrite_runtime.devices import DeviceFacts
from ferrite_runtime.policy.blocks import block_limit
from ferrite_runtime.records import Measurement, Situation, size_bucket
from ferrite_runtime.spec import KernelSpec
from ferrite_runtime.triton_adapter import triton_version

# A candidate that keeps this many bytes per thread on the stack loses against one that does not; it is not timed.
SPILL_BYTES = 64
# A challenger has to be faster by this much: below it is noise, and the first choice is the steadier one.
GAIN = 0.02


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config with the resources that its binary uses; ``launch`` runs it once."""

    config: Config
    local_bytes: int
    launch: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of tuning one kernel; ``times`` are in milliseconds, infinity for candidates not timed."""

    config: Config
    times: tuple[tuple[Config, float], ...] = ()


def situation_of(
    spec: KernelSpec, device: DeviceFacts, sizes: Mapping[str, int] | None = None, divisible: tuple[int, ...] = ()
) -> Situation:
    """Returns what a kernel's choice on a device depends on; the sizes count to a power of two."""
    bucket = size_bucket(sizes or spec.hint_sizes())
    return Situation(spec.id, device.name, str(device.target), triton_version(), bucket, divisible=divisible)


def measurements_of(situation: Situation, choice: Choice, when: int) -> tuple[Measurement, ...]:
    """Returns what a choice rests on as records; one that rests on nothing is no record."""
    return tuple(
        Measurement(situation, config, time, time, time, 1, is_chosen=config == choice.config, when=when)
        for config, time in choice.times
    )


def without_spills(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the candidates that do not spill; all of them, if every one does."""
    least = min(candidate.local_bytes for candidate in candidates)
    return [c for c in candidates if c.local_bytes <= max(SPILL_BYTES, least)]


def choose_config(candidates: Sequence[Candidate], bench: Bench) -> Choice:
    """Returns the fastest candidate; the first one unless another is faster by more than noise.

    Raises:
        ValueError: if there are no candidates.
    """
    if not candidates:
        raise ValueError("there is nothing to choose from")
    contenders = without_spills(candidates)
    if len(contenders) == 1:
        return Choice(contenders[0].config)
    times = bench.measure([candidate.launch for candidate in contenders])
    measured = tuple((candidate.config, time) for candidate, time in zip(contenders, times, strict=True))
    best = min(range(len(times)), key=lambda position: times[position])
    if times[best] >= times[0] * (1 - GAIN):
        best = 0
    return Choice(contenders[best].config, measured)


@dataclass(slots=True)
class Budget:
    """The time that a program may still spend measuring."""

    clock: Clock
    deadline: float

    @classmethod
    def start(cls, clock: Clock, seconds: float) -> Budget:
        """Returns a budget that ends so many seconds from now."""
        return cls(clock, clock.now() + seconds)

    def is_spent(self) -> bool:
        """Tells whether the time is up."""
        return self.clock.now() >= self.deadline


def neighbours(spec: KernelSpec, device: DeviceFacts, config: Config, sizes: Mapping[str, int]) -> tuple[Config, ...]:
    """Returns the configs one step from ``config``: each block and the warps doubled or halved, where they may be."""
    if spec.family in ("user", "template"):
        return ()  # what they have been written for is what their writer lists
    limits = {axis.block: block_limit(axis, sizes[axis.name]) for axis in spec.axes if axis.block not in spec.blocks}
    blocks, folded = dict(config.blocks), {axis.block for axis in spec.axes if axis.kind == "fold"}
    found = [
        Config.of(blocks | {name: step}, config.num_warps, config.num_stages)
        for name, block in blocks.items()
        for step in (block * 2, block // 2)
        # A tile that holds the whole fold axis has to.
        if not (spec.family == "persistent" and name in folded)
        if 1 <= step <= limits.get(name, block)
    ]
    found += [
        Config.of(blocks, warps, config.num_stages)
        for warps in (config.num_warps * 2, config.num_warps // 2)
        if 1 <= warps <= device.max_warps
    ]
    return tuple(found)
