"""How long each kernel of a bundle takes, beside the time that its traffic takes at the device's bandwidth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ferrite_runtime.ahead_of_time.program_tuning import Session, chosen_kernel
from ferrite_runtime.engines.cuda_engine import AnyKernel
from ferrite_runtime.engines.cuda_kernels import DeviceKernel
from ferrite_runtime.errors import LaunchFailed
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.candidates import launch_bytes
from ferrite_runtime.tuning.protection import extent_bytes, protect_arguments
from ferrite_runtime.tuning.samples import Spread, spread_of
from ferrite_runtime.tuning.workbench import KernelBench

SAMPLES = 30
# Samples of a kernel that takes longer than this, in milliseconds, are fewer.
LONG_MS = 5.0


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel at one set of sizes.

    Attributes:
        name: its name.
        id: its identity.
        sizes: of its axes.
        config: the config that was timed.
        source: ``measured`` if it was chosen by measuring, ``policy`` if not.
        spread: of its times, in milliseconds; None where it could not be timed.
        bytes: what one launch has to move.
        bound_ms: the time that this takes at the device's bandwidth.
        launches: how often one run of everything launches it so.
        problem: why it was not timed.
    """

    name: str
    id: str
    sizes: Mapping[str, int]
    config: str
    source: str
    spread: Spread | None
    bytes: int
    bound_ms: float
    launches: int = 1
    problem: str = ""

    @property
    def share(self) -> float | None:
        """The part of its time that its traffic needs; above 1 where the cache served some of it."""
        return self.bound_ms / self.spread.median if self.spread and self.spread.median else None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        spread = self.spread
        return {
            "kernel": self.name,
            "id": self.id,
            "sizes": dict(self.sizes),
            "config": self.config,
            "source": self.source,
            "ms": spread.median if spread else None,
            "low": spread.low if spread else None,
            "high": spread.high if spread else None,
            "samples": spread.count if spread else 0,
            "bytes": self.bytes,
            "bound_ms": self.bound_ms,
            "share": self.share,
            "launches": self.launches,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class TimesReport:
    """The times of a bundle's kernels on a device, and what of it could not be run."""

    device: str
    bandwidth: int
    kernels: tuple[KernelTime, ...]
    skipped: tuple[tuple[str, str], ...]

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "device": self.device,
            "bandwidth": self.bandwidth,
            "kernels": [row.to_mapping() for row in self.kernels],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
        }


def measure_kernels(session: Session, samples: int = SAMPLES) -> TimesReport:
    """Returns the time of every kernel of a bundle, measured where it stands in its program, with its arguments there.

    Each runs with the config that it would run with, chosen first if need be. Kernels that change their arguments find
    them as they were before each sample.
    """
    found: dict[tuple[Any, ...], KernelTime] = {}

    def visit(site: Any, kernel: AnyKernel, stream: int, arguments: tuple[Any, ...], owners: tuple[Any, ...]) -> None:
        kernel.launch_first(stream, arguments, owners)
        chosen = chosen_kernel(kernel, arguments)
        numbers = tuple(v for v, p in zip(arguments, kernel.spec.params, strict=True) if p.role == "size")
        key = (kernel.spec.id, numbers, tuple(_extent(owner) for owner in owners))
        if key in found:
            found[key] = replace(found[key], launches=found[key].launches + 1)
        elif chosen.config is not None:
            found[key] = time_launch(chosen, stream, arguments, owners, samples)

    skipped = tuple(session.visit_launches(visit))
    facts = session.machine.facts
    return TimesReport(facts.name, facts.bandwidth, tuple(found.values()), skipped)


def time_launch(
    kernel: DeviceKernel, stream: int, arguments: Sequence[Any], owners: Sequence[Any], samples: int = SAMPLES
) -> KernelTime:
    """Returns the time of one launch; it leaves what the launch changes as it found it."""
    machine, spec = kernel.machine, kernel.spec
    config = kernel.config or kernel.candidates[0]
    numbers = {p.name: v for p, v in zip(spec.params, arguments, strict=True) if p.role == "size"}
    axes = spec.axis_sizes(numbers)
    size = launch_bytes(spec, machine.facts, axes)
    size = argument_bytes(spec, owners) if size is None else size
    known = any(record.is_chosen and record.runs for record in machine.choices.measured(kernel.situation()))
    row = KernelTime(
        spec.name,
        spec.id,
        axes or numbers,
        str(config),
        "measured" if known else "policy",
        None,
        size,
        size / machine.facts.bandwidth * 1e3,
    )
    protection = protect_arguments(spec, arguments, owners, machine.driver, stream)
    if protection is None:
        return replace(row, problem="there is no memory to keep what it changes")
    bench = KernelBench(kernel, machine.meter, stream, arguments, protection.restore if protection.saved else None)
    try:
        first = bench.sample(config, 1)[0]
        return replace(row, spread=spread_of(bench.sample(config, samples if first < LONG_MS else 5)))
    except LaunchFailed as error:
        return replace(row, problem=str(error))
    finally:
        protection.restore()


def argument_bytes(spec: KernelSpec, owners: Sequence[Any]) -> int:
    """Returns the bytes of a launch's tensors: an upper bound of what it moves, where nothing better is known."""
    total = 0
    for param, owner in zip(spec.params, owners, strict=True):
        if owner is not None:
            total += extent_bytes(owner) * (2 if param.access in ("readwrite", "atomic") else 1)
    return total


def _extent(owner: Any) -> int:
    return 0 if owner is None else extent_bytes(owner)
