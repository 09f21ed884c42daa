"""Register-resident norms among the clusters that fusion has made: three of them become one where the rules agree."""

from __future__ import annotations

from dataclasses import replace

from ferrite_ir.language.graph import Graph
from ferrite_scheduler.analysis.clusters import Cluster, Member
from ferrite_scheduler.model.norm_spaces import NormSpace
from ferrite_scheduler.model.schedule import Decision

from .greedy import Fusion
from .norm_proposal import NormProposal, NormSetting, propose_norm
from .norm_rules import judge_norm, space_of


def join_norms(fusion: Fusion, graph: Graph) -> Fusion:
    """Returns fusion in which the three clusters of each norm are one, where that can be and pays.

    A decision names the moments and the result. The clusters are those that no pair is left of to fuse.
    """
    policy = fusion.policy
    if not policy.grid_reductions or not policy.register_norms:
        return fusion
    setting = NormSetting(graph, fusion.dependences, fusion.target, policy)

    def cluster_at(number: int) -> Cluster | None:
        return fusion.clusters.get(fusion.order.find(number))

    def between(parts: Cluster, groups: Cluster, points: Cluster) -> str | None:
        return _between(fusion, parts, groups, points)

    for parts in list(fusion.clusters.values()):
        norm = propose_norm(parts, cluster_at, between, setting)
        if norm is None:
            continue
        verdict = judge_norm(norm)
        if isinstance(verdict, int):
            fusion.decisions.append(Decision(*norm.names, True, "", "images are read once"))
            _merge(fusion, norm, replace(space_of(norm), block_length=verdict))
        else:
            rule, why = verdict
            fusion.decisions.append(Decision(*norm.names, False, rule, why.reason, why.numbers))
    return fusion


def _between(fusion: Fusion, parts: Cluster, groups: Cluster, points: Cluster) -> str | None:
    """Returns the name of what must run between three clusters, "" for nothing, None where the search ended early."""
    order = fusion.order
    first, second, third = (order.find(cluster.first) for cluster in (parts, groups, points))
    paths = (
        order.path_between(first, second),
        order.path_between(second, third),
        order.path_between(first, third, besides=second),
    )
    witness = next((path for path in paths if path is not None), None)
    if witness is None:
        return ""
    return None if witness < 0 else fusion.names[witness]


def _merge(fusion: Fusion, norm: NormProposal, space: NormSpace) -> None:
    """Makes one cluster of three, between which nothing runs."""
    clusters = (norm.parts, norm.groups, norm.points)
    first, *others = (cluster.first for cluster in clusters)
    for cluster in clusters:
        del fusion.clusters[fusion.order.find(cluster.first)]
    for other in others:
        witness = fusion.order.merge(first, other, is_bounded=False)
        assert witness is None, "nothing runs between the clusters of a norm"
    full = {space.parts, *space.elements}
    members = {number: Member(number, number in full) for cluster in clusters for number in cluster.members}
    whole = Cluster(
        norm.parts.points // int(space.position.size),
        int(space.position.size),
        members,
        made={name: None for cluster in clusters for name in cluster.made},
        made_bytes={name: count for cluster in clusters for name, count in cluster.made_bytes.items()},
        kinds=norm.groups.kinds,
        device=norm.groups.device,
        ops=sum(cluster.ops for cluster in clusters),
        first=min(cluster.first for cluster in clusters),
        last=max(cluster.last for cluster in clusters),
        norm=space,
    )
    fusion.clusters[fusion.order.find(first)] = whole
