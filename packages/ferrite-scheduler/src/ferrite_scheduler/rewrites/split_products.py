"""Split-K: products of few tiles and long sums are computed in parts, which are added up in a fixed order.

    p = contract [m, n | k] x[m, k] * w[n, k]       p_part = contract [s, m, n | r] x[m, s*R + r] * w[n, s*R + r]
                                                    p      = reduce sum [m, n | s] p_part[s, m, n]

The parts of a sum are a batch, so their kernel has as many times more programs; what reads the product is fused with
the second stage. Nothing is added in the order of arrival: results repeat bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ferrite_ir.language.graph import Contract, Definition, Graph, Reduction, TensorType
from ferrite_ir.language.index import Dim, delinearize
from ferrite_ir.language.scalar import Scalar, load, substitute_dims
from ferrite_ir.language.sizes import is_static, product
from ferrite_scheduler.model.annotations import PartialContract
from ferrite_scheduler.model.intermediates import fresh_dim, partial_value
from ferrite_scheduler.model.target import Policy, Target
from ferrite_scheduler.model.tiled_contractions import is_tiled, roles_of

from .fused_columns import cuts_evenly

HALF = 2
"""Bytes of the factors that the rate of a device is of; tensor cores take as many bytes of others."""
SUM_BYTES = 4
"""Of an element of a part: sums are f32."""


def split_products(graph: Graph, target: Target, policy: Policy) -> Graph:
    """Returns the graph with such products in two stages; the same object where nothing changes."""
    if not policy.tile_products or policy.product_parts < 2:
        return graph
    types = {name: value.type for name, value in graph.values.items()}
    definitions = tuple(new for old in graph.definitions for new in _staged(old, types, target, policy))
    return replace(graph, definitions=definitions) if len(definitions) > len(graph.definitions) else graph


def _staged(
    definition: Definition, types: dict[str, TensorType], target: Target, policy: Policy
) -> Iterator[Definition]:
    """Yields a definition, or both stages of a product that is to be split."""
    parts = 1
    if isinstance(definition, Contract) and is_tiled(definition, policy):
        parts = parts_of(definition, target, policy)
    if not isinstance(definition, Contract) or parts == 1:
        yield definition
        return
    dims, reduced, result = definition.dims, definition.reduction_dims, definition.result
    extents = tuple(dim.size for dim in reduced)
    taken = (*dims, *reduced)
    length = int(product(extents)) // parts
    part, point = fresh_dim("s", parts, taken), fresh_dim("r", length, taken)
    places = dict(zip(reduced, delinearize(part.index * length + point.index, extents), strict=True))
    left, right = (substitute_dims(side, places) for side in (definition.left, definition.right))
    partial = partial_value(result, "part", (parts, *result.type.shape), types)
    yield PartialContract(partial, (part, *dims), (point,), left, right, definition.origins, definition.fast)
    sums = load(partial.name, [dim.index for dim in (part, *dims)], partial.type.dtype)
    yield Reduction((result,), "sum", dims, (part,), (sums,), definition.origins)


def parts_of(contract: Contract, target: Target, policy: Policy) -> int:
    """Returns in how many parts the sums of a product are computed fastest, about; 1 where whole ones are no slower.

    All parts fit in the cache.
    """
    dims = (*contract.dims, *contract.reduction_dims)
    if not all(is_static(dim.size) for dim in dims) or 0 in (dim.size for dim in dims):
        return 1
    extents = tuple(int(dim.size) for dim in contract.reduction_dims)
    points, sums = math.prod(extents), _count(contract.dims) * SUM_BYTES
    counts = [
        count
        for count in range(2, min(policy.product_parts, target.l2_bytes // sums) + 1)
        if points % (count * policy.product_part_step) == 0
        and points // count >= policy.product_part_points
        and cuts_evenly(points // count, extents)
    ]
    if not counts:
        return 1
    times = {count: _seconds(contract, count, target) for count in (1, *counts)}
    best = min(counts, key=lambda count: times[count])
    return best if times[best] * policy.product_parts_gain <= times[1] else 1


def _seconds(contract: Contract, parts: int, target: Target) -> float:
    """Returns about what a product takes in so many parts, their sum included, in the tiles that are best for it.

    Multiplications and loads hide each other; multiprocessors that have no program do neither. Several small programs
    load at once on a multiprocessor, but do not multiply any faster.
    """
    roles = roles_of(contract)
    batch, rows, columns = (_count(dims) for dims in (roles.batch, roles.rows, roles.columns))
    points = _count(contract.reduction_dims)
    left, right = (_bytes(side) for side in (contract.left, contract.right))
    factors = batch * points * (rows * left + columns * right)
    fastest = math.inf
    for tile_rows, tile_columns, share in target.tile_rates:
        tiles = batch * -(-rows // tile_rows) * -(-columns // tile_columns)
        programs = tiles * parts
        rounds = -(-programs // target.processors)
        operations = 2.0 * tiles * tile_rows * tile_columns * points
        rate = target.tensor_operations * target.processors * share * HALF / contract.left.dtype.bytes
        multiplied = operations / rate
        strips = tiles * points * (tile_rows * left + tile_columns * right)
        moved = max(factors, strips / target.cache_rate) / target.bandwidth
        multiplied *= rounds * target.processors / programs
        moved *= max(1.0, target.processors / programs)
        fastest = min(fastest, max(multiplied, moved))
    if parts == 1:
        return fastest
    stored_and_read = 2 * parts * batch * rows * columns * SUM_BYTES
    return fastest + target.launch_seconds + stored_and_read / target.bandwidth


def _count(dims: Iterable[Dim]) -> int:
    return math.prod(int(dim.size) for dim in dims)


def _bytes(side: Scalar) -> int:
    """Returns the bytes that an element of a factor is loaded with."""
    return max((each.dtype.bytes for each in side.loads), default=0)
