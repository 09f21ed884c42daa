"""From the flat positions of a cluster to dims: the finest cut of its space that all members agree on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ferrite_scheduler.analysis.clusters import Member
from ferrite_scheduler.analysis.generic_sizes import generic
from ferrite_scheduler.analysis.mixed_radix import Digits, compose, inverse, lifted
from ferrite_scheduler.analysis.nodes import Node


@dataclass(frozen=True, slots=True)
class Base:
    """One dim of the common cut: its step in the flat position and its extent."""

    step: int
    extent: int


def own_digits(node: Node, member: Member, reduction: int) -> dict[object, Digits | None]:
    """Returns each dim of the node as digits of the cluster's flat position (None where cuts do not align)."""
    back = None if member.position is None else inverse(member.position)
    lift = member.share(reduction)
    found: dict[object, Digits | None] = {}
    for dim, step in node.steps.items():
        digits: Digits | None = ((step, generic(dim.size), 1),)
        if back is not None:
            digits = compose(((step, generic(dim.size), 1),), back)
        found[dim] = digits if digits is None else lifted(digits, lift)
    return found


def cut(
    points: int, reduction: int, wanted: Iterable[Digits | None], *, whole_reduction: bool, inner: int = 0
) -> tuple[Base, ...]:
    """Returns the bases of the space, outermost first: every cut in ``wanted`` that agrees with those before it.

    ``reduction`` (0 or 1 for none) is always a cut, and so is ``inner``, the end of a block of it (0 for none); with
    ``whole_reduction`` the reduction axis itself stays in one piece.
    """
    cuts = {1, max(1, inner), max(1, reduction), points}
    tried: set[int] = set()
    for digits in wanted:
        for step, extent, _ in digits or ():
            for position in (step, step * extent):
                if position in tried or position in cuts:
                    continue
                tried.add(position)
                if whole_reduction and position < reduction:
                    continue
                if all(position % other == 0 if other < position else other % position == 0 for other in cuts):
                    cuts.add(position)
    ordered = sorted(cuts)
    return tuple(Base(low, high // low) for low, high in reversed(list(pairwise(ordered))))


def coefficients(digits: Digits, bases: tuple[Base, ...]) -> tuple[tuple[int, ...], bool]:
    """Returns the coefficient of each base in a sum of digits, and whether that is exact (all cuts align)."""
    found = [0] * len(bases)
    exact = True
    for step, extent, coefficient in digits:
        end = step * extent
        for position, base in enumerate(bases):
            top = base.step * base.extent
            if top <= step or base.step >= end:
                continue
            if base.step < step or top > end or base.step % step:
                exact = False
                continue
            found[position] += coefficient * (base.step // step)
    return tuple(found), exact
