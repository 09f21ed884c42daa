"""Grid-cooperative reductions: several programs hold one block each of a long reduction axis.

CUDA's cooperative groups have the grid barrier that these wait at; here it is memory and flags (decision 0011).

A looped kernel reads a row for its reductions, then again for what it computes of each element with their results. Of
long rows the programs that run at once hold more than the cache does, so that memory is read twice. Where a row is cut
into blocks that programs hold in registers it is read once: each program publishes what its block reduces to, waits
until the programs of the same row have done so, too, and combines what all of them have published, in one order always.

Programs begin in the order of their numbers, or draw them, so that those of a row begin one after the other: all that
wait, but for those of one row of each kernel, wait for programs that have begun. `Policy.grid_reduction_share` leaves
room for that row's; see decisions 0011 and 0024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import Computed, Extern, Graph, Loop, Reduction, bodies_of
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import postorder
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.clusters import Cluster
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.nodes import make_node
from ferrite_scheduler.analysis.traffic import live_tiles
from ferrite_scheduler.kernels.kernel_names import kernel_name
from ferrite_scheduler.memory.host_steps import Work
from ferrite_scheduler.model.forms import GridReduction, LoopedReduction, RegisterNorm
from ferrite_scheduler.model.group_blocks import spans_of
from ferrite_scheduler.model.intermediates import workspace_of
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Kernel, Param
from ferrite_scheduler.model.target import Target

SHARED_COMBINES = frozenset(("sum", "max", "min", "online_softmax"))
"""Combines whose states are published, a 32-bit word for each component."""
COLUMNS = 32
"""Columns that a program takes together, as its kernel is written: a line of memory of 32-bit elements."""
SMALLEST, SMALLEST_OF_COLUMNS = 2, 4
"""Fewest bytes of an element. Two of two bytes wait in a register; columns of such gain nothing from it.

Nor are rows shared of which wider elements are made: exact exponentials take more registers than there are.
"""


def as_grid_reduction(kernel: Kernel, cluster: Cluster, target: Target, policy: Policy) -> Kernel:
    """Returns a looped kernel as one whose programs share rows, or as it is where that does not pay or cannot be."""
    if not policy.grid_reductions or not isinstance(kernel.form, LoopedReduction) or cluster.kinds != {"reduction"}:
        return kernel
    reduction = kernel.reduction
    if reduction is None or not all(is_static(axis.size) for axis in kernel.axes):
        return kernel
    if live_tiles(cluster) > policy.grid_reduction_live:
        return kernel
    is_column = cluster.direction == "column"
    most = target.processors // policy.grid_reduction_share
    points = policy.grid_reduction_rows if is_column else policy.grid_reduction_points
    if not is_column and int(reduction.size) > points * most:
        points *= 2  # the longest rows: a program of twice as many threads
    if not points < int(reduction.size) <= points * most:
        return kernel
    stored = _elements_stored(kernel)
    again = _read_again(kernel, stored)
    types = {param.name: param.type.dtype.bytes for param in kernel.params}
    narrowest = min((types[name] for name in again), default=0)
    if narrowest < (SMALLEST_OF_COLUMNS if is_column else SMALLEST):
        return kernel
    if narrowest < F32.bytes and any(types[name] >= F32.bytes for name in stored):
        return kernel
    held = int(reduction.size) * sum(types[name] for name in again) * (COLUMNS if is_column else 1)
    if held < policy.grid_reduction_minimum:
        return kernel
    form = GridReduction(points)
    return replace(kernel, name=kernel_name(form, kernel.body), form=form)


def _read_again(kernel: Kernel, stored: Sequence[str]) -> frozenset[str]:
    """Returns what a kernel reads for reductions and again for what it stores, where programs can reduce it together.

    Nothing where they cannot: where one waits for another, or a result is stored before they are done.
    """
    makers = {result.name: d for d in kernel.body for result in d.results}
    for definition in kernel.body:
        is_plain = isinstance(definition, Loop) or (isinstance(definition, Reduction) and _is_shared(definition))
        if not is_plain:
            return frozenset()
    reductions = [definition for definition in kernel.body if isinstance(definition, Reduction)]
    if any(kernel.pass_of[reduction.results[0].name] for reduction in reductions):
        return frozenset()
    reduction_dims = set(kernel.reduction.dims) if kernel.reduction is not None else set()
    rest = [makers[name] for name in stored]
    if any(kernel.pass_of[definition.results[0].name] == 0 for definition in rest):
        return frozenset()
    return frozenset(_elements_read(reductions, makers, reduction_dims) & _elements_read(rest, makers, reduction_dims))


def _elements_stored(kernel: Kernel) -> list[str]:
    """Returns the results of which a kernel stores another element at each point of the reduction axis."""
    reduction_dims = set(kernel.reduction.dims) if kernel.reduction is not None else set()
    makers = {result.name: d for d in kernel.body for result in d.results}
    return [name for name in kernel.stored if reduction_dims.intersection(makers[name].dims)]


def _is_shared(reduction: Reduction) -> bool:
    return (
        reduction.combine in SHARED_COMBINES and len(reduction.bodies) == 1 and reduction.bodies[0].dtype.compute is F32
    )


def _elements_read(definitions: Sequence[Computed], makers: dict[str, Computed], reduction_dims: set[Dim]) -> set[str]:
    """Returns the tensors of which definitions read another element at each point of the reduction axis."""
    found: set[str] = set()
    seen: set[int] = set()
    pending = list(definitions)
    while pending:
        for node in postorder(bodies_of(pending.pop())):
            if node.op != "load":
                continue
            maker = makers.get(node.source)
            if maker is None:
                if any(dim in reduction_dims for index in node.indices for dim in index.dims):
                    found.add(node.source)
            elif isinstance(maker, Loop) and id(maker) not in seen:
                seen.add(id(maker))
                pending.append(maker)
    return found


def with_workspaces(
    work: Sequence[Work], graph: Graph, dependences: Dependences
) -> tuple[list[Work], Graph, Dependences]:
    """Returns work in which each grid reduction and register norm has a workspace for what its programs publish.

    It is a call before the kernel that fills it with zeros: a counter, one for each row, then a word for each component
    of a state, each row and each block of it. That of images is filled once and kept.
    """
    if not any(isinstance(item, Kernel) and isinstance(item.form, GridReduction | RegisterNorm) for item in work):
        return list(work), graph, dependences
    types = {name: value.type for name, value in graph.values.items()}
    storage, readers = dict(dependences.storage), dict(dependences.readers)
    found: list[Work] = []
    calls: list[Extern] = []
    for item in work:
        if not isinstance(item, Kernel) or not isinstance(item.form, GridReduction | RegisterNorm):
            found.append(item)
            continue
        result = next(value for definition in item.body for value in definition.results)
        is_kept = isinstance(item.form, RegisterNorm)
        workspace, call = workspace_of(result, _words(item), types, graph.device, is_kept=is_kept)
        number = len(graph.definitions) + len(calls)
        calls.append(call)
        storage[workspace.name] = workspace.name
        readers[workspace.name] = [number]
        found.append(make_node(number, call, types, {}))
        params = (*item.params, Param(workspace.name, workspace.type, "atomic"))
        found.append(replace(item, params=params, form=replace(item.form, workspace=workspace.name)))
    graph = replace(graph, definitions=(*calls, *graph.definitions))
    return found, graph, replace(dependences, storage=storage, readers=readers)


def _words(kernel: Kernel) -> int:
    """Returns the words of such a kernel's workspace: a counter, one for each group of rows, states."""
    if isinstance(kernel.form, RegisterNorm):
        return _words_of_images(kernel)
    rows = math.prod(int(axis.size) for axis in kernel.grid)
    states = sum(len(definition.results) for definition in kernel.body if isinstance(definition, Reduction))
    return 1 + rows + states * rows * kernel.splits


def _words_of_images(kernel: Kernel) -> int:
    """Returns the words of a register norm's workspace: a counter, one for each image, group, block and part."""
    x = kernel.axes[-2]
    images = math.prod(int(axis.size) for axis in kernel.axes[:-2])
    groups, members = (int(dim.size) for dim in x.dims)
    return 1 + images * groups * spans_of(members, int(x.size)) * kernel.splits
