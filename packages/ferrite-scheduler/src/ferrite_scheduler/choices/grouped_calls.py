"""Products in groups (`ferrite_ir.Segments`) as calls of torch's library, and groups to measure either way with.

    p = contract [m, n | k | g] x[m, k] * w[g, k, n] segments m as g until e[g]      aten._grouped_mm(x, w, e)
    p = contract [g, m, n | k] x[m, k] * y[k, n] segments k as g until e[g]          aten._grouped_mm(x, y, e)

The library takes factors whose rows, or columns, begin at multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ferrite_ir.language.dtypes import F32, I32
from ferrite_ir.language.graph import (
    Contract,
    Definition,
    Extern,
    Graph,
    Loop,
    Segments,
    TensorType,
    Value,
    View,
    row_major,
)
from ferrite_ir.language.index import Dim, floordiv
from ferrite_ir.language.scalar import Scalar, cast, index_value, load
from ferrite_ir.language.sizes import hint

CALL = "aten._grouped_mm.default"
ALIGNMENT = 16
"""Bytes of which the distances between rows are multiples."""

Operand = Callable[[Scalar, tuple[Dim, ...], str, "Callable[[View], bool]"], View]
"""Gives a factor as a view over some dims, which fits: computed before the call where it does not lie so."""


def grouped_call(contract: Contract, segments: Segments, operand: Operand) -> Iterator[Definition]:
    """Yields the call for a contraction in groups, and its result under the contraction's name."""
    column, (point,) = contract.dims[-1], contract.reduction_dims
    made, dtype = contract.result, contract.left.dtype
    groups = contract.locals
    left = operand(contract.left, _left_dims(contract), f"{made.name}_left", _is_aligned)
    if not contract.has_grouped_rows:
        left = replace(left, shape=left.shape[::-1], strides=left.strides[::-1])
    right = operand(contract.right, (*groups, point, column), f"{made.name}_right", _is_aligned)
    ends = operand(cast(segments.ends, I32), (segments.group,), f"{made.name}_ends", _is_dense)
    kind = TensorType(dtype, made.type.shape, row_major(made.type.shape), made.type.device)
    called = Value(f"{made.name}_product", kind)
    yield Extern((called,), CALL, (left, right, ends), origins=contract.origins)
    element = cast(load(called.name, tuple(dim.index for dim in contract.dims), dtype), F32)
    yield Loop((made,), contract.dims, (element,), contract.origins)


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
