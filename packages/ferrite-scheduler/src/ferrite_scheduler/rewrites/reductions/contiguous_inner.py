"""Contiguous inner axes: reductions over a short one are split, first everything else is reduced, then the inner axis.

A group norm of channels-last images reduces, for each group, over positions and over the few channels of the group.
Only so many of its operands are contiguous, but the groups lie side by side: a reduction over the positions alone, for
all channels of all groups, reads whole lines of memory, and a second reduction over the channels of a group is small.
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.graph import Definition, Graph, Reduction, TensorType
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import load
from ferrite_ir.language.sizes import is_static, product
from ferrite_scheduler.analysis.nodes import Node, make_node
from ferrite_scheduler.model.intermediates import partial_value
from ferrite_scheduler.model.policy import Policy

from .merged_partials import ANY_ORDER

LINE_BYTES = 128
"""Bytes of a line of memory on all supported GPUs: inner axes of at least as many fill lines by themselves."""


def split_contiguous_inner(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with such reductions in two; the same object where there are none."""
    types = {name: value.type for name, value in graph.values.items()}
    definitions: list[Definition] = []
    for definition in graph.definitions:
        inner = _inner_dim(definition, types, policy) if isinstance(definition, Reduction) else None
        if inner is None or not isinstance(definition, Reduction):
            definitions.append(definition)
        else:
            definitions.extend(_separated(definition, inner, types))
    if len(definitions) == len(graph.definitions):
        return graph
    return replace(graph, definitions=tuple(definitions))


def _inner_dim(reduction: Reduction, types: dict[str, TensorType], policy: Policy) -> Dim | None:
    """Returns the short dim that the heaviest operand is contiguous along, if its neighbours are other results."""
    dims = [dim for dim in reduction.reduction_dims if dim.size != 1]
    if (
        reduction.combine not in ANY_ORDER
        or len(dims) < 2
        or not all(is_static(dim.size) for dim in (*reduction.dims, *dims))
    ):
        return None
    if product(dim.size for dim in dims) <= policy.persistent_elements_outer:
        return None
    node = make_node(0, reduction, types, {})
    heaviest = max(node.loads, key=lambda touch: touch.bytes, default=None)
    if heaviest is None or heaviest.bytes < policy.small_kernel_bytes:
        return None
    width = types[heaviest.name].dtype.bytes
    for dim in dims:
        step, size = node.steps[dim], int(dim.size)
        if size * width < LINE_BYTES and _goes_on(node, heaviest.known, step, size):
            return dim
    return None


def _goes_on(node: Node, known: tuple[tuple[int, int, int], ...], own: int, size: int) -> bool:
    """Returns whether the dim of this step is the contiguous one, and where it ends that of another result begins.

    Where it ends the same reduction may go on, too: then what is contiguous is longer than the dim.
    """
    for step, extent, coefficient in known:
        if step == own and coefficient == 1:
            following = [own * size] if extent > size else [start for start, _, factor in known if factor == size]
            return bool(following) and all(start >= node.reduction for start in following)
    return False


def _separated(reduction: Reduction, inner: Dim, types: dict[str, TensorType]) -> tuple[Reduction, Reduction]:
    """Returns the reduction over everything but the contiguous inner dim, and the one over that dim."""
    rest = tuple(dim for dim in reduction.reduction_dims if dim is not inner)
    states = tuple(
        partial_value(result, "inner", (*result.type.shape, inner.size), types) for result in reduction.results
    )
    first = Reduction(states, reduction.combine, (*reduction.dims, inner), rest, reduction.bodies, reduction.origins)
    where = [dim.index for dim in (*reduction.dims, inner)]
    operands = tuple(load(value.name, where, value.type.dtype) for value in states)
    return first, Reduction(reduction.results, reduction.combine, reduction.dims, (inner,), operands, reduction.origins)
