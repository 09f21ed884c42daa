"""Clusters of a few definitions, one after the other: each joins the first cluster that the rules let it join."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ferrite_scheduler.analysis.clusters import Cluster, absorb, cluster_of
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target

from .proposal import propose
from .rules import judge


def clusters_of(numbers: Iterable[int], dependences: Dependences, target: Target, policy: Policy) -> list[Cluster]:
    """Returns definitions, by number and in program order, as clusters, of which none waits for itself.

    No other definition lies between any two of these.
    """
    together: list[Cluster] = []
    for number in numbers:
        _join(together, cluster_of(dependences.nodes[number], dependences), dependences, target, policy)
    return together


def _join(together: list[Cluster], single: Cluster, dependences: Dependences, target: Target, policy: Policy) -> None:
    """Adds a cluster to the first that takes it and is not waited for by what it waits for, or to the list."""
    behind = _waited_for_by_others(together, single, dependences)
    for position, cluster in enumerate(together):
        if position in behind:
            continue
        proposal = propose(cluster, single, dependences, target, policy)
        if judge(proposal) is None and proposal.placement is not None:
            absorb(proposal.owner, proposal.guest, proposal.placement)
            together[position] = proposal.owner
            return
    together.append(single)


def _waited_for_by_others(together: Sequence[Cluster], single: Cluster, dependences: Dependences) -> set[int]:
    """Returns the positions of the clusters that those wait for, through others or not, which a cluster waits for."""
    found: set[int] = set()
    waiting = [together[position] for position in _waited_for(single, together, dependences)]
    while waiting:
        new = _waited_for(waiting.pop(), together, dependences) - found
        found |= new
        waiting.extend(together[position] for position in new)
    return found


def _waited_for(cluster: Cluster, together: Sequence[Cluster], dependences: Dependences) -> set[int]:
    """Returns the positions of the other clusters with definitions that must precede one of a cluster."""
    earlier = {other for number in cluster.members for other in dependences.before[number]}
    return {
        position
        for position, other in enumerate(together)
        if other is not cluster and not earlier.isdisjoint(other.members)
    }
