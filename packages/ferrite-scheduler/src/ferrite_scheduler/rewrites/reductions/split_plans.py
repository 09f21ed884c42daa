"""Where a reduction is cut in two stages: into about so many parts that are even, or that vectors begin at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from ferrite_ir.language.graph import Reduction, TensorType
from ferrite_ir.language.sizes import Size, ceildiv, is_static, product
from ferrite_scheduler.analysis.dim_orders import is_in_one_piece
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target

from .fused_columns import cuts_evenly

Domain: TypeAlias = tuple[tuple[Size, ...], tuple[Size, ...]]
"""Extents of the dims and of the reduction dims: reductions over equal ones are cut alike, and share kernels."""
VECTOR = 8
"""Elements that parts of memory that lies in one piece are multiples of: 16 bytes of the narrowest floats."""


def domain_of(reduction: Reduction) -> Domain:
    """Returns the extents of the dims and of the reduction dims."""
    return tuple(dim.size for dim in reduction.dims), tuple(dim.size for dim in reduction.reduction_dims)


@dataclass(frozen=True, slots=True)
class Plan:
    """How reductions over one domain are split.

    Attributes:
        parts: their number.
        chunk: points in each.
        exact: whether there is no rest.
        takes_turns: whether a part has a point of each ``parts`` that follow one another, not ``chunk`` of these.
        left_over: points behind all parts, which the second stage reduces with the states of the parts.
    """

    parts: int
    chunk: Size
    exact: bool
    takes_turns: bool = False
    left_over: int = 0


class Piece(IntEnum):
    """How what reductions over one domain read lies in memory: in order and without gaps, and whether it is there.

    Attributes:
        NONE: in another order, or with gaps.
        ONE: in one piece, but some of it may never be in memory, as kernels that reduce it make it.
        IN_MEMORY: in one piece, inputs and outputs alone.
    """

    NONE = 0
    ONE = 1
    IN_MEMORY = 2


def plan_for(parts: int, reduced: tuple[int, ...], piece: Piece, target: Target, policy: Policy) -> Plan:
    """Returns a plan with about so many parts: even ones, or any of one piece where even ones are not vectors or few.

    What parts leave over is read by the second stage, so it has to be in memory anyway.
    """
    plan, points = even_plan(parts, reduced, policy), product(reduced)
    is_even = plan.exact and plan.chunk % VECTOR == 0 and 4 * plan.parts >= 3 * parts
    if piece is Piece.IN_MEMORY and is_static(points) and not is_even:
        return _plan_of_one_piece(parts, int(points))
    if piece is not Piece.NONE and plan.parts < min(target.processors, parts):
        return even_plan(parts, (points,), policy)
    return plan


def even_plan(parts: int, reduced: tuple[int, ...], policy: Policy) -> Plan:
    """Returns a plan with about so many parts that cuts the reduction dims evenly, or one that leaves a rest.

    Parts that begin inside a row of an inner dim have positions that divisions find, so several dims are cut evenly in
    any case, with up to four times as many parts, and a rest only at the end of all.
    """
    points = product(reduced)
    if not is_static(points):
        return Plan(parts, ceildiv(points, parts), exact=False)
    near = sorted(range(parts, max(2, parts // 2) - 1, -1), key=lambda n: (n & (n - 1) != 0, -n))
    farthest = 2 * parts if len(reduced) == 1 else min(4 * parts, points // policy.split_chunk)
    near += range(parts + 1, min(farthest, policy.split_parts) + 1)
    for count in near:
        if points % count == 0 and cuts_evenly(points // count, reduced):
            return Plan(count, points // count, exact=True)
    fewest = -(-points // policy.split_parts)
    chunk = min(
        (chunk for chunk in _even_chunks(-(-points // parts), reduced) if chunk >= fewest),
        key=lambda chunk: abs(math.log(chunk * parts / points)),
    )
    return Plan(-(-points // chunk), chunk, exact=points % chunk == 0)


def _even_chunks(near: int, reduced: tuple[int, ...]) -> Iterator[int]:
    """Yields how many points a part may have to begin and end with rows, of several rows about ``near`` points."""
    inner = 1
    for size in reversed(reduced[1:]):
        for count in range(1, math.isqrt(size) + 1):
            if size % count == 0:
                yield from (inner * count, inner * (size // count))
        inner *= size
    yield inner * max(1, -(-near // inner))


def _plan_of_one_piece(parts: int, points: int) -> Plan:
    """Returns a plan of about so many parts of tensors that lie in memory in one piece, each of whole vectors.

    Where a part begins costs nothing there, so that only few points are to be left for the second stage.
    """

    def left_over(count: int) -> int:
        return points - count * (points // count // VECTOR * VECTOR)

    count = min(range(parts, parts - parts // 16 - 1, -1), key=left_over)
    chunk = points // count // VECTOR * VECTOR
    return Plan(count, chunk, exact=True, left_over=left_over(count))


def in_vectors(reduction: Reduction, plan: Plan, types: dict[str, TensorType]) -> Plan:
    """Returns a plan whose parts begin at multiples of a vector, where all that is reduced lies in one piece.

    Parts of an odd number of elements, and a mask that ends at one, have each element read by itself. Parts become
    longer, and the last one ends before its end.
    """
    points = product(dim.size for dim in reduction.reduction_dims)
    if plan.takes_turns or not is_static(points) or (plan.chunk % VECTOR == 0 and plan.exact):
        return plan
    if points % VECTOR or not is_in_one_piece(reduction, types, types):
        return plan
    chunk = -(-int(plan.chunk) // VECTOR) * VECTOR
    return Plan(-(-int(points) // chunk), chunk, exact=points % chunk == 0)
