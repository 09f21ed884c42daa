"""Split reductions whose parts are rows: what is reduced whole, of rows that have statistics of their own.

A divergence of two distributions sums, over rows and classes, terms of the largest element and the sum of each row. Cut
into parts of any length the sum is a kernel behind those that make the statistics, and reads all rows again. Cut by
rows its first stage has their axes, and is fused with them::

    m[i] = max x[i, j]                      m[i] = max x[i, j]
    t    = sum f(x[i, j], m[i])             p[i] = sum f(x[i, j], m[i])      t = sum p[i]
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ferrite_ir.language.graph import Graph, Reduction
from ferrite_ir.language.index import Dim
from ferrite_ir.language.sizes import Size, hint, is_static, product


@dataclass(frozen=True, slots=True)
class Rows:
    """What a reduction is cut into: rows of a length."""

    count: int
    length: int


def find_row_partials(graph: Graph, settled: Collection[str]) -> dict[str, Rows]:
    """Returns the rows of reductions, by their first results, that read statistics of rows which they reduce whole."""
    statistics = {
        result.name: product(dim.size for dim in definition.reduction_dims)
        for definition in graph.definitions
        if isinstance(definition, Reduction) and definition.dims
        for result in definition.results
    }
    found: dict[str, Rows] = {}
    for definition in graph.definitions:
        if isinstance(definition, Reduction) and not definition.dims and definition.results[0].name not in settled:
            rows = _rows_of(definition, statistics)
            if rows is not None:
                found[definition.results[0].name] = rows
    return found


def _rows_of(reduction: Reduction, statistics: dict[str, Size]) -> Rows | None:
    """Returns the rows of a reduction: along the axes of the statistics that it reads, which are its first ones."""
    dims = reduction.reduction_dims
    if not all(is_static(dim.size) for dim in dims):
        return None
    read = [
        frozenset(dim for index in load.indices for dim in index.dims)
        for body in reduction.bodies
        for load in body.loads
        if load.source in statistics
    ]
    for leading in range(1, len(dims)):
        length = hint(product(dim.size for dim in dims[leading:]))
        along: frozenset[Dim] = frozenset(dims[:leading])
        if along in read and all(each <= along for each in read):
            sources = (load.source for body in reduction.bodies for load in body.loads if load.source in statistics)
            if all(statistics[source] == length for source in sources):
                return Rows(hint(product(dim.size for dim in dims[:leading])), length)
    return None
