"""Contractions as calls of torch's library: what computed them before kernels of ours did, with its own epilogue.

    p = contract x[m, k] * w[n, k]                     q = extern aten.addmm.default(b, x, w.T)
    y = loop cast.bf16(add(p[m, n], cast.f32(b[n])))   y = loop cast.bf16(cast.f32(q[m, n]))

The library rounds what it computes to the type of the factors, as eager mode does. A factor that does not lie in memory
by strides is computed first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ferrite_ir.language.graph import (
    Contract,
    Definition,
    Extern,
    Graph,
    Loop,
    loads_of,
    names_read,
    whole,
)
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar, load, postorder, replace_loads, rewrite
from ferrite_ir.passes import Dce, Inline
from ferrite_ir.passes.rewriting import map_scalars
from ferrite_scheduler.model.contractions import EIGHT_BIT_FLOATS

from .calls import called_instead, operand_view, product_name
from .grouped_calls import grouped_call, has_call
from .scaled_calls import Scaled, scaled_call, scaled_product

PRODUCTS = {2: ("aten.mm.default", "aten.addmm.default"), 3: ("aten.bmm.default", "")}
"""By the number of dims of the result: the call, and that which adds a vector to each row."""


@dataclass(frozen=True, slots=True)
class _Bias:
    """A vector that the only reader of a product adds to each of its rows: where it does, and the vector's name."""

    reader: int
    outer: Scalar
    product: Scalar
    name: str


def as_extern_calls(graph: Graph, names: Collection[str]) -> Graph:
    """Returns the graph with extern calls for the contractions with these results.

    Contractions that no call computes stay as they are.
    """
    folded = {name: _folded_of(graph, name) for name in names}
    changed: list[Definition] = []
    without = {fold.reader: fold for fold in folded.values() if fold is not None}
    for position, definition in enumerate(graph.definitions):
        if isinstance(definition, Contract) and definition.result.name in names and len(definition.dims) in PRODUCTS:
            changed += _called(definition, graph, folded[definition.result.name])
        elif position in without and isinstance(definition, Loop):
            fold = without[position]
            bodies = tuple(rewrite(b, lambda leaf: leaf, {fold.outer: fold.product}) for b in definition.bodies)
            changed.append(replace(definition, bodies=bodies))
        else:
            changed.append(definition)
    inlined = Dce().run(Inline().run(replace(graph, definitions=tuple(changed))))
    return _without_copies(inlined, {product_name(name) for name in names})


def _without_copies(graph: Graph, called: Collection[str]) -> Graph:
    """Returns the graph without loops that do nothing but copy the result of one of these calls: that is theirs."""
    copies = {
        definition.bodies[0].source: definition.results[0]
        for definition in graph.definitions
        if isinstance(definition, Loop) and _is_copy(definition, graph, called)
    }

    def read(node: Scalar) -> Scalar | None:
        made = copies.get(node.source)
        return None if made is None else load(made.name, node.indices, node.dtype)

    changed: list[Definition] = []
    for definition in graph.definitions:
        if isinstance(definition, Extern) and definition.results[0] and definition.results[0].name in copies:
            changed.append(replace(definition, results=(copies[definition.results[0].name],)))
        elif not any(result in copies.values() for result in definition.results):
            changed.append(map_scalars(definition, lambda body: replace_loads(body, read), lambda index: index))
    return replace(graph, definitions=tuple(changed))


def _is_copy(loop: Loop, graph: Graph, called: Collection[str]) -> bool:
    """Returns whether a loop copies the result of a call, element by element, to where it might have been computed."""
    body, (made, *more) = loop.bodies[0], loop.results
    if more or body.op != "load" or body.source not in called:
        return False
    first = next(d for d in graph.definitions if isinstance(d, Loop) and len(d.results) == 1 and d.bodies[0] == body)
    is_whole = body.indices == tuple(dim.index for dim in loop.dims)
    return first is loop and is_whole and made.type == graph.values[body.source].type


def _folded_of(graph: Graph, name: str) -> _Bias | Scaled | None:
    """Returns what the only reader of a product does to it that its call does, too."""
    definition = graph.definer[name]
    if isinstance(definition, Contract) and definition.segments is not None:
        return None
    is_narrow = isinstance(definition, Contract) and definition.left.dtype in EIGHT_BIT_FLOATS
    return scaled_product(graph, name) if is_narrow else _bias_of(graph, name)


def _called(contract: Contract, graph: Graph, folded: _Bias | Scaled | None) -> list[Definition]:
    """Returns the call for a contraction, what it needs before it, and its result under the contraction's name."""
    *batch, row, column = contract.dims
    (point,) = contract.reduction_dims
    made, dtype = contract.result, contract.left.dtype
    before: list[Definition] = []
    if dtype.is_half and contract.stored is not dtype:
        return [contract]  # the library rounds its result
    if contract.segments is not None:
        return grouped_call(contract, contract.segments, graph) if has_call(contract) else [contract]
    left = operand_view(contract.left, (*batch, row, point), f"{made.name}_left", graph, before)
    if dtype in EIGHT_BIT_FLOATS:
        if not isinstance(folded, Scaled):
            return [contract]
        # The library takes columns that lie next to each other.
        columns = operand_view(contract.right, (column, point), f"{made.name}_right", graph, before)
        turned = replace(columns, shape=columns.shape[::-1], strides=columns.strides[::-1])
        return [*before, *scaled_call(contract, graph, folded, left, turned)]
    bias = folded if isinstance(folded, _Bias) else None
    right = operand_view(contract.right, (*batch, point, column), f"{made.name}_right", graph, before)
    plain, added = PRODUCTS[len(contract.dims)]
    vector = () if bias is None else (whole(graph.values[bias.name]),)
    return [*before, *called_instead(contract, added if vector else plain, (*vector, left, right), dtype)]


def _bias_of(graph: Graph, name: str) -> _Bias | None:
    """Returns the vector that the library can add to each row of a product while it computes it, or None."""
    contract = graph.definer[name]
    readers = [position for position, d in enumerate(graph.definitions) if name in names_read(d)]
    if not isinstance(contract, Contract) or not PRODUCTS[len(contract.dims)][1] or len(readers) != 1:
        return None
    reader = graph.definitions[readers[0]]
    if name in graph.output_names or not isinstance(reader, Loop) or len(reader.bodies) != 1:
        return None
    nodes = list(postorder(reader.bodies))
    (product, *more) = [found for found in loads_of(reader) if found.source == name]
    parents = [node for node in nodes if product in node.args]
    if more or len(parents) != 1 or parents[0].op != "add":
        return None
    others = [term for term in parents[0].args if term is not product]
    if len(others) != 1 or not _is_row(others[0], product.indices[-1], contract, graph):
        return None
    return _Bias(readers[0], parents[0], product, others[0].args[0].source)


def _is_row(term: Scalar, column: Index, contract: Contract, graph: Graph) -> bool:
    """Returns whether a term is an element, by its column, of a whole vector of the factors' type."""
    if term.op != "cast" or term.args[0].op != "load":
        return False
    vector = graph.values[term.args[0].source].type
    fits = vector.dtype is contract.left.dtype and vector.shape == contract.result.type.shape[-1:]
    return fits and vector.device == contract.result.type.device and term.args[0].indices == (column,)
