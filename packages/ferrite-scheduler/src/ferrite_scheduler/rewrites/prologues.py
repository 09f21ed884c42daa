"""Recomputed normalisation prologue: every program of a product computes the statistic of the vector that it needs.

A product of a matrix with a normalised vector reduces along the rows of the matrix, and each of its programs reads the
whole vector. What normalises it is a reduction along the same axis, of one point or of a few: as a kernel of its own it
keeps the machine waiting for one program. Over the points of the product it is computed thousands of times, and takes
an instruction for each element of a row that is on its way from memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import Definition, Graph, Reduction, TensorType, View, names_read
from ferrite_ir.language.index import Index
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.scalar import Scalar, indirects, load, rewrite, substitute_dims
from ferrite_ir.language.sizes import is_static, product
from ferrite_scheduler.analysis.nodes import make_node
from ferrite_scheduler.model.intermediates import partial_value
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target
from ferrite_scheduler.model.work import cost_of

COMBINES = frozenset(("sum", "max", "min"))


def recompute_statistics(graph: Graph, target: Target, policy: Policy) -> Graph:
    """Returns the graph with such statistics over the points of the products; the same object where there are none."""
    statistics = {
        d.results[0].name: d for d in graph.definitions if isinstance(d, Reduction) and _is_statistic(d, policy)
    }
    kept = {output.name for output in graph.outputs if isinstance(output, View)}
    types = {name: value.type for name, value in graph.values.items()}
    readers: dict[str, list[Definition]] = {name: [] for name in statistics if name not in kept}
    for definition in graph.definitions:
        for name in names_read(definition):
            if name in readers:
                readers[name].append(definition)
    repeated = {
        name
        for name, found in readers.items()
        if found and all(_is_product(d, statistics[name], types, target, policy) for d in found)
    }
    if not repeated:
        return graph
    definitions: list[Definition] = []
    for definition in graph.definitions:
        names = [name for name in names_read(definition) if name in repeated]
        if isinstance(definition, Reduction) and names:
            definitions.extend(_with_statistics(definition, [statistics[name] for name in names], types))
        elif not any(result is not None and result.name in repeated for result in definition.results):
            definitions.append(definition)
    return replace(graph, definitions=tuple(definitions))


def _is_statistic(reduction: Reduction, policy: Policy) -> bool:
    """Returns whether a reduction is of few vectors that a tile holds each."""
    if reduction.combine not in COMBINES or len(reduction.bodies) != 1 or reduction.bodies[0].dtype is not F32:
        return False
    sizes = [dim.size for dim in (*reduction.dims, *reduction.reduction_dims)]
    if not all(map(is_static, sizes)) or any(indirects(node) for node in reduction.bodies[0].loads):
        return False
    if cost_of(reduction.bodies) > policy.recomputed_cost:
        return False
    points, length = product(dim.size for dim in reduction.dims), product(dim.size for dim in reduction.reduction_dims)
    return bool(points <= policy.recomputed_points and next_power_of_two(int(length)) <= policy.persistent_elements)


def _is_product(
    reader: Definition, statistic: Reduction, types: dict[str, TensorType], target: Target, policy: Policy
) -> bool:
    """Returns whether a definition is a product that can compute a statistic on its way."""
    if (
        not isinstance(reader, Reduction)
        or reader.combine != "sum"
        or not all(is_static(dim.size) for dim in reader.dims)
    ):
        return False
    if [dim.size for dim in reader.reduction_dims] != [dim.size for dim in statistic.reduction_dims]:
        return False
    if not {node.source for node in statistic.bodies[0].loads} <= {n.source for b in reader.bodies for n in b.loads}:
        return False
    positions = _positions(reader, statistic)
    if len(positions) != 1 or any(dim in reader.reduction_dims for index in positions[0] for dim in index.dims):
        return False
    node = make_node(0, reader, types, {})
    if node.grid < target.processors * policy.programs_per_processor:
        return False  # such a reduction may be split
    widths = {name: tensor.dtype.bytes for name, tensor in types.items()}
    # A matrix that is read once for each of the vectors, or more often: then a program waits for memory.
    return any(touch.bytes * policy.recomputed_points >= node.points * widths[touch.name] for touch in node.loads)


def _positions(reader: Reduction, statistic: Reduction) -> list[tuple[Index, ...]]:
    """Returns the distinct indices at which a statistic is read."""
    name = statistic.results[0].name
    found = {n.indices: None for body in reader.bodies for n in body.loads if n.source == name and not indirects(n)}
    return list(found)


def _with_statistics(
    reduction: Reduction, statistics: list[Reduction], types: dict[str, TensorType]
) -> Iterator[Reduction]:
    """Yields the statistics that a product needs, over its points, and the product that reads those."""
    here = [dim.index for dim in reduction.dims]
    mine: dict[str, Scalar] = {}
    for statistic in statistics:
        (position,) = _positions(reduction, statistic)
        mapping = dict(zip(statistic.dims, position, strict=True))
        mapping |= {old: new.index for old, new in zip(statistic.reduction_dims, reduction.reduction_dims, strict=True)}
        shape = tuple(dim.size for dim in reduction.dims)
        value = partial_value(statistic.results[0], f"of_{reduction.results[0].name}", shape, types)
        body = substitute_dims(statistic.bodies[0], mapping)
        yield Reduction(
            (value,), statistic.combine, reduction.dims, reduction.reduction_dims, (body,), statistic.origins
        )
        mine[statistic.results[0].name] = load(value.name, here, value.type.dtype)

    memo: dict[Scalar, Scalar] = {}
    bodies = tuple(
        rewrite(body, lambda node: mine.get(node.source, node) if node.op == "load" else node, memo)
        for body in reduction.bodies
    )
    yield replace(reduction, bodies=bodies)
