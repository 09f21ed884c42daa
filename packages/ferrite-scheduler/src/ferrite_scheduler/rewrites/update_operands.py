"""Updates that read what they overwrite, at other points than they overwrite it, get their operands first.

An update means "all points from the old contents, then the stores". One kernel keeps that meaning only if no program
can read an element that another one has already stored.
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.graph import Definition, Graph, Loop, TensorType, Update, index_loads
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import load
from ferrite_ir.passes.renaming import Renaming
from ferrite_scheduler.analysis.dependences import storages_of
from ferrite_scheduler.analysis.nodes import is_opaque, make_node, stores_each_once
from ferrite_scheduler.model.intermediates import new_value


def separate_updates(graph: Graph) -> Graph:
    """Returns the graph with such updates cut in two; the same object where there are none."""
    updates = [definition for definition in graph.definitions if isinstance(definition, Update)]
    if not updates:
        return graph
    storage = storages_of(graph)
    types = {name: value.type for name, value in graph.values.items()}
    definitions: list[Definition] = []
    for definition in graph.definitions:
        if isinstance(definition, Update):
            definitions.extend(_separated(definition, storage, types))
        else:
            definitions.append(definition)
    return replace(graph, definitions=tuple(definitions)) if len(definitions) > len(graph.definitions) else graph


def _separated(update: Update, storage: dict[str, str], types: dict[str, TensorType]) -> tuple[Definition, ...]:
    node = make_node(0, update, types, {})
    root = storage[update.target]
    assert node.stores is not None, "an update stores"
    risky = {
        touch.name
        for touch in node.loads
        if storage[touch.name] == root
        and (touch.access != node.stores.access or is_opaque(touch.access) or not stores_each_once(node))
    }
    if not risky:
        return (update,)
    elsewhere = [] if update.condition is None else list(update.condition.loads)
    elsewhere += index_loads(update.indices)
    if any(found.source in risky for found in elsewhere):
        return _with_snapshots(update, sorted(risky), types)
    shape = tuple(dim.size for dim in update.dims)
    value = new_value(f"{update.result.name}_new", TensorType(update.body.dtype, shape), types)
    computed = Loop((value,), update.dims, (update.body,), update.origins)
    body = load(value.name, [dim.index for dim in update.dims], update.body.dtype)
    return computed, replace(update, body=body)


def _with_snapshots(update: Update, names: list[str], types: dict[str, TensorType]) -> tuple[Definition, ...]:
    """Returns copies of the named values, and the update reading the copies."""
    copies: dict[str, str] = {}
    found: list[Definition] = []
    for name in names:
        tensor = types[name]
        dims = tuple(Dim(f"d{position}", size) for position, size in enumerate(tensor.shape))
        value = new_value(f"{name}_old", TensorType(tensor.dtype, tensor.shape, tensor.strides, tensor.device), types)
        found.append(Loop((value,), dims, (load(name, [dim.index for dim in dims], tensor.dtype),), update.origins))
        copies[name] = value.name

    return *found, Renaming(copies).reads(update)
