"""Split-K (a term of CUTLASS): products of few tiles and long sums are computed in parts, added up in a fixed order.

    p = contract [m, n | k] x[m, k] * w[n, k]       p_part = contract [s, m, n | r] x[m, s*R + r] * w[n, s*R + r]
                                                    p      = reduce sum [m, n | s] p_part[s, m, n]

The parts of a sum are a batch, so their kernel has as many times more programs; what reads the product is fused with
the second stage. Nothing is added in the order of arrival: results repeat bit by bit.

Parts of whole blocks that end at the borders of the dims of a sum need no masks. A sum over the positions of images
(64 of 56 by 56) has few such parts, or none: where multiprocessors would stay idle with these, parts of whole blocks
end where they may, and the last one is filled with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.graph import Contract, Definition, Graph, Reduction, TensorType
from ferrite_ir.language.index import Dim, constant, delinearize
from ferrite_ir.language.scalar import Scalar, apply, const, index_value, load, substitute_dims
from ferrite_ir.language.sizes import is_static, product
from ferrite_scheduler.model.annotations import PartialContract
from ferrite_scheduler.model.contractions import part_products
from ferrite_scheduler.model.intermediates import fresh_dim, partial_value
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target
from ferrite_scheduler.model.tiled_contractions import is_tiled, roles_of

from .reductions.fused_columns import cuts_evenly

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


@dataclass(frozen=True, slots=True)
class Parts:
    """How a sum is cut: in ``count`` parts of ``length`` points, the last of which may have fewer."""

    count: int
    length: int


def _staged(
    definition: Definition, types: dict[str, TensorType], target: Target, policy: Policy
) -> Iterator[Definition]:
    """Yields a definition, or both stages of a product that is to be split."""
    parts = None
    if isinstance(definition, Contract) and is_tiled(definition, policy):
        parts = parts_of(definition, target, policy)
    if not isinstance(definition, Contract) or parts is None:
        yield definition
        return
    dims, reduced, result = definition.dims, definition.reduction_dims, definition.result
    wide = [dim for dim in reduced if dim.size != 1]
    extents = tuple(dim.size for dim in wide)
    taken = (*dims, *reduced)
    part, point = fresh_dim("s", parts.count, taken), fresh_dim("r", parts.length, taken)
    place = part.index * parts.length + point.index
    places = dict.fromkeys(reduced, constant(0)) | dict(zip(wide, delinearize(place, extents), strict=True))
    left, right = (substitute_dims(side, places) for side in (definition.left, definition.right))
    points = product(extents)
    if points != parts.count * parts.length:
        is_there = apply("lt", index_value(place, I64), const(points, I64))
        left, right = (_guarded(is_there, side) for side in (left, right))
    partial = partial_value(result, "part", (parts.count, *result.type.shape), types)
    yield PartialContract(partial, (part, *dims), (point,), left, right, definition.origins, definition.fast)
    sums = load(partial.name, [dim.index for dim in (part, *dims)], partial.type.dtype)
    yield Reduction((result,), "sum", dims, (part,), (sums,), definition.origins)


def _guarded(condition: Scalar, side: Scalar) -> Scalar:
    """Returns a factor where a condition holds, and zero elsewhere, nothing of it loaded there."""
    zero = const(0, side.dtype)
    if side.op == "masked" and side.args[2] == zero:
        return apply("masked", apply("bitand", condition, side.args[0]), side.args[1], zero)
    return apply("masked", condition, side, zero)


def parts_of(contract: Contract, target: Target, policy: Policy) -> Parts | None:
    """Returns the parts in which the sums of a product are computed fastest, about.

    None where whole ones are no slower. All parts fit in the cache.
    """
    dims = (*contract.dims, *contract.reduction_dims)
    if not all(is_static(dim.size) for dim in dims) or 0 in (dim.size for dim in dims):
        return None
    if contract.segments is not None:
        return None  # groups have tiles of their own already
    extents = tuple(int(dim.size) for dim in contract.reduction_dims)
    points, sums = math.prod(extents), _count(contract.dims) * SUM_BYTES
    most = min(policy.product_parts, target.l2_bytes // sums)
    all_parts = [parts for parts in _cuts(points, most, policy) if parts.length >= policy.product_part_points]
    exact = [parts for parts in all_parts if points % parts.length == 0 and cuts_evenly(parts.length, extents)]
    if part_products(contract) > 1:
        all_parts = exact  # where points may be missing a factor is chosen, and no sum of two parts any more
    whole = _seconds(contract, Parts(1, points), target)
    for choices in (exact, all_parts):
        best = min(choices, key=lambda parts: _seconds(contract, parts, target).seconds, default=None)
        if best is None:
            continue
        estimate = _seconds(contract, best, target)
        if choices is exact and estimate.programs < target.processors and len(all_parts) > len(exact):
            continue  # others may leave fewer multiprocessors idle
        return best if estimate.seconds * policy.product_parts_gain <= whole.seconds else None
    return None


def _cuts(points: int, most: int, policy: Policy) -> Iterator[Parts]:
    """Yields ways to cut a sum in at most so many parts of whole blocks, the last of which may be shorter."""
    lengths = (
        -(-points // (count * policy.product_part_step)) * policy.product_part_step for count in range(2, most + 1)
    )
    for length in dict.fromkeys(lengths):
        if length < points:
            yield Parts(-(-points // length), length)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a product takes, and how many programs compute it."""

    seconds: float
    programs: int


def _seconds(contract: Contract, parts: Parts, target: Target) -> Estimate:
    """Returns about what a product takes in such parts, their sum included, in the tiles that are best for it.

    Multiplications and loads hide each other; multiprocessors that have no program do neither. Several small programs
    load at once on a multiprocessor, but do not multiply any faster.
    """
    roles = roles_of(contract)
    batch, rows, columns = (_count(dims) for dims in (roles.batch, roles.rows, roles.columns))
    points = parts.count * parts.length
    left, right = (_bytes(side) for side in (contract.left, contract.right))
    factors = batch * points * (rows * left + columns * right)
    fastest = Estimate(math.inf, 0)
    for tile_rows, tile_columns, share in target.tile_rates:
        tiles = batch * -(-rows // tile_rows) * -(-columns // tile_columns)
        programs = tiles * parts.count
        rounds = -(-programs // target.processors)
        operations = 2.0 * tiles * tile_rows * tile_columns * points * part_products(contract)
        rate = target.tensor_operations * target.processors * share * HALF / contract.left.dtype.bytes
        multiplied = operations / rate
        strips = tiles * points * (tile_rows * left + tile_columns * right)
        moved = max(factors, strips / target.cache_rate) / target.bandwidth
        multiplied *= rounds * target.processors / programs
        moved *= max(1.0, target.processors / programs)
        estimate = Estimate(max(multiplied, moved), programs)
        fastest = min(fastest, estimate, key=lambda each: each.seconds)
    if parts.count == 1:
        return fastest
    stored_and_read = 2 * parts.count * batch * rows * columns * SUM_BYTES
    return replace(fastest, seconds=fastest.seconds + target.launch_seconds + stored_and_read / target.bandwidth)


def _count(dims: Iterable[Dim]) -> int:
    return math.prod(int(dim.size) for dim in dims)


def _bytes(side: Scalar) -> int:
    """Returns the bytes that an element of a factor is loaded with."""
    return max((each.dtype.bytes for each in side.loads), default=0)
