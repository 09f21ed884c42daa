"""Products in groups (`ferrite_ir.Segments`) as calls of torch's library, and groups to measure either way with.

    p = contract [m, n | k | g] x[m, k] * w[g, k, n] segments m as g until e[g]      aten._grouped_mm(x, w, e)
    p = contract [g, m, n | k] x[m, k] * y[k, n] segments k as g until e[g]          aten._grouped_mm(x, y, e)

The library takes factors whose rows, or columns, begin at multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ferrite_ir.language.dtypes import I32
from ferrite_ir.language.graph import (
    Contract,
    Definition,
    Graph,
    Loop,
    Segments,
    View,
)
from ferrite_ir.language.index import Dim, floordiv
from ferrite_ir.language.scalar import Scalar, cast, index_value
from ferrite_ir.language.sizes import hint

from .calls import called_instead, computed, strided_view

CALL = "aten._grouped_mm.default"
ALIGNMENT = 16
"""Bytes of which the distances between rows are multiples."""


def grouped_call(contract: Contract, segments: Segments, graph: Graph) -> list[Definition]:
    """Returns the call for a contraction in groups, with what comes before it and the result it has."""
    column, (point,) = contract.dims[-1], contract.reduction_dims
    name = contract.result.name
    before: list[Definition] = []

    def operand(side: Scalar, dims: tuple[Dim, ...], suffix: str, fits: Callable[[View], bool]) -> View:
        view = strided_view(side, dims, graph)
        return computed(side, dims, f"{name}_{suffix}", before) if view is None or not fits(view) else view

    left = operand(contract.left, _left_dims(contract), "left", _is_aligned)
    if not contract.has_grouped_rows:
        left = replace(left, shape=left.shape[::-1], strides=left.strides[::-1])
    right = operand(contract.right, (*contract.locals, point, column), "right", _is_aligned)
    ends = operand(cast(segments.ends, I32), (segments.group,), "ends", _is_dense)
    return [*before, *called_instead(contract, CALL, (left, right, ends), contract.left.dtype)]


def has_call(contract: Contract) -> bool:
    """Returns whether the library computes a contraction in groups, of rows that it can take and gives."""
    *batch, row, column = contract.dims
    (point,) = contract.reduction_dims
    units, lengths = ALIGNMENT // contract.left.dtype.bytes, (column.size, _left_dims(contract)[-1].size)
    is_plain = len(batch) == 0 if contract.has_grouped_rows else len(batch) == 1
    fits = contract.left.dims <= {row, point} and contract.right.dims <= {*contract.locals, point, column}
    return is_plain and fits and all(isinstance(size, int) and size % units == 0 for size in lengths)


def _left_dims(contract: Contract) -> tuple[Dim, ...]:
    """Returns the dims of the left factor as it lies if it is computed before: what is in groups comes first."""
    row, (point,) = contract.dims[-2], contract.reduction_dims
    return (row, point) if contract.has_grouped_rows else (point, row)


def _is_aligned(view: View) -> bool:
    *batch, outer, inner = view.strides
    units, dense = ALIGNMENT // view.dtype.bytes, 1
    apart = (*batch, outer if inner == dense else inner, view.offset)
    lies = dense in (inner, outer)
    return lies and all(isinstance(step, int) and step % units == 0 for step in apart) and hint(apart[-2]) > 0


def _is_dense(view: View) -> bool:
    return view.strides == (1,)


def with_even_groups(graph: Graph) -> Graph:
    """Returns a graph to measure with: inputs that say where groups end are made, of groups that are equally long.

    What is made up for an input would be no groups at all.
    """
    lengths = {
        contract.segments.ends.source: (contract.segments.of.size, contract.segments.group.size)
        for contract in graph.definitions
        if isinstance(contract, Contract) and contract.segments is not None and contract.segments.ends.op == "load"
    }
    given = [value for value in graph.inputs if value.name in lengths and len(value.type.shape) == 1]
    if not given:
        return graph
    made: list[Definition] = []
    for value in given:
        points, groups = lengths[value.name]
        group = Dim("g", value.type.shape[0])
        end = floordiv((group.index + 1) * points, groups)
        made.append(Loop((value,), (group,), (index_value(end, value.type.dtype),)))
    inputs = tuple(value for value in graph.inputs if value not in given)
    return replace(graph, inputs=inputs, definitions=(*made, *graph.definitions))
