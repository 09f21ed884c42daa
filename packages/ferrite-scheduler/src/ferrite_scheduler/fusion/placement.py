"""How one cluster can lie in the space of another: candidates from what the two share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ferrite_scheduler.analysis.clusters import Cluster, Placement, placed_members
from ferrite_scheduler.analysis.mixed_radix import (
    Digit,
    Digits,
    compose,
    covers,
    identity,
    inverse,
    is_bijection,
    lowered,
    normalized,
    separates,
)
from ferrite_scheduler.analysis.nodes import Access, is_opaque
from ferrite_scheduler.model.policy import Policy

from .row_blocks import agree_on_blocks, are_nested, block_of


def space_owner(a: Cluster, b: Cluster) -> tuple[Cluster, Cluster]:
    """Returns ``(owner, guest)``: the cluster that keeps its space.

    It is the one with a reduction axis, of two the one that reduces whole rows, else the larger one.
    """
    if bool(a.kinds) != bool(b.kinds):
        return (a, b) if a.kinds else (b, a)
    if are_nested(b, a):
        return b, a
    if are_nested(a, b):
        return a, b
    return (a, b) if len(a.members) >= len(b.members) else (b, a)


def levels(owner: Cluster, guest: Cluster) -> tuple[int, ...]:
    """Returns the levels at which a guest fits by its number of points.

    A level is the number of points of the owner for each of the guest's: 1 for the full level.
    """
    if guest.kinds:
        is_same = (guest.grid, guest.reduction) == (owner.grid, owner.reduction) and agree_on_blocks(owner, guest)
        return (1,) if is_same or are_nested(owner, guest) else ()
    if not owner.kinds:
        return (1,) if guest.grid == owner.grid else ()
    block = owner.inner or block_of(owner, guest)
    shares = dict.fromkeys((1, block, owner.reduction) if block else (1, owner.reduction))
    return tuple(share for share in shares if _has_points(guest, owner, share))


def _has_points(guest: Cluster, owner: Cluster, share: int) -> bool:
    """Returns whether a guest has a point for each so many points of a reduction cluster."""
    points = (
        owner.points
        if share == 1
        else owner.grid
        if share == owner.reduction
        else owner.grid * (owner.reduction // share)
    )
    return guest.grid == points


def placements(owner: Cluster, guest: Cluster, shared: Callable[[], list[str]], policy: Policy) -> Iterator[Placement]:
    """Yields candidate placements, the identity first, then those that make a shared name's accesses agree.

    ``shared`` returns the names that both know, most bytes first; the policy says of how many of them.
    """
    for reduction in levels(owner, guest):
        full = reduction == 1
        seen: set[Digits | None] = {None}
        yield Placement(full, None, reduction)
        moves = not guest.kinds or (guest.reduction == owner.reduction and not guest.inner)
        for name in shared()[: policy.derived_placements] if moves else ():
            back = _derived(owner, guest, name, reduction)
            if back is None or back in seen or back == identity(guest.points):
                continue
            seen.add(back)
            if guest.kinds and not (separates(back, owner.reduction) and separates(inverse(back), owner.reduction)):
                continue
            placement = Placement(full, back, reduction)
            if placed_members(owner, guest, placement) is not None:
                yield placement


def _derived(owner: Cluster, guest: Cluster, name: str, share: int) -> Digits | None:
    """Returns the guest's position as a function of the owner's such that their accesses to a name agree."""
    mine, theirs = _access(owner, name), _access(guest, name)
    if mine is None or theirs is None or is_opaque(mine) or is_opaque(theirs) or mine[0] != theirs[0]:
        return None
    if share != 1:
        grid = lowered(mine[1], share)
        return None if grid is None else _between(grid, theirs[1], guest.grid)
    found = _between(mine[1], theirs[1], owner.points)
    if found is not None or not owner.kinds:
        return found
    grid = lowered(mine[1], owner.reduction)
    return None if grid is None else _spread(grid, theirs[1], owner.grid, owner.reduction)


def _access(cluster: Cluster, name: str) -> Access | None:
    if name in cluster.made:
        return cluster.made[name]
    return next(iter(cluster.touched[name]), None)


def _between(mine: Digits, theirs: Digits, points: int) -> Digits | None:
    """Returns ``theirs`` inverted after ``mine``, where both are bijections."""
    if not is_bijection(mine, points) or not is_bijection(theirs, points):
        return None
    return compose(inverse(theirs), mine)


def _spread(grid: Digits, theirs: Digits, points: int, reduction: int) -> Digits | None:
    """Returns the placement of a guest that reads a grid-level value at every point of a reduction.

    Its other dims are the reduction's, in order.
    """
    if not is_bijection(grid, points) or not covers(theirs, points):
        return None
    over_grid = compose(inverse(grid), theirs)
    if over_grid is None:
        return None
    forward: list[Digit] = [(step, extent, coefficient * reduction) for step, extent, coefficient in over_grid]
    reached, inner = 1, 1
    for step, extent, _ in (*over_grid, (points * reduction, 1, 0)):
        if step % reached or step < reached:
            return None
        gap = step // reached
        if gap > 1:
            forward.append((reached, gap, inner))
            inner *= gap
        reached = step * extent
    placed = normalized(forward)
    return inverse(placed) if is_bijection(placed, points * reduction) else None
