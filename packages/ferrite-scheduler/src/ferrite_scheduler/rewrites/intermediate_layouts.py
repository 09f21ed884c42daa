"""Layouts of intermediates: what only reductions read lies in memory as what it is computed from.

Eager mode makes a row-major result of a channels-last image in some ops, and users see how results lie. Nobody sees how
an intermediate does. One that lies otherwise than its operands is transposed where it is made, and keeps what makes it
out of the kernel that reduces it: along the rows of the one the elements of the other are far apart.
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.graph import Computed, Definition, Graph, Loop, Reduction, TensorType, loads_of, names_read
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.dim_orders import in_memory_order, operand_orders, plain_dims


def lay_out_intermediates(graph: Graph) -> Graph:
    """Returns the graph with such layouts chosen; the same object where all lie as they should."""
    known = {name: value.type for name, value in graph.values.items()}
    types = {name: kind for name, kind in known.items() if all(map(is_static, kind.strides))}
    readers: dict[str, list[Definition]] = {}
    for definition in graph.definitions:
        for name in names_read(definition):
            readers.setdefault(name, []).append(definition)
    definitions: list[Definition] = []
    for definition in graph.definitions:
        if isinstance(definition, Loop) and _is_free(definition, graph, readers):
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


def _is_free(loop: Loop, graph: Graph, readers: dict[str, list[Definition]]) -> bool:
    """Returns whether a loop has one result, of known extents, that reductions read point by point and nothing else."""
    if len(loop.results) != 1 or loop.results[0].name in graph.output_names:
        return False
    (result,) = loop.results
    own = readers.get(result.name, [])
    return (
        bool(own)
        and all(map(is_static, result.type.shape))
        and all(isinstance(reader, Reduction) and _reads_by_point(reader, result.name) for reader in own)
    )


def _reads_by_point(reader: Computed, name: str) -> bool:
    return all(plain_dims(load) for load in loads_of(reader) if load.source == name)


def _strides_of_operands(loop: Loop, types: dict[str, TensorType]) -> tuple[int, ...] | None:
    """Returns dense strides in the order in which all operands of a loop's size lie; None if it has that already."""
    orders = operand_orders(loop, types)
    if len(orders) != 1 or orders[0] == in_memory_order(loop.dims, loop.results[0].type):
        return None
    steps, step = dict.fromkeys(loop.dims, 1), 1
    for dim in reversed(orders[0]):
        steps[dim] = step
        step *= int(dim.size)
    return tuple(steps[dim] for dim in loop.dims)
