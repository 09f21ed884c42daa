"""Thread coarsening: a program has several rows of overlapping windows, and loads what they have in common once.

A window that is unrolled (a depthwise convolution, a pool) reads each element again for every result that the element
is in the window of: from the first-level cache, each time with an address, a condition and a conversion. Where a lane
computes the results of several rows that follow each other, one below the other, their windows have most rows in
common, and what is loaded for one is in a register for the others: of four rows of windows of 7 x 7 70 elements are
loaded for four results, instead of 196.

A dim of the grid is cut in two for that: an outer one takes its place, and an *unrolled axis* has the inner one, whose
points every lane goes through, unrolled. Volkov, "Better performance at lower occupancy" (2010), calls that more work
per thread; Magni, Dubach and O'Boyle, "A large-scale cross-architecture evaluation of thread-coarsening" (2013), thread
coarsening.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ferrite_ir.language.graph import Computed, Loop, bodies_of, loads_of
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.index_substitution import substitute
from ferrite_ir.language.scalar import Scalar, postorder, substitute_dims
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.memory.host_steps import Work
from ferrite_scheduler.model.axes import UNROLLED, Axis
from ferrite_scheduler.model.forms import Pointwise
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.model.target import Target

Place: TypeAlias = "tuple[str, tuple[Index, ...]]"
"""A value, and the indices that it is loaded at."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A dim that is cut, and how many of its points a lane has; ``loads`` are those of a result then, on average."""

    dim: Dim
    count: int
    loads: float


def coarsen(work: Sequence[Work], target: Target, policy: Policy) -> list[Work]:
    """Returns the work, in order, with kernels coarsened whose rows of windows overlap."""
    return [_coarsened(item, target, policy) if isinstance(item, Kernel) else item for item in work]


def _coarsened(kernel: Kernel, target: Target, policy: Policy) -> Kernel:
    if not isinstance(kernel.form, Pointwise) or kernel.skip_guard or kernel.unrolled is not None:
        return kernel
    loads = _loads_of_windows(kernel, policy)
    best = min(_cuts(kernel, loads, target, policy), key=lambda cut: cut.loads, default=None)
    if best is None or best.loads > policy.coarsened_share * len(loads):
        return kernel
    return cut_kernel(kernel, best.dim, best.count)


def _loads_of_windows(kernel: Kernel, policy: Policy) -> list[Place]:
    """Returns what a kernel loads from memory for one point, if some of it is a window; else nothing."""
    if not all(isinstance(definition, Loop) for definition in kernel.body):
        return []
    if not all(is_static(axis.size) for axis in kernel.axes):
        return []
    loads = [load for definition in kernel.body for load in loads_of(definition) if load.source not in kernel.homes]
    if any(index.is_indirect for load in loads for index in load.indices):
        return []
    places = list(dict.fromkeys((load.source, load.indices) for load in loads))
    counts = Counter(source for source, _ in places)
    return places if max(counts.values(), default=0) >= policy.coarsened_window else []


def _cuts(kernel: Kernel, loads: Sequence[Place], target: Target, policy: Policy) -> Iterator[Cut]:
    """Yields the ways to cut a dim that leave enough lanes for the device, and no more text than a kernel may have."""
    if not loads:
        return
    nodes = sum(1 for _ in postorder(body for definition in kernel.body for body in bodies_of(definition)))
    lanes = target.processors * policy.coarsened_lanes
    most = min(policy.coarsened_rows, policy.coarsened_nodes // nodes, kernel.points // lanes)
    for axis in kernel.axes:
        for dim in axis.dims:
            if _is_innermost(kernel, dim):
                continue
            for count in range(2, most + 1):
                if int(dim.size) % count == 0:
                    yield Cut(dim, count, len(set(_loaded(loads, dim, count))) / count)


def _is_innermost(kernel: Kernel, dim: Dim) -> bool:
    """Returns whether neighbours along a dim are neighbours in a result: threads side by side store them."""
    strides = {param.name: param.type.strides for param in kernel.params}
    return any(
        dim in index.dims and stride == 1
        for name in kernel.stored
        for index, stride in zip(kernel.homes[name], strides[name], strict=True)
    )


def _loaded(loads: Iterable[Place], dim: Dim, count: int) -> Iterator[Place]:
    """Yields what is loaded for so many points of a dim that follow each other."""
    outer = Dim(dim.name, int(dim.size) // count)
    for source, indices in loads:
        if not any(dim in index.dims for index in indices):
            yield source, indices
            continue
        for number in range(count):
            mapping = {dim: outer.index * count + number}
            yield source, tuple(substitute(index, mapping) for index in indices)


def cut_kernel(kernel: Kernel, dim: Dim, count: int) -> Kernel:
    """Returns a kernel each of whose lanes has so many points of a dim, which they divide, on an unrolled axis."""
    outer, inner = Dim(dim.name, int(dim.size) // count), Dim(f"{UNROLLED}0", count)
    mapping: dict[Dim, Index] = {dim: outer.index * count + inner.index}
    memo: dict[Scalar, Scalar] = {}

    def cut(definition: Computed) -> Computed:
        assert isinstance(definition, Loop), "judged before"
        dims = tuple(part for each in definition.dims for part in ((outer, inner) if each == dim else (each,)))
        bodies = tuple(substitute_dims(body, mapping, memo) for body in definition.bodies)
        return replace(definition, dims=dims, bodies=bodies)

    axes = tuple(replace(a, dims=tuple(outer if each == dim else each for each in a.dims)) for a in kernel.axes)
    return replace(
        kernel,
        axes=(*axes, Axis(UNROLLED, (inner,))),
        body=tuple(map(cut, kernel.body)),
        homes={name: tuple(substitute(index, mapping) for index in home) for name, home in kernel.homes.items()},
    )
