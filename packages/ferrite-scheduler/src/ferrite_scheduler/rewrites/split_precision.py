"""Split precision (bf16x3): rows of float32 are multiplied with weights of eight bits in three bfloat16 parts.

Source: Henry, Tang, Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision
computations" (2019), of which one factor alone is split here.

Weights of eight bits are exact in bfloat16, and so is each of three parts of a float32 number: its first eight bits,
the next eight, and the rest. So every product of a weight and a part on tensor cores is exact, and sums are carried in
f32. Nothing is converted to f32, which is slow, and no number is cut for each column that it is multiplied with: the
parts of a few rows are a small tensor in memory.

Tensor cores multiply sixteen rows at once, which the parts of up to four rows are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from ferrite_ir.language.dtypes import BF16, F32, I32, I64
from ferrite_ir.language.graph import Contract, Definition, Graph, Loop, TensorType
from ferrite_ir.language.index import Dim, constant
from ferrite_ir.language.scalar import Scalar, apply, bitcast, cast, const, index_value, load
from ferrite_ir.language.sizes import product
from ferrite_ir.passes.storage import Storage, trace_storage
from ferrite_scheduler.model.contractions import CODES, CUT_ROWS, PARTS, row_dims
from ferrite_scheduler.model.intermediates import fresh_dim, new_value
from ferrite_scheduler.model.policy import Policy

UPPER_HALF = -(1 << 16)
"""The bits of a float32 number that are those of a bfloat16 one."""

Key: TypeAlias = tuple[Scalar, tuple[int, ...]]
"""Rows, and how often what they load has been changed: their parts are made once for each."""


def cut_rows(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with the rows of such products as sums of three parts; the same object without any."""
    if not policy.cut_rows or not any(_is_to_be_cut(definition) for definition in graph.definitions):
        return graph
    types, storage = {name: value.type for name, value in graph.values.items()}, trace_storage(graph)
    cut: dict[Key, Scalar] = {}
    definitions = tuple(
        new for position, old in enumerate(graph.definitions) for new in _with_parts(old, types, cut, storage, position)
    )
    return replace(graph, definitions=definitions)


def _is_to_be_cut(definition: Definition) -> bool:
    if not isinstance(definition, Contract) or definition.left.dtype is not F32 or definition.segments is not None:
        return False
    right, rows = definition.right, product(dim.size for dim in row_dims(definition))
    return right.op == "cast" and right.args[0].dtype in CODES and bool(rows <= CUT_ROWS)


def _with_parts(
    definition: Definition, types: dict[str, TensorType], cut: dict[Key, Scalar], storage: Storage, position: int
) -> Iterator[Definition]:
    """Yields a definition, or what makes the parts of its rows, unless ``cut`` has them, and a product of these."""
    if not isinstance(definition, Contract) or not _is_to_be_cut(definition):
        yield definition
        return
    left, result = definition.left, definition.result
    key = left, storage.versions((left,), position)
    if key not in cut:
        points = (*row_dims(definition), *definition.reduction_dims)
        which = fresh_dim("p", PARTS, points)
        dims = (which, *points)
        kind = TensorType(BF16, tuple(dim.size for dim in dims), device=result.type.device)
        parts = new_value(f"{result.name}_parts", kind, types)
        yield Loop((parts,), dims, (_chosen_part(left, which),), definition.origins)
        positions = [dim.index for dim in points]
        loads = (load(parts.name, (constant(part), *positions), BF16) for part in range(PARTS))
        high, middle, low = (cast(part, F32) for part in loads)
        cut[key] = apply("add", high, apply("add", middle, low))
    yield replace(definition, left=cut[key])


def _chosen_part(number: Scalar, which: Dim) -> Scalar:
    """Returns the part of a number in f32 that a dim says; an infinity is its own first part, and nothing else."""
    high = _upper(number)
    is_infinite = apply("eq", apply("abs", number), const(float("inf"), F32))
    rest = apply("where", is_infinite, const(0.0, F32), apply("sub", number, high))
    middle = _upper(rest)
    first, second = (apply("eq", index_value(which.index, I64), const(part, I64)) for part in (0, 1))
    lower = apply("where", second, middle, apply("sub", rest, middle))
    return cast(apply("where", first, high, lower), BF16)


def _upper(number: Scalar) -> Scalar:
    """Returns a number without the bits that bfloat16 has no room for."""
    return bitcast(apply("bitand", bitcast(number, I32), const(UPPER_HALF, I32)), F32)
