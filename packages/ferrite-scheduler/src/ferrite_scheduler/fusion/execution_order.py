"""The order in which kernels and host calls run: topological, near program order, with a low peak of memory.

Orders near the program's are tried first. Where the best of them needs much memory, one with a lower peak is searched
(`low_peak_order`), and kernels are cut whose parts could run one after the other: definitions that were fused to read
an operand once while most of their results wait to be read (the inputs of several products), and reductions that were
fused though most of what they read has waited for the last of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from ferrite_ir.language.graph import Graph, Reduction
from ferrite_scheduler.analysis.clusters import Cluster
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.analysis.nodes import Node, count_elements
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.target import Target

from .greedy import Fusion
from .joining import clusters_of
from .low_peak_order import Items, Trace, low_peak_order, peak_of, profile

Group: TypeAlias = Cluster | Node


def in_execution_order(fusion: Fusion, graph: Graph, target: Target) -> list[Group]:
    """Returns all clusters and host calls in execution order."""
    dependences, policy = fusion.dependences, fusion.policy
    work = {
        number: fusion.clusters.get(number, dependences.nodes[number])
        for number in map(fusion.order.find, range(len(dependences.nodes)))
    }
    partition = _Partition.of(work, dependences, _sizes(dependences, graph))
    orders = [_sorted_by(key, partition) for key in (partition.first, partition.last)]
    orders.append(list(fusion.order.ordered()))
    order = min(orders, key=partition.peak)
    order = _with_lower_peak(order, partition, policy)
    order, partition = _unfused(order, partition, target, policy)
    return [partition.work[group] for group in order]


@dataclass(frozen=True, slots=True)
class _Partition:
    """A graph cut into clusters and host calls, by number.

    Attributes:
        work: by number, what it is.
        items: what each needs and does to memory.
        dependences: of the definitions.
    """

    work: Mapping[int, Group]
    items: Items
    dependences: Dependences

    @classmethod
    def of(cls, work: Mapping[int, Group], dependences: Dependences, sizes: Mapping[str, int]) -> _Partition:
        """Returns the partition into some work."""
        owner = {number: group for group, item in work.items() for number in _members(item)}
        before: dict[int, list[int]] = {}
        after: dict[int, list[int]] = {group: [] for group in work}
        for group, item in work.items():
            earlier = {owner[other] for number in _members(item) for other in dependences.before[number]} - {group}
            before[group] = sorted(earlier)
            for other in before[group]:
                after[other].append(group)
        return cls(work, Items(before, after, _traces(work, dependences), sizes), dependences)

    def first(self, group: int) -> int:
        """Returns the number of the first definition of an item."""
        return min(_members(self.work[group]))

    def last(self, group: int) -> int:
        """Returns the number of the last definition of an item."""
        return max(_members(self.work[group]))

    def peak(self, order: Sequence[int]) -> int:
        """Returns the most bytes alive at once in an order."""
        return peak_of(order, self.items)


def _members(item: Group) -> Sequence[int]:
    return (item.number,) if isinstance(item, Node) else tuple(item.members)


def _traces(work: Mapping[int, Group], dependences: Dependences) -> dict[int, Trace]:
    """Returns what each item does to memory. Values that one kernel alone touches stay in registers."""
    storage, nodes = dependences.storage, dependences.nodes
    made: dict[int, set[str]] = {}
    touched: dict[int, set[str]] = {}
    lasting = (*dependences.kept, *dependences.held)  # a part of a graph lacks some that are held
    ends = {storage[name] for name in lasting if name in storage}
    touching: dict[str, int] = dict.fromkeys(ends, 1)
    for group, item in work.items():
        numbers = _members(item)
        results = {storage[name] for number in numbers for name in nodes[number].result_names}
        touched[group] = results | {storage[name] for number in numbers for name in nodes[number].reads}
        made[group] = {root for root in results if dependences.definer.get(root) in numbers}
        for root in touched[group]:
            touching[root] = touching.get(root, 0) + 1
    inside = {
        root
        for group, roots in made.items()
        for root in roots
        if touching[root] == 1 and isinstance(work[group], Cluster)
    }
    return {g: Trace(frozenset(made[g] - inside), frozenset(touched[g] - inside - ends)) for g in work}


def _sorted_by(key: Callable[[int], int], partition: _Partition) -> list[int]:
    """Returns a topological order in which, of all that could be next, the one with the smallest key is."""
    items = partition.items
    waiting = {group: len(before) for group, before in items.before.items()}
    ready = [(key(group), group) for group, count in waiting.items() if count == 0]
    heapify(ready)
    found: list[int] = []
    while ready:
        _, group = heappop(ready)
        found.append(group)
        for other in items.after[group]:
            waiting[other] -= 1
            if waiting[other] == 0:
                heappush(ready, (key(other), other))
    if len(found) != len(waiting):
        raise ValueError(f"{len(waiting) - len(found)} definitions wait for each other: the graph has a cycle")
    return found


def _sizes(dependences: Dependences, graph: Graph) -> dict[str, int]:
    """Returns the bytes of each storage, by the name of its oldest value."""
    sizes: dict[str, int] = {}
    for name, root in dependences.storage.items():
        if name == root:
            tensor = graph.values[name].type
            sizes[name] = count_elements(tensor) * tensor.dtype.bytes
    return sizes


def _with_lower_peak(order: list[int], partition: _Partition, policy: Policy) -> list[int]:
    """Returns an order with a lower peak of memory, the given one where it gains little."""
    peak = partition.peak(order)
    if peak < policy.ordered_bytes or len(order) > policy.ordered_items:
        return order
    found = low_peak_order(order, partition.items, policy)
    return found if (peak - partition.peak(found)) * policy.ordered_share >= peak else order


def _unfused(
    order: Sequence[int], partition: _Partition, target: Target, policy: Policy
) -> tuple[list[int], _Partition]:
    """Returns an order and a partition with kernels cut where that lowers the peak much, else what is given.

    These are the kernels of which most waits while the peak is reached, before them or behind them. All are cut at
    first, since the inputs of several products wait for these, and these for what reads them; what is whole without
    raising the peak again is put together again.
    """
    peak = partition.peak(order)
    is_worth_it = peak >= policy.unfused_bytes and 0 < len(order) <= policy.ordered_items
    cuts = _cuts(order, partition, policy) if is_worth_it else {}

    def cut(groups: Iterable[int]) -> tuple[list[int], _Partition]:
        work = dict(partition.work)
        for group in groups:
            del work[group]
            for numbers in cuts[group]:
                clusters = clusters_of(numbers, partition.dependences, target, policy)
                work |= {min(cluster.members): cluster for cluster in clusters}
        found = _Partition.of(work, partition.dependences, partition.items.sizes)
        start = _sorted_by(found.first, found)
        return low_peak_order(start, found.items, policy), found

    best = cut(cuts) if cuts else (list(order), partition)
    lowest = best[1].peak(best[0])
    if (peak - lowest) * policy.unfused_share < peak:
        return list(order), partition
    for group in list(cuts):
        fewer = cut(other for other in cuts if other != group)
        if fewer[1].peak(fewer[0]) <= lowest:
            best = fewer
            del cuts[group]
    return best


def _cuts(order: Sequence[int], partition: _Partition, policy: Policy) -> dict[int, list[list[int]]]:
    """Returns kernels that could be cut, of which most waits while the peak is reached, each with its parts."""
    items = partition.items
    heights = profile(order, items)
    top = heights.index(max(heights))
    made = {root for group in order[: top + 1] for root in items.traces[group].made}
    read = {root for group in order[top:] for root in items.traces[group].touched}
    waiting = made & read
    found: list[tuple[int, int, list[list[int]]]] = []
    for group in order:
        cluster = partition.work[group]
        if not isinstance(cluster, Cluster) or cluster.stage or cluster.columns or cluster.updated or cluster.norm:
            continue  # something else counts on what it does being one kernel
        weight = sum(items.sizes[root] for root in items.traces[group].touched & waiting)
        if weight >= policy.unfused_bytes // policy.unfused_share:
            parts = _parts_of(cluster, partition.dependences)
            found += [(-weight, group, parts)] if len(parts) > 1 else []
    return {group: parts for _, group, parts in sorted(found)[: policy.unfused_kernels]}


def _parts_of(cluster: Cluster, dependences: Dependences) -> list[list[int]]:
    """Returns the definitions of a cluster in parts that could be kernels: its independent ones, or its reductions.

    Reductions have the definitions with them that nothing else reads; what is made of several of them is a part, too.
    """
    parts = _joined(sorted(cluster.members), cluster, dependences)
    if len(parts) > 1:
        return parts
    inner = {number for number in cluster.members if isinstance(dependences.nodes[number].definition, Reduction)}
    behind: set[int] = set()
    for number in sorted(cluster.members):
        if _read_by(number, cluster, dependences) & (inner | behind):
            behind.add(number)
    before = [number for number in sorted(cluster.members) if number not in behind]
    rest = [sorted(behind)] if behind else []
    return [*_joined(before, cluster, dependences), *rest]


def _joined(numbers: Iterable[int], cluster: Cluster, dependences: Dependences) -> list[list[int]]:
    """Returns some definitions of a cluster, those together that read one another's results, in program order."""
    parts: list[set[int]] = []
    for number in numbers:
        read = _read_by(number, cluster, dependences)
        met = [part for part in parts if part & read]
        parts = [part for part in parts if part not in met]
        parts.append({number}.union(*met))
    return [sorted(part) for part in parts]


def _read_by(number: int, cluster: Cluster, dependences: Dependences) -> set[int]:
    """Returns the definitions of a cluster whose results one of them reads."""
    made = {dependences.definer.get(name, -1) for name in dependences.nodes[number].reads}
    return made & cluster.members.keys()
