"""Why a store has nothing for a kernel: the fields in which what it looks for differs from what is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ferrite_runtime.compilation.compiler import JOBS, environment_facts
from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Situation
from ferrite_runtime.store.interface import Store, load_record
from ferrite_runtime.store.measurement_entries import scan_measurements
from ferrite_runtime.tuning.kernel_tuning import situation_of
from ferrite_runtime.tuning.known_configs import Choices


@dataclass(frozen=True, slots=True)
class Lookup:
    """What looking one thing up for a kernel finds.

    Attributes:
        kernel: the kernel's name.
        id: its identity.
        wanted: ``binary`` or ``measurement``.
        is_hit: whether it is there.
        reasons: on a miss, the fields in which the nearest entry differs; on a hit, what was found.
    """

    kernel: str
    id: str
    wanted: str
    is_hit: bool
    reasons: tuple[str, ...]


def explain_lookups(
    store: Store, spec: KernelSpec, device: DeviceFacts, sizes: Mapping[str, int] | None = None
) -> tuple[Lookup, Lookup]:
    """Returns what a kernel would find of its binaries and of its measurements, for a device and sizes of its axes."""
    situation = situation_of(spec, device, sizes)
    return _binary_lookup(store, spec, device), _measurement_lookup(store, spec, situation)


def _binary_lookup(store: Store, spec: KernelSpec, device: DeviceFacts) -> Lookup:
    wanted = {"target": str(device.target), **environment_facts()}
    found = [facts for key, _ in store.scan(JOBS, spec.id) if isinstance(facts := load_record(store, JOBS, key), dict)]
    best: tuple[str, ...] | None = None
    for facts in found:
        lines = tuple(
            f"{name}: {facts.get(name)!r} there, {value!r} here"
            for name, value in wanted.items()
            if facts.get(name) != value
        )
        best = lines if best is None or len(lines) < len(best) else best
    if best == ():
        configs = sum(all(facts.get(name) == value for name, value in wanted.items()) for facts in found)
        return Lookup(spec.name, spec.id, "binary", True, (f"{configs} built for {device.target}",))
    return Lookup(spec.name, spec.id, "binary", False, best or _absence(store, spec, "compiled"))


def _measurement_lookup(store: Store, spec: KernelSpec, situation: Situation) -> Lookup:
    found = Choices(store).recall(situation)
    if found is not None:
        return Lookup(spec.name, spec.id, "measurement", True, (str(found),))
    others = [record for record in scan_measurements(store) if record.situation.kernel == spec.id]
    differing = [situation.differences(record.situation) for record in others if record.is_chosen]
    if () in differing:
        return Lookup(spec.name, spec.id, "measurement", False, ("its config was taken without measuring",))
    best = min(differing, key=len, default=None)
    return Lookup(spec.name, spec.id, "measurement", False, best or _absence(store, spec, "measured"))


def _absence(store: Store, spec: KernelSpec, verb: str) -> tuple[str, ...]:
    """Returns the reason of a kernel that the store knows nothing of."""
    ids = {record.situation.kernel for record in scan_measurements(store) if record.situation.name == spec.name}
    notes = (load_record(store, JOBS, key) for key, _ in store.scan(JOBS))
    ids |= {note["kernel"] for note in notes if isinstance(note, dict) and note.get("name") == spec.name}
    if ids - {spec.id}:
        other = min(ids - {spec.id})
        return (f"kernel: {other[:12]} there, {spec.id[:12]} here: one of the same name, but its text or facts differ",)
    return (f"it was never {verb} with this store",)
