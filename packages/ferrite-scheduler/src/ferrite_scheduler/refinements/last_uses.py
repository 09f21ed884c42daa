"""Eviction hints: what is read for the last time, or written beside rows that are read again, leaves the cache.

A norm over images reads them for its statistics, then again to apply these. What fits in the cache is still there the
second time, and of larger images a part, unless what is read and written meanwhile has taken its place. So the second
kernel says of each line that it reads that nobody needs it any more, and what comes in takes the place of lines that
are done with. Large results that no kernel of the graph reads are stored with streaming stores, so that they take no
other place.

A looped kernel finds its rows there when it reads them again. Results that do not fit in the cache anyway are gone when
the next kernel wants them; stored with streaming stores, they leave the rows their place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ferrite_ir.language.graph import Graph, loads_of
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import hint, product
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.generic_sizes import storage_bytes
from ferrite_scheduler.memory.host_steps import Work
from ferrite_scheduler.model.forms import Combo, LookBackScan, Pointwise
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Kernel, Param
from ferrite_scheduler.model.target import Target


def mark_last_uses(
    work: Sequence[Work], graph: Graph, dependences: Dependences, target: Target, policy: Policy
) -> list[Work]:
    """Returns the work, in order, with such params marked."""
    kept = {dependences.storage[name] for name in dependences.kept}
    touched = [storages_of(item, graph, dependences) for item in work]
    last = {storage: position for position, storages in enumerate(touched) for storage in storages}
    before: dict[str, int] = {}
    moved = [0]
    marked: list[Work] = []
    for position, (item, storages) in enumerate(zip(_passing(work, target), touched, strict=True)):
        final = {
            storage: moved[position] - moved[before[storage] + 1]
            for storage in storages
            if storage in before and last[storage] == position and storage not in kept
        }
        if isinstance(item, Kernel) and final:
            untouched = {storage for storage in storages if last[storage] == position}
            marked.append(_with_marks(item, final, untouched, dependences, target, policy))
        else:
            marked.append(item)
        moved.append(moved[position] + sum(storages.values()))
        before.update(dict.fromkeys(storages, position))
    return marked


def storages_of(item: Work, graph: Graph, dependences: Dependences) -> dict[str, int]:
    """Returns the storages that a kernel or a call touches, with the bytes of each."""
    own = (param.name for param in item.params) if isinstance(item, Kernel) else (*item.reads, *item.result_names)
    return {dependences.storage[name]: storage_bytes(graph.values[name].type) for name in own}


def _with_marks(
    kernel: Kernel,
    final: dict[str, int],
    untouched: Collection[str],
    dependences: Dependences,
    target: Target,
    policy: Policy,
) -> Kernel:
    """Returns a kernel with the params marked that it reads for the last time, and those that it writes beside these.

    Args:
        kernel: the kernel.
        final: storages that are touched for the last time, with the bytes that were moved since they were before.
        untouched: storages of this kernel that no later one touches.
        dependences: of the graph.
        target: the device.
        policy: thresholds.
    """
    if not isinstance(kernel.form, Pointwise | Combo):
        return kernel
    points = hint(product(axis.size for axis in kernel.axes))
    loads = {load for definition in kernel.body for load in loads_of(definition)}

    def is_last(param: Param) -> bool:
        since = final.get(dependences.storage[param.name])
        if since is None or param.access != "read" or not _is_large(param, target, policy):
            return False
        once = points == hint(param.type.numel) and sum(load.source == param.name for load in loads) == 1
        return once and since < target.l2_bytes

    marked = tuple(replace(param, is_last=True) if is_last(param) else param for param in kernel.params)
    if not any(param.is_last for param in marked):
        return kernel

    def is_streaming(param: Param) -> bool:
        return (
            param.access == "write"
            and dependences.storage[param.name] in untouched
            and _is_large(param, target, policy)
        )

    return replace(
        kernel, params=tuple(replace(param, is_streaming=True) if is_streaming(param) else param for param in marked)
    )


def _is_large(param: Param, target: Target, policy: Policy) -> bool:
    return target.l2_bytes <= policy.last_use_share * storage_bytes(param.type)


def _passing(work: Sequence[Work], target: Target) -> Iterator[Work]:
    """Yields the work, with the params marked that looped kernels write with streaming stores."""
    for item in work:
        if not isinstance(item, Kernel) or not _streams_results(item):
            yield item
            continue
        large = {
            param for param in item.params if param.access == "write" and storage_bytes(param.type) > target.l2_bytes
        }
        yield replace(
            item, params=tuple(replace(param, is_streaming=True) if param in large else param for param in item.params)
        )


def _streams_results(kernel: Kernel) -> bool:
    """Returns whether other things should stay in the cache: rows that are read again, words that programs wait for."""
    if isinstance(kernel.form, LookBackScan):
        return True
    return kernel.form.has_passes and _reads_again(kernel)


def _reads_again(kernel: Kernel) -> bool:
    """Returns whether a later pass over the reduction axis reads what an earlier one has read."""
    passes = kernel.pass_of
    first: dict[Scalar, int] = {}
    for definition in kernel.body:
        number = passes[definition.results[0].name]
        for load in loads_of(definition):
            if first.setdefault(load, number) != number:
                return True
    return False
