"""Products that other kernels read lie in memory in the type that they may be stored in, as eager mode's do.

    p: f32 = contract stored bf16 …          p: f32  = contract stored bf16 …
    s: f32 = reduce sum [i | j] p[i, j]      q: bf16 = loop cast.bf16(p[i, j])          in the kernel of p
                                             s: f32  = reduce sum [i | j] cast.f32(q[i, j])

A loop that rounds a product is inlined into its only reader, as values have excess precision in registers. If that
reader is in another kernel then, the product would go through memory in f32: twice the bytes for digits that eager mode
does not have. What is in the product's own kernel still reads its sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ferrite_ir.language.graph import Contract, Definition, Graph, Loop, Value, row_major
from ferrite_ir.language.scalar import Scalar, cast, load, replace_loads
from ferrite_ir.passes.rewriting import map_scalars


def store_rounded(graph: Graph, inside: Mapping[str, frozenset[str]]) -> Graph:
    """Returns the graph with roundings of some contractions for the definitions that are in other kernels.

    Args:
        graph: with the contractions.
        inside: by the names of their results the names of what is made in the same kernel.
    """
    narrow: dict[str, Value] = {}
    changed: list[Definition] = []
    for definition in graph.definitions:
        if isinstance(definition, Contract) and definition.result.name in inside:
            rounding = _rounding(definition)
            narrow[definition.result.name] = rounding.results[0]
            changed += (definition, rounding)
            continue
        made = {result.name for result in definition.results if result is not None}
        away = {name: value for name, value in narrow.items() if made.isdisjoint(inside[name])}
        changed.append(_reading(definition, away) if away else definition)
    return replace(graph, definitions=tuple(changed))


def _rounding(contract: Contract) -> Loop:
    sums, dtype = contract.result, contract.stored
    assert dtype is not None, "what may not be rounded is stored as it is"
    kind = replace(sums.type, dtype=dtype, strides=row_major(sums.type.shape))
    point = tuple(dim.index for dim in contract.dims)
    body = cast(load(sums.name, point, sums.type.dtype), dtype)
    return Loop((Value(f"{sums.name}_rounded", kind),), contract.dims, (body,), contract.origins)


def _reading(definition: Definition, narrow: Mapping[str, Value]) -> Definition:
    """Returns a definition that reads these values in place of the sums that they are rounded from."""

    def read(node: Scalar) -> Scalar | None:
        value = narrow.get(node.source)
        return None if value is None else cast(load(value.name, node.indices, value.type.dtype), node.dtype)

    def change(body: Scalar) -> Scalar:
        return replace_loads(body, read)

    return map_scalars(definition, change, lambda index: index)
