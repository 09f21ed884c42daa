"""Contractions of 8-bit floats as calls of torch's library, which scales their sums and adds a bias as it stores them.

    p = contract x[m, k] * w[n, k]                                   q = extern aten._scaled_mm.default(x, w.T, a, b, …)
    y = loop cast.bf16(relu(mul(mul(p[m, n], a[m, 0]), b[0, n])))    y = loop cast.bf16(relu(cast.f32(q[m, n])))

The library takes a scale for each row and each column, or one number for all rows and one for all columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ferrite_ir.language.dtypes import BF16, F16, F32, DType
from ferrite_ir.language.graph import (
    Contract,
    Definition,
    Graph,
    Loop,
    Tag,
    TensorType,
    Value,
    View,
    loads_of,
    names_read,
    whole,
)
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_scheduler.model.contractions import EIGHT_BIT_FLOATS

from .calls import called_instead

CALL = "aten._scaled_mm.default"
UNIT = Dim("u", 1)


@dataclass(frozen=True, slots=True)
class Scaled:
    """What the only reader of a product does to its sums that the library does, too.

    Attributes:
        reader: its position among the definitions.
        outer: the value that the call computes, in f32.
        product: the load of the product in it.
        scales: of a row, and of a column.
        bias: the name of the vector that is added to each row; "" for none.
        stored: the type that the library rounds to.
    """

    reader: int
    outer: Scalar
    product: Scalar
    scales: tuple[Scalar, Scalar]
    bias: str
    stored: DType


def scaled_product(graph: Graph, name: str) -> Scaled | None:
    """Returns the scales of a product that a call can have, and what they are of; None for any other."""
    contract = graph.definer[name]
    readers = [position for position, d in enumerate(graph.definitions) if name in names_read(d)]
    if not isinstance(contract, Contract) or len(contract.dims) != 2 or len(readers) != 1 or name in graph.output_names:
        return None
    reader = graph.definitions[readers[0]]
    if not isinstance(reader, Loop) or len(reader.bodies) != 1 or len(reader.dims) != 2:
        return None
    (product, *more) = [found for found in loads_of(reader) if found.source == name]
    row, column = reader.dims
    if more or product.indices != (row.index, column.index):
        return None
    parents = _parents(reader)
    first = _only(parents, product, "mul")
    second = _only(parents, first[0], "mul") if first else None
    if first is None or second is None:
        return None
    scales = (first[1], second[1]) if first[1].dims <= {row} else (second[1], first[1])
    stored = _stored(reader.results[0].type.dtype, is_whole=not any(scale.dims for scale in scales))
    if not (scales[0].dims <= {row} and scales[1].dims <= {column}) or stored is None:
        return None
    outer, bias = second[0], ""
    added = _only(parents, outer, "add")
    if added is not None and stored is BF16:
        bias = _vector(added[1], column, graph)
        outer = added[0] if bias else outer
    return Scaled(readers[0], outer, product, scales, bias, stored)


def _stored(wanted: DType, *, is_whole: bool) -> DType | None:
    """Returns the type that the library rounds a product to, None where it does not have the one that is wanted."""
    if wanted in EIGHT_BIT_FLOATS or wanted is BF16:
        return BF16
    return wanted if is_whole and wanted in (F16, F32) else None


def _parents(reader: Loop) -> Mapping[Scalar, list[Scalar]]:
    parents: dict[Scalar, list[Scalar]] = {}
    for node in postorder(reader.bodies):
        for part in node.args:
            if isinstance(part, Scalar):
                parents.setdefault(part, []).append(node)
    return parents


def _only(parents: Mapping[Scalar, list[Scalar]], node: Scalar, op: str) -> tuple[Scalar, Scalar] | None:
    """Returns the only operation that reads a node, if it is this one, and its other operand."""
    found = parents.get(node, [])
    if len(found) != 1 or found[0].op != op:
        return None
    others = [part for part in found[0].args if part is not node]
    return (found[0], others[0]) if len(others) == 1 else None


def _vector(term: Scalar, column: Dim, graph: Graph) -> str:
    """Returns the vector of which a term is the element of its column; "" if it is none that the library adds."""
    if term.op != "cast" or term.args[0].op != "load" or term.args[0].indices != (column.index,):
        return ""
    vector = graph.values[term.args[0].source].type
    fits = vector.dtype is BF16 and vector.shape == (column.size,) and vector.strides == (1,)
    return str(term.args[0].source) if fits else ""


def scaled_call(contract: Contract, graph: Graph, scaled: Scaled, left: View, right: View) -> Iterator[Definition]:
    """Yields what makes the scales, the call, and the result of a contraction as its reader goes on with it."""
    made, reader = contract.result, graph.definitions[scaled.reader]
    assert isinstance(reader, Loop), "a loop reads the product"
    row, column = reader.dims
    is_whole = not any(scale.dims for scale in scaled.scales)
    views = []
    for scale, dims, side in zip(scaled.scales, ((row, UNIT), (UNIT, column)), "ab", strict=True):
        points = () if is_whole else dims
        view = _view_of(scale, points, graph)
        if view is None:
            shape = tuple(dim.size for dim in points)
            value = Value(f"{made.name}_scale_{side}", TensorType(F32, shape, device=made.type.device))
            yield Loop((value,), points, (scale,), contract.origins)
            view = whole(value)
        views.append(view)
    vector = whole(graph.values[scaled.bias]) if scaled.bias else None
    kwargs = (("out_dtype", Tag("dtype", scaled.stored.name)), ("use_fast_accum", contract.fast))
    yield from called_instead(contract, CALL, (left, right, *views, vector), scaled.stored, kwargs)


def _view_of(scale: Scalar, points: tuple[Dim, ...], graph: Graph) -> View | None:
    """Returns the value that scales lie in as they are; None where they are computed, or lie otherwise."""
    if scale.op != "load":
        return None
    value = graph.values[scale.source]
    shape = tuple(dim.size for dim in points)
    fits = value.type.shape == shape if points else all(size == 1 for size in value.type.shape)
    return whole(value) if fits else None
