"""Clusters of a few definitions, one after the other: each joins the first cluster that the rules let it join."""

from __future__ import annotations

from collections.abc import Iterable

from ferrite_scheduler.analysis.clusters import Cluster, absorb, cluster_of
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target

from .proposal import propose
from .rules import judge


def clusters_of(numbers: Iterable[int], dependences: Dependences, target: Target, policy: Policy) -> list[Cluster]:
    """Returns definitions, by number and in program order, as clusters. Nothing lies between any two of them."""
    together: list[Cluster] = []
    for number in numbers:
        _join(together, cluster_of(dependences.nodes[number], dependences), dependences, target, policy)
    return together


def _join(together: list[Cluster], single: Cluster, dependences: Dependences, target: Target, policy: Policy) -> None:
    """Adds a cluster to the first that takes it, or to the list."""
    for position, cluster in enumerate(together):
        proposal = propose(cluster, single, dependences, target, policy)
        if judge(proposal) is None and proposal.placement is not None:
            absorb(proposal.owner, proposal.guest, proposal.placement)
            together[position] = proposal.owner
            return
    together.append(single)
