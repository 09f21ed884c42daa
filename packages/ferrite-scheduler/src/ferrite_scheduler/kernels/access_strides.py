"""The memory accesses of a kernel: how each walks over the cuts of its space, and how many bytes are behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from ferrite_scheduler.analysis.clusters import Cluster, Member
from ferrite_scheduler.analysis.generic_sizes import generic
from ferrite_scheduler.analysis.mixed_radix import Digits, compose, inverse, lifted
from ferrite_scheduler.analysis.nodes import Node
from ferrite_scheduler.model.annotations import ColumnReduction

from .iteration_space import Base, coefficients
from .tiling import Stride


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """One access of a kernel: digits over the cluster's position, bytes, those not behind others, whether it stores.

    ``rigid`` are the digits of the dims that it depends on in other ways, None where a dim has none.
    """

    digits: Digits | None
    bytes: int
    distinct: int
    is_store: bool
    rigid: tuple[Digits | None, ...] = ()


def over_cluster(digits: Digits, member: Member, reduction: int) -> Digits | None:
    """Returns digits over a node's own position as digits over the cluster's."""
    found: Digits | None = digits
    if member.position is not None:
        found = compose(digits, inverse(member.position))
    return None if found is None else lifted(found, member.share(reduction))


def traffic_of(
    cluster: Cluster, nodes: Sequence[Node], members: Sequence[Member], stored: frozenset[str]
) -> Iterator[MemoryAccess]:
    """Yields the memory accesses of a kernel that stores these of its values.

    The points of a window read the same elements, one after the other: loads that walk alike over a value have no more
    distinct bytes together than the value.
    """
    loads = [
        [
            (touch, over_cluster(touch.known, member, cluster.reduction))
            for touch in node.loads
            if touch.name not in cluster.made
        ]
        for node, member in zip(nodes, members, strict=True)
    ]
    together: Counter[tuple[str, Digits | None]] = Counter()
    for touch, digits in chain(*loads):
        together[touch.name, digits] += touch.bytes
    for node, member, own in zip(nodes, members, loads, strict=True):
        for touch, digits in own:
            total = max(1, together[touch.name, digits])
            distinct = touch.bytes * min(touch.value_bytes, total) // total
            rigid = tuple(
                over_cluster(((node.steps[dim], generic(dim.size), 1),), member, cluster.reduction)
                for dim in touch.rigid
                if dim in node.steps
            )
            yield MemoryAccess(digits, touch.bytes, distinct, is_store=False, rigid=rigid)
        if node.stores is not None:
            written = node.stores.bytes
            yield MemoryAccess(
                over_cluster(node.stores.known, member, cluster.reduction), written, written, is_store=True
            )
            continue
        if isinstance(node.definition, ColumnReduction):
            continue  # stored once per chunk
        for name, home in zip(node.result_names, node.homes, strict=True):
            if name in stored:
                written = cluster.made_bytes[name]
                yield MemoryAccess(over_cluster(home[1], member, cluster.reduction), written, written, is_store=True)


def strides_of(traffic: Sequence[MemoryAccess], bases: tuple[Base, ...]) -> tuple[list[Stride], frozenset[int]]:
    """Returns how accesses walk over the bases, and the bases that they do not walk over as over dims."""
    strides: list[Stride] = []
    rigid: frozenset[int] = frozenset()
    for access in traffic:
        if access.digits is None:
            rigid |= frozenset(range(len(bases)))
            continue
        vector, exact = coefficients(access.digits, bases)
        scattered = frozenset[int]().union(*(touched_bases(digits, bases) for digits in access.rigid))
        strides.append(Stride(vector, access.bytes, access.distinct, access.is_store, scattered))
        if not exact:
            rigid |= touched_bases(access.digits, bases)
    return strides, rigid


def touched_bases(digits: Digits | None, bases: tuple[Base, ...]) -> frozenset[int]:
    """Returns the bases that digits depend on; all of them where they are unknown."""
    if digits is None:
        return frozenset(range(len(bases)))
    return frozenset(
        position
        for position, base in enumerate(bases)
        if any(base.step < step * extent and base.step * base.extent > step for step, extent, _ in digits)
    )
