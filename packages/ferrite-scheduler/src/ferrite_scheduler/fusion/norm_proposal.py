"""A proposal to make a register-resident norm of three clusters: moments of parts, of groups, and what reads images.

Fusion leaves them apart, pair by pair: the parts and the groups reduce over different domains, and what is computed of
each element has more points than the moments of groups. Together they are one kernel that reads the images once; see
decision 0072.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from ferrite_ir.language.graph import Computed, Graph, Loop, Reduction, bodies_of
from ferrite_ir.language.ops import RANDOM, REQUIREMENTS
from ferrite_ir.language.scalar import postorder
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.clusters import Cluster, stored_names
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.kernels.norm_dims import space_of_groups, with_elements
from ferrite_scheduler.model.norm_spaces import NormSpace
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target

from .combo_kernels import independent_groups, is_small

STATE = ("mean", "sum of squared distances", "weight")
"""What a reduction of moments keeps."""
OPAQUE = ("masked", *RANDOM, *REQUIREMENTS)
"""Operations that no register-resident norm has: reads under conditions, random numbers, checks."""


@dataclass(frozen=True, slots=True)
class NormSetting:
    """What norms are proposed in: the graph and its dependences, the device and the thresholds."""

    graph: Graph
    dependences: Dependences
    target: Target
    policy: Policy


@dataclass(frozen=True, slots=True)
class NormProposal:
    """Three clusters that normalise images, as one.

    Attributes:
        parts: reduces the positions of each channel, in parts.
        groups: combines what groups are made of, and computes what is one for a group or a channel.
        points: computes results for each element.
        setting: what they are in.
        between: the name of something that must run between them, "" for nothing, or None where nobody could tell.
        levels: the space of ``parts`` and ``groups``; None where their dims do not follow from each other.
        space: that of all three; None where values would be read elsewhere than they are made.
    """

    parts: Cluster
    groups: Cluster
    points: Cluster
    setting: NormSetting
    between: str | None
    levels: NormSpace | None
    space: NormSpace | None

    @property
    def names(self) -> tuple[str, str]:
        """Returns the moments and the result, which decisions are about."""
        dependences = self.setting.dependences
        moments = next(d for d in _definitions(self.groups, dependences) if isinstance(d, Reduction))
        stored = stored_names(self.points, dependences)
        results = (result.name for d in _definitions(self.points, dependences) for result in d.results)
        return moments.results[0].name, next(name for name in results if name in stored)


def propose_norm(
    parts: Cluster,
    cluster_at: Callable[[int], Cluster | None],
    between: Callable[[Cluster, Cluster, Cluster], str | None],
    setting: NormSetting,
) -> NormProposal | None:
    """Returns the norm whose channels a cluster reduces, None where it reduces something else.

    Args:
        parts: the cluster.
        cluster_at: tells in which cluster a definition is; None for a call.
        between: tells what must run between three clusters, as `NormProposal.between`.
        setting: the graph and the thresholds.
    """
    dependences = setting.dependences
    if len(parts.members) != 1 or not dependences.kept.isdisjoint(parts.made):
        return None
    (part,) = _definitions(parts, dependences)
    if not _is_moments(part) or len(part.bodies) != 1 or not _is_plain(parts, dependences):
        return None
    readers = {number for name in parts.made for number in dependences.readers.get(name, ())}
    groups = cluster_at(*readers) if len(readers) == 1 else None
    if groups is None or not groups.kinds or not _is_plain(groups, dependences) or not _is_one(groups, setting):
        return None
    reductions = [d for d in _definitions(groups, dependences) if isinstance(d, Reduction)]
    if len(reductions) != 1 or not _combines(reductions[0], part):
        return None
    followers = sorted({number for name in groups.made for number in dependences.readers.get(name, ())})
    found = (cluster for number in followers if (cluster := cluster_at(number)) is not None)
    points = next((cluster for cluster in found if _reads_images(cluster, parts, setting)), None)
    if points is None:
        return None
    levels = space_of_groups(parts, groups, dependences, setting.graph)
    space = None if levels is None else with_elements(levels, points, dependences)
    if space is not None and math.prod(int(axis.size) for axis in space.axes) != parts.points:
        space = None
    return NormProposal(parts, groups, points, setting, between(parts, groups, points), levels, space)


def _definitions(cluster: Cluster, dependences: Dependences) -> list[Computed]:
    found = (dependences.nodes[number].definition for number in sorted(cluster.members))
    return list(found)  # type: ignore[arg-type]  # a cluster has no calls


def _is_plain(cluster: Cluster, dependences: Dependences) -> bool:
    """Returns whether a cluster has nothing but loops and reductions that only read and write, the same for all sizes.

    Nor is it one of several versions, or a norm.
    """
    if cluster.stage is not None or cluster.updated or cluster.chunks or cluster.norm is not None:
        return False
    if not cluster.kinds <= {"reduction"}:
        return False
    definitions = _definitions(cluster, dependences)
    if not all(isinstance(definition, Loop | Reduction) for definition in definitions):
        return False
    if not all(is_static(dim.size) for number in cluster.members for dim in dependences.nodes[number].steps):
        return False
    nodes = postorder(body for definition in definitions for body in bodies_of(definition))
    return not any(node.op in OPAQUE for node in nodes)


def _is_moments(definition: Computed) -> TypeGuard[Reduction]:
    return isinstance(definition, Reduction) and definition.combine == "welford"


def _combines(moments: Reduction, part: Reduction) -> bool:
    """Returns whether a reduction combines what another has of each part, all of which have as many positions."""
    if not _is_moments(moments) or len(moments.bodies) != len(STATE):
        return False
    mean, squares, weight = moments.bodies
    count = math.prod(int(dim.size) for dim in part.reduction_dims)
    names = [result.name for result in part.results]
    is_whole = [body.source for body in (mean, squares) if body.op == "load"] == names[:2]
    is_known = weight.op == "const" and weight.value == count
    return is_whole and (is_known or (weight.op == "load" and weight.source == names[2]))


def _reads_images(points: Cluster, parts: Cluster, setting: NormSetting) -> bool:
    """Returns whether a cluster computes results for each element of what ``parts`` reduces, and nothing besides."""
    if points.kinds or points.points != parts.points or points.touched.keys().isdisjoint(parts.touched):
        return False
    if points.device != parts.device or not _is_plain(points, setting.dependences):
        return False
    return _is_one(points, setting)


def _is_one(cluster: Cluster, setting: NormSetting) -> bool:
    """Returns whether the definitions of a cluster would not be parts of one launch: a norm has no others beside it."""
    types, storage = setting.graph.values, setting.dependences.storage
    read = (name for name in cluster.touched if name not in cluster.made)
    small = {storage[name] for name in read if is_small(types[name].type, cluster.points, setting.policy)}
    body = _definitions(cluster, setting.dependences)
    return len(list(independent_groups(body, small, setting.dependences))) == 1
