"""Call graph of a module: which graphs a definition calls, and in which order graphs stand before their callers."""

from __future__ import annotations

from .graph import Call, Definition, For, Graph, If, Module, While


def callees_of(definition: Definition) -> tuple[str, ...]:
    """Returns the names of the graphs that a definition calls; none for all but control flow."""
    match definition:
        case Call():
            return (definition.callee,)
        case If():
            return definition.then, definition.otherwise
        case While():
            return definition.condition, definition.body
        case For():
            return (definition.body,)
    return ()


def called_first(module: Module) -> tuple[Graph, ...]:
    """Returns the graphs that the entry of a module calls, and those that these call, each behind what it calls.

    The entry is not among them. No graph calls itself (V21).

    Raises:
        KeyError: a definition names a graph that the module has not.
    """
    found: dict[str, Graph] = {}
    pending = [(module.graphs[0], False)]
    while pending:
        graph, is_done = pending.pop()
        if is_done:
            found.setdefault(graph.name, graph)
        elif graph.name not in found:
            pending.append((graph, True))
            called = dict.fromkeys(name for definition in graph.definitions for name in callees_of(definition))
            pending.extend((module.graph(name), False) for name in reversed(called))
    return tuple(graph for graph in found.values() if graph is not module.graphs[0])
