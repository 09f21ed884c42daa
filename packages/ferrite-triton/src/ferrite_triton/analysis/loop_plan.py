"""Which loop over the reduction axis does what, in kernels that walk it block by block.

A reduction is done in the first pass after those that its operands wait for; values at reduction level are computed
anew in every pass that needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ferrite_ir.language.graph import Computed, Contract, Loop, Reduction, Scan, Update, names_read
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import hint
from ferrite_triton.analysis.flat import FlatKernel, memory_loads
from ferrite_triton.analysis.lowering_policy import LOWERING
from ferrite_triton.analysis.rows import behind, step_along, varies_along_reduction
from ferrite_triton.analysis.update_targets import update_scalars


@dataclass(frozen=True, slots=True)
class Pass:
    """One loop over the reduction axis.

    Attributes:
        inside: definitions of reduction level that are reduced, scanned, stored or updated in the loop, in order.
        after: definitions of grid level that are ready when it has ended.
    """

    inside: tuple[Computed, ...]
    after: tuple[Computed, ...]


@dataclass(frozen=True, slots=True)
class Passes:
    """The order of work: grid-level definitions that wait for no loop, then the loops."""

    before: tuple[Computed, ...]
    loops: tuple[Pass, ...]


def plan_passes(flat: FlatKernel) -> Passes:
    """Returns the loops of a kernel and what belongs to each."""
    stages = find_stages(flat)
    stored = set(flat.kernel.stored)
    inside: dict[int, list[Computed]] = {}
    after: dict[int, list[Computed]] = {}
    delayed = _overwriting_stage(flat, stages)
    for name, stage in _reading_stage(flat, stages).items():
        delayed[name] = max(stage, delayed.get(name, 0))
    for position, definition in enumerate(flat.definitions):
        stage = max(stages[position], max((delayed.get(result.name, 0) for result in definition.results), default=0))
        if not flat.is_reduction_level(definition):
            after.setdefault(stage, []).append(definition)
        elif not isinstance(definition, Loop) or any(result.name in stored for result in definition.results):
            inside.setdefault(stage, []).append(definition)
    count = max([*inside, *(stage - 1 for stage in after)], default=-1) + 1
    loops = tuple(Pass(tuple(inside.get(i, ())), tuple(after.get(i + 1, ()))) for i in range(count))
    return Passes(tuple(after.get(0, ())), loops)


def find_stages(flat: FlatKernel) -> list[int]:
    """Returns for every definition the number of loops that must have ended before its operands are known."""
    ready: dict[str, int] = {}
    stages: list[int] = []
    for definition in flat.definitions:
        stage = max((ready.get(name, 0) for name in names_read(definition)), default=0)
        stages.append(stage)
        # A reduction's result waits for the end of its loop; so does a value at grid level that is computed from one.
        done = stage + 1 if isinstance(definition, (Reduction, Contract)) else stage
        ready.update((result.name, done) for result in definition.results)
    return stages


def _overwriting_stage(flat: FlatKernel, stages: list[int]) -> dict[str, int]:
    """Returns for stores at reduction level into memory that the kernel also reads the earliest stage: the last one."""
    inside = {
        result.name: stage
        for stage, definition in zip(stages, flat.definitions, strict=True)
        if flat.is_reduction_level(definition) and not isinstance(definition, (Reduction, Contract))
        for result in definition.results
    }
    read = {flat.param_of(load.source).text for load in memory_loads(flat, _all_roots(flat))}
    overwritten = [
        name
        for name in flat.kernel.stored
        if name in inside and (flat.param_of(name).param.access == "readwrite" or flat.param_of(name).text in read)
    ]
    return dict.fromkeys(overwritten, max(inside.values(), default=0))


def _reading_stage(flat: FlatKernel, stages: list[int]) -> dict[str, int]:
    """Returns for updates whose new values the kernel reduces the stage in which it does: that has them at hand."""
    updated = {each.result.name for each in flat.definitions if isinstance(each, Update)}
    return {
        name: stage
        for stage, definition in zip(stages, flat.definitions, strict=True)
        if isinstance(definition, Reduction)
        for name in names_read(definition)
        if name in updated
    }


def _all_roots(flat: FlatKernel) -> tuple[Scalar, ...]:
    return tuple(root for definition in flat.definitions for root in roots_of(definition))


def roots_of(definition: Computed) -> tuple[Scalar, ...]:
    """Returns the expressions that a definition evaluates when it is written."""
    if isinstance(definition, Update):
        return update_scalars(definition)
    if isinstance(definition, Contract):
        return (definition.left, definition.right)
    return tuple(getattr(definition, "bodies", ()))


def rereads(flat: FlatKernel, passes: Passes) -> list[dict[Scalar, str]]:
    """Returns for each loop the eviction policy of its loads: data that a later loop reads again should stay."""
    reads = [loads_along_reduction(flat, loop) for loop in passes.loops]
    policies: list[dict[Scalar, str]] = []
    for number, loads in enumerate(reads):
        later = {load for following in reads[number + 1 :] for load in following}
        earlier = {load for before in reads[:number] for load in before}
        policies.append({load: _policy(again=load in later, before=load in earlier) for load in loads})
    return policies


def goes_backwards(flat: FlatKernel, passes: Passes) -> list[bool]:
    """Returns for each loop whether it begins with the last block of the reduction axis.

    One that reads again what takes more of the cache than a program's share finds the end there, not the beginning.
    Scans go on from block to block, in their direction.
    """
    if any(isinstance(definition, Scan) and definition.reverse for definition in flat.definitions):
        return [True] * len(passes.loops)
    axis, found = flat.space.reduction, [False] * len(passes.loops)
    if axis is None or flat.space.order[-1:] != ("r",):
        return found
    for number, (before, loop) in enumerate(pairwise(passes.loops), start=1):
        again = loads_along_reduction(flat, loop).keys() & loads_along_reduction(flat, before).keys()
        row = hint(axis.size) * sum(flat.param_of(load.source).dtype.bytes for load in again)
        scans = any(isinstance(definition, Scan) for definition in (*loop.inside, *before.inside))
        found[number] = row >= LOWERING.long_pass and not scans and not found[number - 1]
    return found


HALF = 2
"""Bytes of an element that is prefetched, at most."""


def prefetched_loads(flat: FlatKernel, policies: list[dict[Scalar, str]]) -> list[frozenset[Scalar]]:
    """Returns for each loop the loads whose next block is prefetched before one is worked on.

    Those are columns of 16-bit elements that are read again. Few programs run at once then, so that their columns stay
    in the cache, and without prefetches all threads of a multiprocessor wait for a block, or all compute (``softmax``
    of ``benchmarks/kernels/hand_written.py`` is written with and without them). With 32-bit elements prefetches cost
    more than they gain.
    """
    columns = flat.space.order[-1:]
    if flat.space.order[:1] != ("r",) or len(flat.space.order) != 2:
        return [frozenset() for _ in policies]

    def walks_down(load: Scalar) -> bool:
        offset = flat.offset(load.source, load.indices)
        is_regular = not offset.is_indirect and step_along(offset, "r") != 0
        return is_regular and load.dtype.bytes <= HALF and behind(offset, *columns) is not None

    again = [[load for load, policy in loads.items() if policy == READ_AGAIN_LATER] for loads in policies]
    return [frozenset(filter(walks_down, loads)) for loads in again]


# Eviction policy of a load along the reduction axis by what the other loops do: "" leaves it to the machine, because
# the next kernel may want data that this one reads but once.
READ_AGAIN_LATER, READ_THE_LAST_TIME, READ_ONCE = "evict_last", "evict_first", ""


def _policy(*, again: bool, before: bool) -> str:
    if again:
        return READ_AGAIN_LATER
    return READ_THE_LAST_TIME if before else READ_ONCE


def loads_along_reduction(flat: FlatKernel, loop: Pass) -> dict[Scalar, None]:
    """Returns the loads from memory in a loop that vary along the reduction axis, in first-use order."""
    loads: dict[Scalar, None] = {}
    for definition in loop.inside:
        loads.update(memory_loads(flat, roots_of(definition)))
    return {load: None for load in loads if varies_along_reduction(load.indices)}
