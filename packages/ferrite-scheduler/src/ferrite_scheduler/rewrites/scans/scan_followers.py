"""Pointwise definitions behind a scan in parts are computed where its parts are, and stored in its place.

A scan whose lines do not divide into equal parts stores its results in place, point by point (`long_scans`). A loop
over the results has other points than the parts, so that fusion could not join it: what a scan of 16-bit elements is
rounded to, say, would be another kernel.

    s = scan ...                 reads own parts, stores s at part * points + point, if that is on the line
    y = loop f(s, x)      ->     the same stores y = f(own parts, x) there, and s is nowhere
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from ferrite_ir.language.graph import Definition, Extern, Graph, Loop, TensorType, Update, loads_of, names_read
from ferrite_ir.language.scalar import Scalar, apply, const, replace_loads, substitute_dims
from ferrite_scheduler.model.intermediates import EMPTY, empty_for


def store_followers(graph: Graph, scanned: Collection[str]) -> Graph:
    """Returns the graph with loops over results of scans in parts moved to where the parts are.

    A loop is moved if it alone reads such a result, each element where it computes one, and nobody else needs it.

    Args:
        graph: whose scans are in parts.
        scanned: the results of its scans.
    """
    if not any(isinstance(each, Update) and each.result.name in scanned for each in graph.definitions):
        return graph
    types = {name: value.type for name, value in graph.values.items()}
    uses = Counter(name for definition in graph.definitions for name in set(names_read(definition)))
    uses.update(graph.output_names)
    uses.update(value for _, value in graph.mutations)
    followers = {name: loop for loop in graph.definitions if isinstance(loop, Loop) for name in _followed(loop, uses)}
    held: dict[str, Update] = {}
    unused: set[str] = set()
    definitions: list[Definition] = []
    for definition in graph.definitions:
        found: tuple[Definition, ...] = (definition,)
        if isinstance(definition, Loop) and held and (name := next(_followed(definition, uses), "")) in held:
            found = tuple(_moved(definition, held.pop(name), types, graph.device))
        last = found[-1]
        is_scanned = isinstance(last, Update) and (last.result.name in scanned or len(found) > 1)
        if isinstance(last, Update) and is_scanned and last.result.name in followers:
            held[last.result.name] = last
            unused.add(last.target)
            found = ()
        definitions.extend(found)
    kept = tuple(each for each in definitions if not _allocates(each, unused))
    return replace(graph, definitions=kept) if unused else graph


def _allocates(definition: Definition, names: Collection[str]) -> bool:
    """Returns whether a definition does nothing but allocate one of some buffers."""
    if not isinstance(definition, Extern) or definition.target != EMPTY:
        return False
    return any(result is not None and result.name in names for result in definition.results)


def _followed(loop: Loop, uses: Counter[str]) -> Iterator[str]:
    """Yields the values that a loop of one result alone reads, and nowhere but at its own points."""
    if len(loop.results) != 1:
        return
    home = tuple(dim.index for dim in loop.dims)
    loads = loads_of(loop)
    for name in dict.fromkeys(load.source for load in loads):
        if uses[name] == 1 and all(load.indices == home for load in loads if load.source == name):
            yield name


def _moved(loop: Loop, update: Update, types: dict[str, TensorType], device: str) -> Iterator[Definition]:
    """Yields a buffer for the result of a loop, and what stores it there at the points of an update."""
    read = substitute_dims(loop.bodies[0], dict(zip(loop.dims, update.indices, strict=True)))

    def computed(load: Scalar) -> Scalar | None:
        return update.body if load.source == update.result.name else None

    body, name = replace_loads(read, computed), update.result.name
    if update.condition is not None and any(load.source != name for load in loads_of(loop)):
        body = apply("masked", update.condition, body, const(0, body.dtype))  # there is nothing to read elsewhere
    home, empty = empty_for(loop.results[0], types, device)
    yield empty
    yield replace(update, result=loop.results[0], target=home.name, body=body, origins=(*update.origins, *loop.origins))
