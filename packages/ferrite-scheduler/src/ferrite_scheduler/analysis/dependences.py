"""Which definition must come before which, and which names share storage.

`Dependences` has the edges between nodes: true ones (a value is read) and ordering ones (a read of old contents before
an in-place write, effects in program order), both linear in the number of uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ferrite_ir.language.bindings import SIZE, bindings_of, check_symbols, definition_symbols, type_sizes
from ferrite_ir.language.graph import ControlFlow, Definition, Extern, Graph, Update, names_read
from ferrite_ir.language.sizes import symbols_of

from .nodes import Node

Stage: TypeAlias = tuple[int, bool]
"""The number of a group of multi-versioned reductions, and whether it is their second stage."""


@dataclass(frozen=True, slots=True)
class Dependences:
    """Edges between nodes, and which names share storage.

    Attributes:
        nodes: in program order.
        before: for each node, the nodes that must precede it.
        after: the reverse.
        readers: for each name, the nodes that read it, in program order.
        definer: the node that defines each name; inputs are absent.
        storage: for each name the name of the oldest value that shares its storage.
        versions: for each storage that something writes in place, the names that share it.
        kept: names that outlive the graph.
        held: names of inputs that the caller holds: their memory is not freed after their last use.
        stages: by node, of what group of multi-versioned reductions it is a stage, and which: such nodes share a kernel
            with their like, so that it can be left out for some sizes (see `multi_versioning`).
    """

    nodes: tuple[Node, ...]
    before: tuple[dict[int, None], ...]
    after: tuple[dict[int, None], ...]
    readers: dict[str, list[int]]
    definer: dict[str, int]
    storage: dict[str, str]
    versions: dict[str, list[str]]
    kept: frozenset[str]
    held: frozenset[str] = frozenset()
    stages: Mapping[int, Stage] = field(default_factory=dict)


def dependences_of(graph: Graph, nodes: tuple[Node, ...]) -> Dependences:
    """Returns the dependences between the nodes of a graph."""
    definer = {name: node.number for node in nodes for name in node.result_names}
    storage = storages_of(graph)
    readers: dict[str, list[int]] = {}
    for node in nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node.number)
    written = {storage[name] for node in nodes for name in written_names(node.definition)}
    versions: dict[str, list[str]] = {root: [] for root in sorted(written)}
    for name, root in storage.items():
        if root in versions:
            versions[root].append(name)
    before = _edges(nodes, definer, storage, versions)
    _add_symbol_edges(graph, before)
    after: tuple[dict[int, None], ...] = tuple({} for _ in nodes)
    for number, earlier in enumerate(before):
        for other in earlier:
            after[other][number] = None
    return Dependences(nodes, before, after, readers, definer, storage, versions, frozenset(graph.output_names))


def storages_of(graph: Graph) -> dict[str, str]:
    """Returns for each name the name of the oldest value whose storage it shares."""
    storage = {value.name: value.name for value in graph.inputs}
    for definition in graph.definitions:
        for result in definition.results:
            if result is not None:
                storage[result.name] = result.name
        if isinstance(definition, Update):
            storage[definition.result.name] = storage[definition.target]
        elif isinstance(definition, Extern):
            for result_name, operand in definition.aliases:
                storage[result_name] = storage[operand]
    return storage


def written_names(definition: Definition) -> tuple[str, ...]:
    """Returns the names whose storage the definition writes in place."""
    match definition:
        case Update():
            return (definition.target,)
        case Extern():
            return definition.mutates
    return ()


def _has_effects(definition: Definition) -> bool:
    """Returns whether a definition keeps its place among others with effects; called graphs may have some."""
    return definition.effects if isinstance(definition, Extern) else isinstance(definition, ControlFlow)


def _add_symbol_edges(graph: Graph, before: tuple[dict[int, None], ...]) -> None:
    """Adds to the edges that what uses a symbol comes after what binds it, and after the checks made of it by then.

    Where the type of a value says something else than the symbol that is bound to its extent, what reads the value
    comes after the checks of the symbol too.
    """
    bindings = bindings_of(graph)
    if not bindings and not any(map(check_symbols, graph.definitions)):
        return
    known: dict[str, list[int]] = {}
    standing: dict[str, set[str]] = {}
    for number, definition in enumerate(graph.definitions):
        names = names_read(definition)
        read = (size for name in names for size in type_sizes(graph.type_of(name)))
        used = definition_symbols(definition).union(*map(symbols_of, read), *(standing.get(name, ()) for name in names))
        if isinstance(definition, Extern) and definition.target == SIZE:
            standing.setdefault(names[0], set()).add(str(definition.args[0]))
        before[number].update((other, None) for name in sorted(used) for other in known.get(name, ()))
        for name in (*(binding.symbol for binding in bindings.get(number, ())), *sorted(check_symbols(definition))):
            known.setdefault(name, []).append(number)


def _edges(
    nodes: tuple[Node, ...], definer: dict[str, int], storage: dict[str, str], versions: dict[str, list[str]]
) -> tuple[dict[int, None], ...]:
    before: tuple[dict[int, None], ...] = tuple({} for _ in nodes)
    last_write: dict[str, int] = {}
    since: dict[str, list[int]] = {}
    last_effect: int | None = None
    for node in nodes:
        mine = before[node.number]
        for name in node.reads:
            if name in definer:
                mine[definer[name]] = None
            root = storage[name]
            if root in versions:
                if root in last_write:
                    mine[last_write[root]] = None
                since.setdefault(root, []).append(node.number)
        for name in written_names(node.definition):
            root = storage[name]
            mine.update(dict.fromkeys(number for number in since.get(root, ()) if number != node.number))
            last_write[root], since[root] = node.number, []
        if _has_effects(node.definition):
            if last_effect is not None:
                mine[last_effect] = None
            last_effect = node.number
    return before
