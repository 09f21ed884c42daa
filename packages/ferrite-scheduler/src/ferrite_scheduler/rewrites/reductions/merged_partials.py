"""Partial states that another reduction combines are combined by that reduction, not by a kernel between the two.

A group norm of channels-last images reduces positions first, in parts, then parts, then the channels of a group: one
reduction over parts and channels does for both. Which states are combined first makes no difference but for rounding.
"""

from __future__ import annotations

from ferrite_ir.language.graph import Graph, Reduction, View, names_read
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import substitute_dims
from ferrite_ir.language.sizes import is_static, product
from ferrite_scheduler.model.intermediates import fresh_dim
from ferrite_scheduler.model.policy import Policy

ANY_ORDER = ("sum", "prod", "max", "min", "any", "all", "welford")
"""Combines whose states come in any order."""


def readers_of_states(graph: Graph) -> dict[str, Reduction]:
    """Returns the reduction that reads each value which nothing reads but one reduction, that combines it as it is."""
    readers: dict[str, Reduction] = {}
    others = {output.name for output in graph.outputs if isinstance(output, View)}
    others.update(value for _, value in graph.mutations)
    for definition in graph.definitions:
        names = names_read(definition)
        if isinstance(definition, Reduction) and all(body.op == "load" for body in definition.bodies):
            others.update(name for name in names if name in readers)
            readers.update(dict.fromkeys(names, definition))
        else:
            others.update(names)
    return {name: reduction for name, reduction in readers.items() if name not in others}


def combines_parts_of(reader: Reduction, second: Reduction, policy: Policy) -> bool:
    """Returns whether a reduction may as well combine what a second stage does, whose results it alone reads."""
    if reader.combine != second.combine or reader.combine not in ANY_ORDER:
        return False
    states = [body.source for body in reader.bodies]
    count = product(dim.size for dim in (*second.reduction_dims, *reader.reduction_dims))
    is_whole = states == [result.name for result in second.results]
    return is_whole and is_static(count) and int(count) <= policy.merged_states


def merge_parts(reader: Reduction, second: Reduction) -> Reduction:
    """Returns what combines, for each result of a reduction of states, what a second stage would of each state."""
    dims = (*reader.dims, *reader.reduction_dims)
    parts = tuple(fresh_dim("s", dim.size, dims) for dim in second.reduction_dims)
    bodies = []
    for state, body in zip(reader.bodies, second.bodies, strict=True):
        positions: dict[Dim, Index] = dict(zip(second.dims, state.indices, strict=True))
        positions.update((old, new.index) for old, new in zip(second.reduction_dims, parts, strict=True))
        bodies.append(substitute_dims(body, positions))
    return Reduction(
        reader.results, reader.combine, reader.dims, (*reader.reduction_dims, *parts), tuple(bodies), reader.origins
    )
