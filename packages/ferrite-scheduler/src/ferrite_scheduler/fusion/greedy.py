"""Greedy fusion: pairs of definitions that share a buffer become one kernel where rules allow it, best saving first.

Candidates are producer-consumer edges, neighbouring readers of one buffer, and neighbours that are small or update in
place, so there are linearly many. Each pair names two definitions; by the time it is taken from the heap they may
belong to larger clusters, and it is those that are judged. A pair refused only because of a path through a third kernel
is tried again when one of its clusters has grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from ferrite_ir.language.graph import Loop
from ferrite_scheduler.analysis.clusters import Cluster, absorb, cluster_of
from ferrite_scheduler.analysis.dependences import Dependences, Stage
from ferrite_scheduler.analysis.generic_sizes import hinted
from ferrite_scheduler.analysis.nodes import Access, Node, Touch
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Decision
from ferrite_scheduler.model.target import Target

from .proposal import Proposal, propose
from .rules import Refusal, judge
from .topological_order import MergeOrder


@dataclass(slots=True)
class Counters:
    """How much work fusion did; independent of the machine."""

    pairs: int = 0
    judged: int = 0
    merged: int = 0
    edges: int = 0


@dataclass(slots=True)
class Fusion:
    """Clusters under construction."""

    dependences: Dependences
    target: Target
    policy: Policy
    order: MergeOrder
    clusters: dict[int, Cluster]
    decisions: list[Decision] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    heap: list[tuple[int, int, int, int]] = field(default_factory=list)
    refused: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    blocked: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    tries: dict[tuple[int, int], int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


def fuse(dependences: Dependences, target: Target, policy: Policy) -> Fusion:
    """Returns the clusters of a graph in a topological order, with the decisions that led to them."""
    order = MergeOrder(dependences.before, dependences.after, policy.search_budget)
    clusters = {node.number: cluster_of(node, dependences) for node in dependences.nodes if not node.is_host}
    fusion = Fusion(dependences, target, policy, order, clusters)
    fusion.heap = [
        (-score, second - first, first, second) for (first, second), score in candidates(dependences, policy).items()
    ]
    heapify(fusion.heap)
    fusion.counters.pairs = len(fusion.heap)
    fusion.names = [next(iter(node.result_names), f"definition {node.number}") for node in dependences.nodes]
    while fusion.heap:
        _consider(fusion, heappop(fusion.heap))
    fusion.counters.edges = order.visits
    return fusion


def candidates(dependences: Dependences, policy: Policy) -> dict[tuple[int, int], int]:
    """Returns the pairs of definitions worth a try, each with an estimate of the bytes that fusing them saves."""
    pairs: dict[tuple[int, int], int] = {}
    for name, readers in dependences.readers.items():
        loads = list(_loads_of(name, readers, dependences))
        definer = dependences.definer.get(name)
        if definer is not None and not dependences.nodes[definer].is_host:
            home = _home_of(name, dependences.nodes[definer])
            for number, touch in loads:
                score = 2 * touch.bytes if touch.access == home else touch.bytes // policy.reordered_share
                pairs[definer, number] = pairs.get((definer, number), 0) + score
        for first, second, score in _neighbours(loads, dependences, policy):
            pairs[first, second] = pairs.get((first, second), 0) + score
    if policy.horizontal:
        for pair in _companions(dependences, policy):
            pairs.setdefault(pair, 0)
    return pairs


def _companions(dependences: Dependences, policy: Policy) -> Iterator[tuple[int, int]]:
    """Yields neighbours over equal spaces that are small, update in place or are detached: fused they save a launch."""
    last: dict[tuple[int, int, str, Stage | None], int] = {}
    for node in dependences.nodes:
        why = _reason_to_join(node, dependences, policy)
        if not why:
            continue
        key = (node.grid, node.reduction, why, dependences.stages.get(node.number))
        if key in last:
            yield last[key], node.number
        last[key] = node.number


def _reason_to_join(node: Node, dependences: Dependences, policy: Policy) -> str:
    """Returns what makes a definition worth joining with others of its kind; nothing where nothing does."""
    if node.is_host:
        return ""
    if node.stores is not None:
        return "in place"
    if _bytes_of(node) <= policy.small_kernel_bytes:
        return "small"
    is_last = isinstance(node.definition, Loop) and all(name in dependences.kept for name in node.result_names)
    return "detached" if is_last and not any(name in dependences.definer for name in node.reads) else ""


def _bytes_of(node: Node) -> int:
    """Returns the bytes a definition moves alone."""
    made = sum(result.type.dtype.bytes for result in node.definition.results if result is not None)
    return sum(touch.bytes for touch in node.loads) + hinted(node.grid) * made


def _loads_of(name: str, readers: list[int], dependences: Dependences) -> Iterator[tuple[int, Touch]]:
    """Yields the kernel definitions among the readers with their largest load of the name."""
    for number in readers:
        found = [touch for touch in dependences.nodes[number].loads if touch.name == name]
        if found:
            yield number, max(found, key=lambda touch: touch.bytes)


def _home_of(name: str, node: Node) -> Access | None:
    return next((home for made, home in zip(node.result_names, node.homes, strict=True) if made == name), None)


def _neighbours(
    loads: list[tuple[int, Touch]], dependences: Dependences, policy: Policy
) -> Iterator[tuple[int, int, int]]:
    """Yields pairs of readers over equally many points that are near each other in program order."""
    alike: dict[int, list[tuple[int, Touch]]] = {}
    for number, touch in loads:
        alike.setdefault(dependences.nodes[number].points, []).append((number, touch))
    for group in alike.values():
        for position, (first, touch) in enumerate(group):
            for second, other in group[position + 1 : position + 1 + policy.fusion_neighbours]:
                score = min(touch.bytes, other.bytes)
                yield first, second, score if touch.access == other.access else score // policy.reordered_share


def _consider(fusion: Fusion, pair: tuple[int, int, int, int]) -> None:
    _, _, first, second = pair
    a, b = fusion.order.find(first), fusion.order.find(second)
    if a == b:
        return
    key = (a, b) if a < b else (b, a)
    sizes = (len(fusion.clusters[key[0]].members), len(fusion.clusters[key[1]].members))
    if fusion.refused.get(key) == sizes:
        return
    fusion.counters.judged += 1
    proposal = propose(fusion.clusters[a], fusion.clusters[b], fusion.dependences, fusion.target, fusion.policy)
    refusal = judge(proposal)
    if refusal is None:
        refusal = _merge(fusion, proposal, a, b, pair)
    names = (fusion.names[first], fusion.names[second])
    if refusal is not None:
        rule, why = refusal
        fusion.refused[key] = sizes
        fusion.decisions.append(Decision(*names, False, rule, why.reason, why.numbers))
    elif proposal.saved:
        numbers = (("bytes", proposal.saved),)
        fusion.decisions.append(Decision(*names, True, "", "saves memory traffic", numbers))
    else:
        fusion.decisions.append(Decision(*names, True, "", "saves a launch"))


def _merge(
    fusion: Fusion, proposal: Proposal, a: int, b: int, pair: tuple[int, int, int, int]
) -> tuple[str, Refusal] | None:
    """Merges the clusters of a proposal, unless a path through a third kernel forbids it."""
    witness = fusion.order.merge(a, b)
    if witness is not None:
        if witness < 0:
            return "F09", Refusal("they are too far apart to see whether a third kernel lies between")
        _block(fusion, pair, witness)
        return "F09", Refusal(f"{fusion.names[witness]} must run between them")
    assert proposal.placement is not None, "legal proposals are placed"
    assert proposal.weighing is not None, "legal proposals are weighed"
    owner, guest = proposal.owner, proposal.guest
    owner.loads += guest.loads - proposal.weighing.shared - proposal.weighing.joined
    owner.stores += guest.stores - proposal.weighing.hidden
    absorb(owner, guest, proposal.placement)
    keep = fusion.order.find(a)
    fusion.clusters.pop(b if keep == a else a)
    fusion.clusters[keep] = owner
    fusion.counters.merged += 1
    _release(fusion, a, b, keep)
    return None


def _block(fusion: Fusion, pair: tuple[int, int, int, int], witness: int) -> None:
    """Keeps a pair until the cluster on the path between the two has become part of one of them."""
    tries = fusion.tries.get(pair[2:], 0)
    if tries < fusion.policy.fusion_retries:
        fusion.tries[pair[2], pair[3]] = tries + 1
        fusion.blocked.setdefault(witness, []).append(pair)


def _release(fusion: Fusion, a: int, b: int, keep: int) -> None:
    """Puts the pairs back into the heap that clusters ``a`` and ``b``, now ``keep``, stood between."""
    waiting = [*fusion.blocked.pop(a, ()), *fusion.blocked.pop(b, ())]
    find = fusion.order.find
    for pair in waiting:
        if find(pair[2]) == keep or find(pair[3]) == keep:
            heappush(fusion.heap, pair)
        else:
            fusion.blocked.setdefault(keep, []).append(pair)
