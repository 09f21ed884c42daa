"""Stores intermediates in the type that they are widened from; their readers widen them again.

A conversion to a wider type that several places read would otherwise lie in memory as its result, although all of it is
known from half as many bytes::

    y: f32[n] = loop [i < n] cast.f32(cast.bf16(mul(x[i], x[i])))
    s: f32[] = reduce sum [ | i < n] y[i]

    y: bf16[n] = loop [i < n] rounded.bf16(mul(x[i], x[i]))
    s: f32[] = reduce sum [ | i < n] cast.f32(y[i])

Half values have no excess precision then (see `round_stored`): all who read one see the same number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ferrite_ir.language.dtypes import BOOL, DType
from ferrite_ir.language.graph import Attend, Contract, Definition, Graph, Loop, Value, names_read
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar, cast, load, replace_in_index, replace_loads

from .narrow import type_range
from .rewriting import map_scalars, with_definitions
from .round_stored import without_excess
from .simplify import simplifier
from .storage import fixed_names


@dataclass(frozen=True, slots=True)
class StoreNarrow:
    """Stores intermediates that are widened as what they are widened from.

    Outputs, what is written in place, and operands of calls, of attention and of contractions keep their types.
    """

    name: ClassVar[str] = "store_narrow"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with such intermediates stored in narrower types."""
        kept = fixed_names(graph)
        for definition in graph.definitions:
            if isinstance(definition, (Contract, Attend)):
                kept.update(names_read(definition))
        narrow: dict[str, DType] = {}
        stored = [_stored(definition, kept, narrow) for definition in graph.definitions]
        if not narrow:
            return graph
        simplify, memo = simplifier("rounding"), dict[Scalar, Scalar]()

        def widened(node: Scalar) -> Scalar | None:
            kind = narrow.get(node.source)
            return None if kind is None else cast(load(node.source, node.indices, kind), node.dtype)

        def reading(root: Scalar) -> Scalar:
            new = replace_loads(root, widened, memo)
            return root if new is root else simplify(new)

        def at(index: Index) -> Index:
            new = replace_in_index(index, widened, memo)
            return index if new is index else simplify.index(new)

        return with_definitions(graph, [map_scalars(each, reading, at) for each in stored])


def _stored(definition: Definition, kept: set[str], narrow: dict[str, DType]) -> Definition:
    """Returns a definition whose results are stored as what they are widened from; notes their types."""
    if not isinstance(definition, Loop):
        return definition
    results, bodies = list(definition.results), list(definition.bodies)
    for position, (value, body) in enumerate(zip(results, bodies, strict=True)):
        if value.name in kept or not _only_widens(body):
            continue
        source = body.args[0]
        narrow[value.name] = source.dtype
        results[position] = Value(value.name, replace(value.type, dtype=source.dtype))
        bodies[position] = without_excess(source, {})
    if results == list(definition.results):
        return definition
    return Loop(tuple(results), definition.dims, tuple(bodies), definition.origins)


def _only_widens(body: Scalar) -> bool:
    """Returns whether a value is a conversion to a type of more bits that has every number of the type before."""
    if body.op != "cast" or body.dtype.bits <= body.args[0].dtype.bits:
        return False
    source = body.args[0].dtype
    if source.is_float:
        return body.dtype.is_float
    if source is BOOL:
        return body.dtype.is_float or body.dtype.is_integer
    own, wide = type_range(source), type_range(body.dtype)
    return own is not None and wide is not None and wide[0] <= own[0] and own[1] <= wide[1]
