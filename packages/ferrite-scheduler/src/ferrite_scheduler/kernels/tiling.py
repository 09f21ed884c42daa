"""Tiling: which dims of a kernel are joined, in which order they lie, and on which axis of the kernel.

Pure arithmetic on coefficients of accesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

from ferrite_scheduler.analysis.generic_sizes import hinted, typical
from ferrite_scheduler.model.policy import DEFAULT_POLICY, Policy

from .iteration_space import Base

ROW_MULTIPLE = 8
"""Rows of another multiple of elements start unaligned, and flat kernels read them in wider accesses."""


@dataclass(frozen=True, slots=True)
class Stride:
    """How one memory access of a kernel walks over the bases: a coefficient each, and its bytes.

    ``distinct`` are those of them that other accesses do not have: the points of a window share theirs. Over the bases
    ``scattered`` it walks as data or arithmetic have it, as what is resampled does.
    """

    coefficients: tuple[int, ...]
    bytes: int
    distinct: int
    is_store: bool
    scattered: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring bases joined into one kernel dim: their positions, outermost first, and the extent of the whole."""

    bases: tuple[int, ...]
    extent: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Groups per axis, outermost first in each."""

    y: tuple[Group, ...]
    x: tuple[Group, ...]
    r: tuple[Group, ...]
    z: tuple[Group, ...] = ()


def join_bases(
    bases: Sequence[Base],
    reduction: int,
    vectors: Sequence[tuple[int, ...]],
    rigid: frozenset[int],
    inner: int = 0,
    strides: Sequence[Stride] = (),
    policy: Policy = DEFAULT_POLICY,
) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Returns the groups of grid and of reduction bases; bases join where every vector walks over them as over one dim.

    Those inside a block of the reduction axis, of ``inner`` points, join only each other. The group that the heaviest
    of ``strides`` is contiguous along is made long enough for a tile if only light ones do not walk over it as over one
    dim: these divide it.
    """
    grid = [position for position, base in enumerate(bases) if base.step >= reduction]
    inside = [position for position, base in enumerate(bases) if inner <= base.step < reduction]
    blocks = [position for position, base in enumerate(bases) if base.step < min(inner, reduction)]
    reduced = (*_join(inside, bases, vectors, rigid), *_join(blocks, bases, vectors, rigid))
    groups = _join(grid, bases, vectors, rigid)
    longer = _lengthened(groups, vectors, rigid, strides, policy)
    # What is neither reduced nor cut into rows is walked as one flat position, by all accesses alike.
    return longer if reduced or len(longer) > 1 else groups, reduced


def apart(groups: Iterable[Group], roles: Sequence[frozenset[int]], bases: Sequence[Base]) -> tuple[Group, ...]:
    """Returns groups none of which holds bases of one role beside others: these lie on different axes."""
    found: list[Group] = []
    for group in groups:
        runs = groupby(group.bases, key=lambda base: tuple(base in role for role in roles))
        parts = [tuple(run) for _, run in runs]
        if len(parts) == 1:
            found.append(group)
        else:
            found += [Group(part, prod(bases[base].extent for base in part)) for part in parts]
    return tuple(found)


def _lengthened(
    groups: tuple[Group, ...],
    vectors: Sequence[tuple[int, ...]],
    rigid: frozenset[int],
    strides: Sequence[Stride],
    policy: Policy,
) -> tuple[Group, ...]:
    """Returns grid groups, the contiguous one joined with what is around it for all but light accesses, if it is short.

    As the channels of a group of channels-last images are: nothing but what is the same for all of them tells where a
    group begins. Groups stay as they are where that makes no row that fills tiles.
    """
    guide = _guide(strides)
    if guide is None:
        return groups
    light = {stride.coefficients for stride in strides if stride.bytes * policy.divided_share <= guide.bytes}
    light -= {stride.coefficients for stride in strides if stride.bytes * policy.divided_share > guide.bytes}
    heavy = [vector for vector in vectors if vector not in light]
    columns = _columns((position for group in groups for position in group.bases), heavy)
    others = list(groups)
    row = next((g for g in groups if guide.coefficients[g.bases[-1]] == 1), None)
    if row is None or row.extent >= policy.row_minimum:
        return groups
    others.remove(row)
    while row.extent < policy.row_minimum:
        outer = next((g for g in others if _continues(g, row, columns, rigid)), None)
        if outer is None:
            return groups
        others.remove(outer)
        row = Group(outer.bases + row.bases, outer.extent * row.extent)
    return (*others, row) if fills_tiles(typical(row.extent, policy), policy) else groups


def _guide(strides: Sequence[Stride]) -> Stride | None:
    """Returns the heaviest access, a store sooner than a load."""
    return max(strides, key=lambda stride: (stride.bytes, stride.is_store), default=None)


def _columns(positions: Iterable[int], vectors: Sequence[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Returns the coefficients of each base in all vectors."""
    return {position: tuple(vector[position] for vector in vectors) for position in positions}


def _join(
    positions: list[int], bases: Sequence[Base], vectors: Sequence[tuple[int, ...]], rigid: frozenset[int]
) -> tuple[Group, ...]:
    columns = _columns(positions, vectors)
    groups = [Group((position,), bases[position].extent) for position in positions]
    joined = True
    while joined and len(groups) > 1:
        joined = False
        for inner in groups:
            outer = next((g for g in groups if g is not inner and _continues(g, inner, columns, rigid)), None)
            if outer is not None:
                whole = Group(outer.bases + inner.bases, outer.extent * inner.extent)
                groups[groups.index(outer)] = whole
                groups.remove(inner)
                joined = True
                break
    return tuple(groups)


def _continues(outer: Group, inner: Group, columns: dict[int, tuple[int, ...]], rigid: frozenset[int]) -> bool:
    high, low = outer.bases[-1], inner.bases[-1]
    if not rigid.isdisjoint(outer.bases) or not rigid.isdisjoint(inner.bases):
        return False
    return all(a == b * inner.extent for a, b in zip(columns[high], columns[low], strict=True))


def place_groups(
    grid: tuple[Group, ...],
    inside: tuple[Group, ...],
    strides: Sequence[Stride],
    policy: Policy,
    rows: frozenset[int] = frozenset(),
    block: frozenset[int] = frozenset(),
    batch: frozenset[int] = frozenset(),
) -> Tiles:
    """Returns the groups put on axes; unit-stride traffic decides what is innermost, and whether to tile in two.

    Groups of the bases ``rows``, those of a contraction, lie on ``y``, those of its ``batch`` on ``z``, all others of
    the grid on ``x``; on each axis what its factors walk along comes last, since blocks of them are loaded for each
    tile, and a result is stored once. Those of the bases ``block`` of a reduction axis that is cut into blocks come
    last, however they lie in memory.
    """
    guide = _guide(strides)
    store = max((s for s in strides if s.is_store), key=lambda stride: stride.bytes, default=guide)
    ordered = sorted(grid, key=lambda group: -_walk(store, group))
    ordered = sorted(ordered, key=lambda group: -_walk(guide, group)) if store is None or inside else ordered
    reduction_groups = tuple(sorted(inside, key=lambda group: (block.issuperset(group.bases), -_walk(guide, group))))
    if not ordered:
        return Tiles((), (), reduction_groups)
    if rows or batch:
        factors = [stride for stride in strides if any(stride.coefficients[group.bases[-1]] for group in inside)]
        ordered.sort(key=lambda group: _unit_bytes(group, factors))
        outer = tuple(group for group in ordered if rows.issuperset(group.bases))
        whole = tuple(group for group in ordered if batch.issuperset(group.bases))
        columns = tuple(group for group in ordered if group not in outer and group not in whole)
        steps = sorted(reduction_groups, key=lambda group: (block.issuperset(group.bases), _unit_bytes(group, factors)))
        return Tiles(outer, columns, tuple(steps), whole)
    weights = [_unit_bytes(group, strides) for group in ordered]
    # They lie as the main store walks, its innermost one last: that one wins if it carries about as much as any.
    best = max(i for i, weight in enumerate(weights) if weight >= policy.tiled_near_share * max(weights))
    if _walk(store, ordered[-1]) == 1 and typical(ordered[-1].extent, policy) <= policy.narrow_inner:
        best = len(ordered) - 1
    inner = ordered[best]
    if weights[best] == 0:
        return Tiles((), tuple(ordered), reduction_groups)
    others = [group for group in ordered if group is not inner]
    if inside:
        row_traffic = max((_unit_bytes(group, strides) for group in inside), default=0)
        # Columns of which fewer lie beside each other than a tile is wide share it with the next ones.
        is_narrow = typical(inner.extent, policy) < policy.row_minimum
        if row_traffic >= weights[best] or policy.max_tiled_axes < 2 or not others or is_narrow:
            return Tiles((), (*others, inner), reduction_groups)
        return Tiles(tuple(others), (inner,), reduction_groups)
    second = _second_axis(inner, others, strides, policy)
    if policy.max_tiled_axes < 2:
        return Tiles((), (*others, inner), reduction_groups)
    if second is None:
        return (
            Tiles(tuple(others), (inner,), ()) if _has_rows(inner, others, policy) else Tiles((), (*others, inner), ())
        )
    return Tiles((*(group for group in others if group is not second), second), (inner,), reduction_groups)


def _second_axis(inner: Group, others: list[Group], strides: Sequence[Stride], policy: Policy) -> Group | None:
    """Returns the group that accesses which also depend on ``inner`` walk along, if that is enough traffic."""
    strides = [replace(stride, bytes=stride.distinct) for stride in strides]
    innermost = inner.bases[-1]
    crossing = [s for s in strides if s.coefficients[innermost] not in (0, 1) or innermost in s.scattered]
    found = max(others, key=lambda group: _unit_bytes(group, crossing), default=None)
    least = 2 if typical(inner.extent, policy) >= policy.tiled_long else policy.tiled_minimum
    if found is None or typical(found.extent, policy) < least or typical(inner.extent, policy) < policy.tiled_minimum:
        return None
    share, total = _unit_bytes(found, crossing), sum(_unit_bytes(group, strides) for group in (inner, *others))
    return found if share > 0 and share >= policy.tiled_share * total else None


def _has_rows(inner: Group, others: list[Group], policy: Policy) -> bool:
    """Returns whether a pointwise kernel whose dims do not join gets rows on one axis and columns on the other.

    What depends on the row only, or on the column only, is then loaded and computed once for a tile instead of for each
    point, and no point divides its flat position.
    """
    rows = typical(prod(group.extent for group in others), policy)
    return rows >= policy.rows_minimum and fills_tiles(typical(inner.extent, policy), policy)


def fills_tiles(length: int, policy: Policy) -> bool:
    """Returns whether rows of so many elements are long enough for tiles, and leave few lanes of a tile idle."""
    if length < policy.row_minimum or length % ROW_MULTIPLE:
        return False
    blocks = [1 << power for power in range(policy.row_minimum.bit_length() - 1, 11)]
    return any(-(-length // block) * block <= length * policy.row_waste for block in blocks)


def _walk(stride: Stride | None, group: Group) -> int:
    return 0 if stride is None else hinted(abs(stride.coefficients[group.bases[-1]]))


def _unit_bytes(group: Group, strides: Sequence[Stride]) -> int:
    return sum(stride.bytes for stride in strides if abs(stride.coefficients[group.bases[-1]]) == 1)
