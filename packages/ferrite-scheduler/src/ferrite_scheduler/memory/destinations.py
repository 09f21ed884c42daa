"""Double buffering of loops: the body writes what it carries over what was carried two iterations ago.

iteration 1   a -> [0]         a is the caller's
iteration 2   [0] -> [1]
iteration 3   [1] -> [0]       and so on: none allocates
"""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.calls import callees_of
from ferrite_ir.language.graph import For, Graph, Module, Value, View, While, whole


def loop_bodies(module: Module) -> frozenset[str]:
    """Returns the names of the graphs that are the bodies of loops, and called in no other way.

    Those whose loops stack what they make are none: what each iteration has made is kept.
    """
    bodies: set[str] = set()
    others: set[str] = set()
    for definition in (definition for graph in module.graphs for definition in graph.definitions):
        if isinstance(definition, For) or (isinstance(definition, While) and not definition.stacked):
            bodies.add(definition.body)
            others.update({definition.condition} if isinstance(definition, While) else ())
        else:
            others.update(callees_of(definition))
    return frozenset(bodies - others)


def with_destinations(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """Returns a graph with an input more for each tensor that it returns, and these inputs by the results.

    The graph itself, and none, where it returns parts of values, or one twice.
    """
    tensors = [output for output in graph.outputs if isinstance(output, View)]
    names = [output.name for output in tensors]
    if any(output != whole(graph.values[output.name]) for output in tensors) or len(set(names)) < len(names):
        return graph, {}
    taken = set(graph.values)
    found: dict[str, str] = {}
    for name in names:
        wanted, number = f"{name}_to", 2
        while wanted in taken:
            wanted, number = f"{name}_to{number}", number + 1
        taken.add(wanted)
        found[name] = wanted
    added = tuple(Value(found[name], graph.values[name].type) for name in names)
    return replace(graph, inputs=(*graph.inputs, *added)), found
