"""Folds over blocks of a row, in the kernel that holds the row: a norm, and the largest of each 128 of its results.

A fold over rows (``rows | cols``) and one over their blocks (``rows * blocks | block``) number their points alike: the
flat position of either is that of the element. So the fold over blocks is laid into the space of the fold over rows as
it is, and what it makes, once per block, is at *block level*, between the full level and that of the grid. In the
kernel the fold axis is cut where blocks end, and a tile has one more axis than others.

What has a point for each block and folds nothing is at block level, too. Where rows are small it cuts them by itself:
what the channels of an image make of the moments of their group, which are folded over channels and parts.
"""

from __future__ import annotations

from collections.abc import Iterable

from ferrite_ir.language.graph import Fold
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.clusters import Cluster
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.generic_sizes import is_symbolic

COMBINES = frozenset(("sum", "prod", "max", "min", "any", "all", "xor", "logaddexp", "welford"))
"""Folds that a kernel with blocks may have: those of one operand that are reductions of a tile."""


def are_nested(owner: Cluster, guest: Cluster) -> bool:
    """Returns whether what a guest folds are blocks of the rows that an owner folds."""
    if owner.kinds != {"fold"} or guest.kinds != {"fold"} or guest.inner or owner.inner not in (0, guest.fold):
        return False
    if is_symbolic(owner.fold) or is_symbolic(guest.fold):
        return False
    return 1 < guest.fold < owner.fold and owner.fold % guest.fold == 0 and owner.points == guest.points


def block_of(owner: Cluster, guest: Cluster) -> int:
    """Returns the length of the blocks of the rows that an owner folds for each of which a guest has a point, or 0.

    The guest is pointwise, and nothing has cut the rows before.
    """
    if owner.kinds != {"fold"} or guest.kinds or owner.inner or owner.runs or not guest.grid:
        return 0
    if is_symbolic(owner.fold) or is_symbolic(owner.grid) or is_symbolic(guest.grid):
        return 0
    block, rest = divmod(owner.points, guest.grid)
    return block if not rest and 1 < block < owner.fold and owner.fold % block == 0 else 0


def agree_on_blocks(owner: Cluster, guest: Cluster) -> bool:
    """Returns whether clusters over the same rows have blocks of one length, or only one of them has any."""
    return not owner.inner or not guest.inner or owner.inner == guest.inner


def other_combine(cluster: Cluster, dependences: Dependences) -> str:
    """Returns a fold of a cluster that is none of `COMBINES`, or nothing."""
    return next((fold.combine for fold in _folds(cluster, dependences) if not _is_simple(fold)), "")


def _folds(cluster: Cluster, dependences: Dependences) -> Iterable[Fold]:
    found = (dependences.nodes[number].definition for number in sorted(cluster.members))
    return (definition for definition in found if isinstance(definition, Fold))


def _is_simple(fold: Fold) -> bool:
    is_reduction = len(fold.bodies) == 1 or fold.combine == "welford"
    return fold.combine in COMBINES and is_reduction and all(is_static(dim.size) for dim in fold.fold_dims)
