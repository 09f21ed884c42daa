"""How much memory a schedule needs: a walk over its host steps, which say when storages come and go."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ferrite_ir.language.graph import TensorType
from ferrite_scheduler.analysis.generic_sizes import storage_bytes
from ferrite_scheduler.model.schedule import (
    Allocate,
    CallExtern,
    CallGraph,
    Free,
    Keep,
    MakeView,
    Reuse,
    Schedule,
    Step,
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one run of a schedule, inputs included, workspaces of extern calls not.

    Attributes:
        peak: the most bytes alive at once.
        step: the first step at which they are.
        alive: bytes of each storage alive then, by the host name it was made under.
        bytes_at: bytes alive during each step.
    """

    peak: int
    step: int
    alive: Mapping[str, int]
    bytes_at: tuple[int, ...]


@dataclass(slots=True)
class _Storages:
    """The storages alive during a walk: which names hold each, and how large it is."""

    owner: dict[str, str] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    live: int = 0

    def make(self, name: str, tensor: TensorType) -> None:
        """Enters a new storage."""
        self.owner[name], self.holders[name], self.sizes[name] = name, {name}, storage_bytes(tensor)
        self.live += self.sizes[name]

    def share(self, name: str, other: str) -> None:
        """Makes a name hold the storage that another one does."""
        self.owner[name] = self.owner[other]
        self.holders[self.owner[name]].add(name)

    def drop(self, name: str) -> None:
        """Takes a name away, and its storage with the last one."""
        owner = self.owner.pop(name)
        self.holders[owner].discard(name)
        if not self.holders[owner]:
            self.live -= self.sizes.pop(owner)


def footprint(schedule: Schedule, held: Collection[str] = ()) -> Footprint:
    """Returns how much memory a schedule needs.

    Args:
        schedule: the schedule.
        held: names of inputs that the caller keeps alive, so that dropping them frees nothing.

    Sizes are those of the tensors, in bytes; what an allocator adds is not counted, nor what called graphs need.
    """
    storages = _Storages()
    for value in schedule.inputs:
        storages.make(value.name, value.type)
    types = {value.name: value.type for value in schedule.graph.values.values()}
    kept, peak, position, alive = frozenset(held), storages.live, 0, dict(storages.sizes)
    bytes_at: list[int] = []
    for number, step in enumerate(schedule.steps):
        _apply(step, storages, types, kept)
        bytes_at.append(storages.live)
        if storages.live > peak:
            peak, position, alive = storages.live, number, dict(storages.sizes)
    return Footprint(peak, position, MappingProxyType(alive), tuple(bytes_at))


def _apply(step: Step, storages: _Storages, types: Mapping[str, TensorType], held: frozenset[str]) -> None:
    match step:
        case Allocate(name, tensor) | Keep(name, tensor):
            storages.make(name, tensor)
        case Reuse(name, source, _):
            storages.share(name, source)
            storages.drop(source)
        case MakeView(name, view):
            storages.share(name, view.name)
        case CallExtern(definition, results):
            shared = dict(definition.aliases)
            for result in (name for name in results if name is not None):
                if result in shared:
                    storages.share(result, shared[result])
                else:
                    storages.make(result, types[result])
        case CallGraph(_, results):
            for name in (name for name in results if name is not None):
                storages.make(name, types[name])
        case Free(names):
            for name in names:
                if name not in held:
                    storages.drop(name)
