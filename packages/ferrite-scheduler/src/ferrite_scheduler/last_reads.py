"""Which kernels read for the last time what an earlier one has left in the cache.

A norm over images reads them for its statistics, then again to apply these. What fits in the cache is still there the
second time, unless the results that are written meanwhile have taken its place. So the second kernel says of each line
that it reads that nobody needs it any more: results take the place of lines that are done with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferrite_ir.graph import Graph, TensorType, bodies_of
from ferrite_ir.sizes import hint, product

from .dependences import Dependences
from .memory import Work
from .schedule import Kernel, Param
from .target import Target

LEAST_SHARE = 8
"""What takes less than one part in so many of the cache survives without being told to."""


def mark_last_reads(work: Sequence[Work], graph: Graph, dependences: Dependences, target: Target) -> list[Work]:
    """Returns the work, in order, with such params marked."""
    kept = {dependences.storage[name] for name in dependences.kept}
    touched = [_storages(item, graph, dependences) for item in work]
    last = {storage: position for position, storages in enumerate(touched) for storage in storages}
    before: dict[str, int] = {}
    moved = [0]
    marked: list[Work] = []
    for position, (item, storages) in enumerate(zip(work, touched, strict=True)):
        final = {
            storage: moved[position] - moved[before[storage] + 1]
            for storage in storages
            if storage in before and last[storage] == position and storage not in kept
        }
        marked.append(_with_marks(item, final, dependences, target) if final and isinstance(item, Kernel) else item)
        moved.append(moved[position] + sum(storages.values()))
        before.update(dict.fromkeys(storages, position))
    return marked


def _storages(item: Work, graph: Graph, dependences: Dependences) -> dict[str, int]:
    """Returns the storages that a kernel or a call touches, with the bytes of each."""
    own = (param.name for param in item.params) if isinstance(item, Kernel) else (*item.reads, *item.result_names)
    return {dependences.storage[name]: _bytes(graph.values[name].type) for name in own}


def _with_marks(kernel: Kernel, final: dict[str, int], dependences: Dependences, target: Target) -> Kernel:
    """Returns a kernel with the params marked whose storages are touched for the last time.

    Args:
        kernel: the kernel.
        final: those storages, with the bytes that were moved since they were touched before.
        dependences: of the graph.
        target: the device.
    """
    if kernel.strategy != "pointwise":
        return kernel
    points = hint(product(axis.size for axis in kernel.axes))
    loads = {load for definition in kernel.body for body in bodies_of(definition) for load in body.loads}

    def is_last(param: Param) -> bool:
        since = final.get(dependences.storage[param.name])
        size = _bytes(param.type)
        if since is None or param.access != "read" or not target.l2_bytes <= LEAST_SHARE * size:
            return False
        once = points == hint(param.type.numel) and sum(load.source == param.name for load in loads) == 1
        return once and size + since <= target.l2_bytes

    return replace(
        kernel, params=tuple(replace(param, is_last=True) if is_last(param) else param for param in kernel.params)
    )


def _bytes(tensor: TensorType) -> int:
    return hint(tensor.storage_size) * tensor.dtype.bytes
