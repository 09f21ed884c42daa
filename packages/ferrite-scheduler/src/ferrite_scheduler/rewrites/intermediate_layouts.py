"""Layouts of intermediates: what reductions read lies in memory as what it is computed from.

Eager mode makes a row-major result of a channels-last image in some ops, and users see how results lie. Nobody sees how
an intermediate does. One that lies otherwise than its operands is transposed where it is made, and keeps what makes it
out of the kernel that reduces it, or has that read along rows whose elements are far apart. Windows over it, or over
what a softmax makes of such rows, transpose it at less cost: they have tiles of two axes, and neighbours share lines of
the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ferrite_ir.language.graph import (
    Computed,
    Definition,
    Graph,
    Loop,
    Reduction,
    TensorType,
    Value,
    loads_of,
    names_read,
)
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import is_static, product
from ferrite_scheduler.analysis.dim_orders import in_memory_order, operand_orders, plain_dims


def lay_out_intermediates(graph: Graph) -> Graph:
    """Returns the graph with such layouts chosen; the same object where all lie as they should."""
    known = {name: value.type for name, value in graph.values.items()}
    types = {name: kind for name, kind in known.items() if all(map(is_static, kind.strides))}
    free = _free_loops(graph, types)
    definitions: list[Definition] = []
    for definition in graph.definitions:
        if isinstance(definition, Loop) and definition.results[0].name in free:
            strides = _strides_of_operands(definition, types)
            if strides is not None:
                (result,) = definition.results
                types[result.name] = replace(result.type, strides=strides)
                definitions.append(replace(definition, results=(replace(result, type=types[result.name]),)))
                continue
        definitions.append(definition)
    if all(new is old for new, old in zip(definitions, graph.definitions, strict=True)):
        return graph
    return replace(graph, definitions=tuple(definitions))


def _free_loops(graph: Graph, types: Mapping[str, TensorType]) -> set[str]:
    """Returns the results of loops that may lie in any order: nobody sees them, and no reader gains by theirs.

    They are no results of the graph, have known extents, and are the only result of their loop.
    """
    readers: dict[str, list[Definition]] = {}
    for definition in graph.definitions:
        for name in names_read(definition):
            readers.setdefault(name, []).append(definition)
    of_rows = _made_of_rows(graph, types)
    free: set[str] = set()
    for definition in reversed(graph.definitions):
        if not isinstance(definition, Loop) or len(definition.results) != 1:
            continue
        (result,) = definition.results
        own = readers.get(result.name)
        if own and result.name not in graph.output_names and all(map(is_static, result.type.shape)):
            with_rows = result.name in of_rows or any(isinstance(reader, Reduction) for reader in own)
            if all(_takes_any_order(reader, result, free, with_rows=with_rows) for reader in own):
                free.add(result.name)
    return free


def _takes_any_order(reader: Definition, value: Value, free: Collection[str], *, with_rows: bool) -> bool:
    """Returns whether a definition may read a value in one order as well as in another.

    Reductions do that read each element once, and loops that read it point by point if their results are free as well.
    Windows cross the orders if anything has to, where the kernel that makes the value has rows (``with_rows``): it
    reduces the value, or what this is made of, along rows that it would not have in another order. Those at positions
    that are computed do not: with tiles of two axes a program computes as many of them as elements.
    """
    if isinstance(reader, Reduction):
        return all(_reads_once(load, value) for load in _loads_from(reader, value))
    if not isinstance(reader, Loop):
        return False
    if _reads_by_point(reader, value):
        return reader.results[0].name in free
    return with_rows and not any(index.is_indirect for load in _loads_from(reader, value) for index in load.indices)


def _made_of_rows(graph: Graph, types: Mapping[str, TensorType]) -> set[str]:
    """Returns what reductions make of rows of adjacent elements, and the results of loops that read it."""
    found: set[str] = set()
    for definition in graph.definitions:
        loads = loads_of(definition) if isinstance(definition, Loop | Reduction) else ()
        if isinstance(definition, Loop):
            is_of_rows = any(load.source in found for load in loads)
        else:
            is_of_rows = isinstance(definition, Reduction) and any(
                _is_along_rows(definition, load, types) for load in loads
            )
        if is_of_rows:
            found |= {result.name for result in definition.results if result is not None}
    return found


def _is_along_rows(reduction: Reduction, load: Scalar, types: Mapping[str, TensorType]) -> bool:
    """Returns whether a reduction takes elements of a tensor that are neighbours in memory."""
    dims = plain_dims(load)
    if not dims or load.source not in types:
        return False
    order = in_memory_order(dims, types[load.source])
    return bool(order) and order[-1] in reduction.reduction_dims


def _loads_from(reader: Computed, value: Value) -> list[Scalar]:
    return [load for load in loads_of(reader) if load.source == value.name]


def _reads_once(load: Scalar, value: Value) -> bool:
    """Returns whether a load has as many points as a tensor has elements: axes may be taken in parts, or joined."""
    dims = frozenset[Dim]().union(*(index.dims for index in load.indices))
    return bool(product(dim.size for dim in dims) == value.type.numel)


def _reads_by_point(reader: Computed, value: Value) -> bool:
    return all(plain_dims(load) for load in _loads_from(reader, value))


def _strides_of_operands(loop: Loop, types: Mapping[str, TensorType]) -> tuple[int, ...] | None:
    """Returns dense strides in the order in which all operands of a loop's size lie; None if it has that already."""
    orders = operand_orders(loop, types)
    if len(orders) != 1 or orders[0] == in_memory_order(loop.dims, loop.results[0].type):
        return None
    steps, step = dict.fromkeys(loop.dims, 1), 1
    for dim in reversed(orders[0]):
        steps[dim] = step
        step *= int(dim.size)
    return tuple(steps[dim] for dim in loop.dims)
