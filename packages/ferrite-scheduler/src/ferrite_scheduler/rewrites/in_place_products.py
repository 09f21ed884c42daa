"""Products added in place: what a matrix product is added to dies there, and holds the sum afterwards.

    p1 = addmm(p0, a1, b1)    →    p1 = addmm(p0, a1, b1, out=p0)

The library copies a summand that is to be kept, and adds to the copy. Of a large matrix that is two of them at once,
and a read and a write more. The summand has to be the graph's own, and nobody else may read it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ferrite_ir.language.bindings import AFTER
from ferrite_ir.language.graph import Definition, Extern, Graph, View, names_read, whole
from ferrite_scheduler.analysis.generic_sizes import storage_bytes
from ferrite_scheduler.model.policy import Policy

from .accumulated_products import ADDED_PRODUCT

INTO_SUMMAND = "aten.addmm.out"


def add_in_place(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with such products written over their summands; the same object where there are none."""
    readers = Counter(name for each in graph.definitions if not _is_order(each) for name in names_read(each))
    readers.update(graph.output_names)
    readers.update(name for pair in graph.mutations for name in pair)
    own = {name for definition in graph.definitions for name in _made_alone(definition)}
    found = tuple(_in_place(definition, own, readers, graph, policy) for definition in graph.definitions)
    return graph if found == graph.definitions else replace(graph, definitions=found)


def _is_order(definition: Definition) -> bool:
    """Returns whether a definition only waits for what it names: that may be written afterwards."""
    return isinstance(definition, Extern) and definition.target == AFTER


def _made_alone(definition: Definition) -> list[str]:
    """Returns the results of a definition that lie in storages of their own."""
    shared = {name for name, _ in definition.aliases} if isinstance(definition, Extern) else set()
    is_new = isinstance(definition, Extern) and not definition.mutates
    return (
        [value.name for value in definition.results if value is not None and value.name not in shared] if is_new else []
    )


def _in_place(definition: Definition, own: set[str], readers: Counter[str], graph: Graph, policy: Policy) -> Definition:
    if not isinstance(definition, Extern) or definition.target != ADDED_PRODUCT or len(definition.results) != 1:
        return definition
    summand, (result,) = definition.args[0], definition.results
    if result is None or not isinstance(summand, View) or summand.name not in own or readers[summand.name] != 1:
        return definition
    value = graph.values[summand.name]
    others = {view.name for view in definition.args[1:] if isinstance(view, View)}
    is_same = summand == whole(value) and value.type == result.type and value.name not in others
    if not is_same or storage_bytes(value.type) < policy.product_in_place_bytes:
        return definition
    own.add(result.name)
    return replace(
        definition,
        target=INTO_SUMMAND,
        kwargs=(*definition.kwargs, ("out", summand)),
        aliases=((result.name, summand.name),),
        mutates=(summand.name,),
    )
