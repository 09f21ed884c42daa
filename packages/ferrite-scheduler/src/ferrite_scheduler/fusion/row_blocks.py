"""Reductions over blocks of a row, in the kernel that holds it: a norm, and the largest of each 128 of its results.

A reduction over rows (``rows | cols``) and one over their blocks (``rows * blocks | block``) number their points alike:
the flat position of either is that of the element. So the reduction over blocks is laid into the space of the reduction
over rows as it is, and what it makes, once per block, is at *block level*, between the full level and that of the grid.
In the kernel the reduction axis is cut where blocks end, and a tile has one more axis than others.

What has a point for each block and reduces nothing is at block level, too. Where rows are small it cuts them by itself:
what the channels of an image make of the moments of their group, which are reduced over channels and parts.
"""

from __future__ import annotations

from collections.abc import Iterable

from ferrite_ir.language.graph import Reduction
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.clusters import Cluster
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.generic_sizes import is_symbolic

COMBINES = frozenset(("sum", "prod", "max", "min", "any", "all", "xor", "logaddexp", "welford"))
"""Reductions that a kernel with blocks may have: those of one operand that one reduction of a tile computes."""


def are_nested(owner: Cluster, guest: Cluster) -> bool:
    """Returns whether what a guest reduces are blocks of the rows that an owner reduces."""
    if (
        owner.kinds != {"reduction"}
        or guest.kinds != {"reduction"}
        or guest.inner
        or owner.inner not in (0, guest.reduction)
    ):
        return False
    if is_symbolic(owner.reduction) or is_symbolic(guest.reduction):
        return False
    return (
        1 < guest.reduction < owner.reduction
        and owner.reduction % guest.reduction == 0
        and owner.points == guest.points
    )


def block_of(owner: Cluster, guest: Cluster) -> int:
    """Returns the length of the blocks of the rows that an owner reduces for each of which a guest has a point, or 0.

    The guest is pointwise, and nothing has cut the rows before.
    """
    if owner.kinds != {"reduction"} or guest.kinds or owner.inner or owner.chunks or not guest.grid:
        return 0
    if is_symbolic(owner.reduction) or is_symbolic(owner.grid) or is_symbolic(guest.grid):
        return 0
    block, rest = divmod(owner.points, guest.grid)
    return block if not rest and 1 < block < owner.reduction and owner.reduction % block == 0 else 0


def agree_on_blocks(owner: Cluster, guest: Cluster) -> bool:
    """Returns whether clusters over the same rows have blocks of one length, or only one of them has any."""
    return not owner.inner or not guest.inner or owner.inner == guest.inner


def other_combine(cluster: Cluster, dependences: Dependences) -> str:
    """Returns a reduction of a cluster that is none of `COMBINES`, or nothing."""
    return next((reduction.combine for reduction in _reductions(cluster, dependences) if not _is_simple(reduction)), "")


def _reductions(cluster: Cluster, dependences: Dependences) -> Iterable[Reduction]:
    found = (dependences.nodes[number].definition for number in sorted(cluster.members))
    return (definition for definition in found if isinstance(definition, Reduction))


def _is_simple(reduction: Reduction) -> bool:
    is_reduction = len(reduction.bodies) == 1 or reduction.combine == "welford"
    return (
        reduction.combine in COMBINES and is_reduction and all(is_static(dim.size) for dim in reduction.reduction_dims)
    )
