"""Split factors (tf32x3): products of float32 are computed by tensor cores, without rounding, in parts of TF32.

Source: Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical
peak performance" (2022). The first eleven bits of a number are one part, what is left of it another one; of the four
products of the parts of two numbers three are added, and the fourth is smaller than what float32 rounds.

Parts of the left factor are made in registers. The right one comes from shared memory, which tensor cores read
themselves: they cut off the bits beyond TF32, so that the number as it lies is its own first part, and what is left
lies beside it in memory. Both lie with the points of the sum one behind the other, as tensor cores want them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from ferrite_ir.language.dtypes import F32, I32
from ferrite_ir.language.graph import Contract, Definition, Graph, Loop, TensorType
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar, apply, bitcast, const, load
from ferrite_ir.passes.storage import trace_storage
from ferrite_scheduler.analysis.dim_orders import plain_dims
from ferrite_scheduler.model.contractions import TF32_BITS, right_parts
from ferrite_scheduler.model.intermediates import new_value
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.tiled_contractions import is_in_parts, is_tiled

HALF_OF_A_BIT = 1 << 12
"""What is added to the bits of a float32 number to round it to the nearest TF32."""

Key: TypeAlias = tuple[Scalar, tuple[Dim, ...], tuple[int, ...]]
"""A right factor, its dims, and how often what it loads has been changed: its parts are made once for each."""


def split_factors(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with right factors of such products as sums of two parts; the same object without any."""
    if not any(_is_to_be_split(definition, policy) for definition in graph.definitions):
        return graph
    types = {name: value.type for name, value in graph.values.items()}
    storage, split = trace_storage(graph), dict[Key, Scalar]()
    definitions: list[Definition] = []
    for position, definition in enumerate(graph.definitions):
        if isinstance(definition, Contract) and _is_to_be_split(definition, policy):
            right = definition.right
            dims = tuple(dim for dim in (*definition.dims, *definition.reduction_dims) if dim in right.dims)
            key = right, dims, storage.versions((right,), position)
            if key not in split:
                parts, split[key] = _parts_of(definition, dims, types)
                types |= {value.name: value.type for value in parts.results}
                definitions.append(parts)
            definitions.append(replace(definition, right=split[key]))
        else:
            definitions.append(definition)
    return replace(graph, definitions=tuple(definitions))


def _is_to_be_split(definition: Definition, policy: Policy) -> bool:
    return (
        isinstance(definition, Contract)
        and is_tiled(definition, policy)
        and is_in_parts(definition, policy)
        and right_parts(definition) is None
    )


def _parts_of(contract: Contract, dims: tuple[Dim, ...], types: dict[str, TensorType]) -> tuple[Loop, Scalar]:
    """Returns the loop over ``dims`` that makes the parts of a right factor, and their sum."""
    right, result = contract.right, contract.result
    kind = TensorType(F32, tuple(dim.size for dim in dims), device=result.type.device)
    low = new_value(f"{result.name}_low", kind, types)
    bodies, results, first = [_rest(right)], [low], right
    if not _lies_along_sums(contract, types):
        high = new_value(f"{result.name}_high", kind, types | {low.name: kind})
        bodies, results = [_kept(right), *bodies], [high, low]
        first = load(high.name, [dim.index for dim in dims], F32)
    second = load(low.name, [dim.index for dim in dims], F32)
    return Loop(tuple(results), dims, tuple(bodies), contract.origins), apply("add", _kept(first), second)


def _lies_along_sums(contract: Contract, types: dict[str, TensorType]) -> bool:
    """Returns whether the points of a sum lie one behind the other in the right factor, which is a tensor in memory."""
    right, (*_, point) = contract.right, contract.reduction_dims
    if right.op != "load" or point not in plain_dims(right):
        return False
    return bool(types[right.source].strides[plain_dims(right).index(point)] == 1)


def _kept(number: Scalar) -> Scalar:
    """Returns a number without the bits that TF32 has no room for."""
    return bitcast(apply("bitand", bitcast(number, I32), const(TF32_BITS, I32)), F32)


def _rest(number: Scalar) -> Scalar:
    """Returns what is left of a number, rounded to the nearest TF32; nothing of an infinity."""
    rest = apply("sub", number, _kept(number))
    rounded = _kept(bitcast(apply("add", bitcast(rest, I32), const(HALF_OF_A_BIT, I32)), F32))
    is_infinite = apply("eq", apply("abs", number), const(float("inf"), F32))
    return apply("where", is_infinite, const(0.0, F32), rounded)
