"""What a reduction computes of the result of each row is computed where rows are reduced, not where they are combined.

A mean loss takes the logarithm of each row's sum and looks up the row's label, then it adds up the rows. A few programs
do that last, and would wait for what they look up; those that reduce the rows are many, and wait side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ferrite_ir.language.graph import Definition, Graph, Reduction, TensorType
from ferrite_ir.language.index import Dim, Index, constant
from ferrite_ir.language.ops import RANDOM
from ferrite_ir.language.scalar import Scalar, load, postorder, substitute_dims
from ferrite_ir.language.sizes import hint, product
from ferrite_scheduler.model.annotations import RowResult
from ferrite_scheduler.model.intermediates import new_value
from ferrite_scheduler.model.policy import Policy


def separate_row_results(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with such results defined by loops of their own; the same object where there are none."""
    types = {name: value.type for name, value in graph.values.items()}
    long = [d for d in graph.definitions if isinstance(d, Reduction) and _is_long(d, policy)]
    rows = {result.name: reduction for reduction in long for result in reduction.results}
    definitions: list[Definition] = []
    for definition in graph.definitions:
        dims = _rows_of(definition, rows) if isinstance(definition, Reduction) else ()
        if isinstance(definition, Reduction) and dims:
            definitions.extend(_separated(definition, dims, types))
        else:
            definitions.append(definition)
    return graph if len(definitions) == len(graph.definitions) else replace(graph, definitions=tuple(definitions))


def _is_long(reduction: Reduction, policy: Policy) -> bool:
    return hint(product(dim.size for dim in reduction.reduction_dims)) >= policy.split_minimum


def _rows_of(reduction: Reduction, rows: Mapping[str, Reduction]) -> tuple[Dim, ...]:
    """Returns the dims of a reduction in the order of the rows whose results it combines, nothing if it combines none.

    It does if it reads each of them once and computes something of it.
    """
    if len(reduction.bodies) != 1 or reduction.bodies[0].op == "load":
        return ()
    own = {dim.index: dim for dim in (*reduction.dims, *reduction.reduction_dims) if dim.size != 1}
    nodes = tuple(postorder(reduction.bodies))
    if any(node.op in RANDOM for node in nodes):
        return ()
    for node in nodes:
        if node.op == "load" and node.source in rows:
            found = _as_dims(node, own)
            points = product(dim.size for dim in rows[node.source].dims)
            if len(found) == len(own) and product(dim.size for dim in found) == points:
                return found
    return ()


def _as_dims(node: Scalar, own: Mapping[Index, Dim]) -> tuple[Dim, ...]:
    """Returns the dims that a load goes along point by point, in its order."""
    return tuple(dict.fromkeys(own[index] for index in node.indices if index in own))


def _separated(reduction: Reduction, dims: tuple[Dim, ...], types: dict[str, TensorType]) -> Iterator[Definition]:
    """Yields the loop over rows, and the reduction of what it computes; other dims of the reduction have one point."""
    single = {dim: constant(0) for dim in (*reduction.dims, *reduction.reduction_dims) if dim not in dims}
    body, result = substitute_dims(reduction.bodies[0], single), reduction.results[0]
    tensor = TensorType(body.dtype, tuple(dim.size for dim in dims), device=result.type.device)
    value = new_value(f"{result.name}_row", tensor, types)
    yield RowResult((value,), dims, (body,), reduction.origins)
    yield replace(reduction, bodies=(load(value.name, [dim.index for dim in dims], body.dtype),))
