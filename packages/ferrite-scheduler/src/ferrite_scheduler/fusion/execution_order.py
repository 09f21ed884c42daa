"""The order in which kernels and host calls run: topological, near program order, with a low peak of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from ferrite_ir.language.graph import Graph
from ferrite_scheduler.analysis.dependences import Dependences, count_elements

from .greedy import Fusion


def execution_order(fusion: Fusion, graph: Graph) -> list[int]:
    """Returns the representatives of all clusters and host calls in execution order."""
    groups = _groups(fusion)
    before, after = _edges(fusion, groups)
    keys: tuple[Callable[[int], int], ...] = (
        lambda group: groups[group][0],
        lambda group: groups[group][-1],
    )
    orders = [_sorted_by(key, before, after) for key in keys]
    orders.append(list(fusion.order.ordered()))
    sizes = _sizes(fusion.dependences, graph)

    def peak(order: Sequence[int]) -> int:
        return peak_bytes([groups[group] for group in order], fusion.dependences, sizes)

    best = min(orders, key=peak)
    swapped = with_swaps(best, after, _traces(groups, fusion.dependences), sizes)
    return swapped if (peak(best) - peak(swapped)) * fusion.policy.swapped_share >= peak(best) > 0 else best


@dataclass(frozen=True, slots=True)
class Trace:
    """What a group does to memory: the storages that it makes, and all that it touches; what stays in it is neither."""

    made: frozenset[str]
    touched: frozenset[str]


def _traces(groups: dict[int, list[int]], dependences: Dependences) -> dict[int, Trace]:
    """Returns what each group does to memory."""
    storage, nodes = dependences.storage, dependences.nodes
    made: dict[int, set[str]] = {}
    touched: dict[int, set[str]] = {}
    touching: dict[str, int] = {storage[name]: 1 for name in dependences.kept}
    for group, numbers in groups.items():
        results = {storage[name] for number in numbers for name in nodes[number].result_names}
        touched[group] = results | {storage[name] for number in numbers for name in nodes[number].reads}
        made[group] = {root for root in results if dependences.definer.get(root) in numbers}
        for root in touched[group]:
            touching[root] = touching.get(root, 0) + 1
    inside = {
        root
        for group, roots in made.items()
        for root in roots
        if touching[root] == 1 and not nodes[dependences.definer[root]].is_host
    }
    ends = frozenset(storage[name] for name in dependences.kept)
    return {g: Trace(frozenset(made[g] - inside), frozenset(touched[g] - inside - ends)) for g in groups}


def with_swaps(
    order: Sequence[int], after: Mapping[int, Sequence[int]], traces: Mapping[int, Trace], sizes: Mapping[str, int]
) -> list[int]:
    """Returns an order with neighbours swapped where fewer bytes are alive at once while the two run.

    Of two products with one operand in common, say, the gradients of a layer's weight and of its input, the one that
    is the last to read a large tensor goes first.

    Args:
        order: a topological order of groups.
        after: the groups that each one must precede.
        traces: what each group does to memory.
        sizes: bytes of each storage.
    """
    found = list(order)
    left = Counter(root for group in found for root in traces[group].touched)

    def rise(group: int) -> int:
        return sum(sizes[root] for root in traces[group].made)

    def fall(group: int) -> int:
        return sum(sizes[root] for root in traces[group].touched if left[root] == 1)

    for position in range(len(found)):
        if position + 1 < len(found):
            one, two = found[position], found[position + 1]
            as_it_is = max(rise(one), rise(one) - fall(one) + rise(two))
            swapped = max(rise(two), rise(two) - fall(two) + rise(one))
            if swapped < as_it_is and two not in after[one]:
                found[position], found[position + 1] = two, one
        left.subtract(traces[found[position]].touched)
    return found


def _groups(fusion: Fusion) -> dict[int, list[int]]:
    """Returns the nodes of each cluster in program order, by representative."""
    groups: dict[int, list[int]] = {}
    for node in fusion.dependences.nodes:
        groups.setdefault(fusion.order.find(node.number), []).append(node.number)
    return groups


def _edges(fusion: Fusion, groups: dict[int, list[int]]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Returns for each cluster how many others must precede it, and which follow it."""
    find = fusion.order.find
    before = dict.fromkeys(groups, 0)
    after: dict[int, list[int]] = {group: [] for group in groups}
    for group, numbers in groups.items():
        earlier = {find(other) for number in numbers for other in fusion.dependences.before[number]}
        earlier.discard(group)
        before[group] = len(earlier)
        for other in earlier:
            after[other].append(group)
    return before, after


def _sorted_by(key: Callable[[int], int], before: dict[int, int], after: dict[int, list[int]]) -> list[int]:
    """Returns a topological order in which, of all that could be next, the one with the smallest key is."""
    waiting = dict(before)
    ready = [(key(group), group) for group, count in waiting.items() if count == 0]
    heapify(ready)
    found: list[int] = []
    while ready:
        _, group = heappop(ready)
        found.append(group)
        for other in after[group]:
            waiting[other] -= 1
            if waiting[other] == 0:
                heappush(ready, (key(other), other))
    if len(found) != len(before):
        raise ValueError(f"{len(before) - len(found)} definitions wait for each other: the graph has a cycle")
    return found


def _sizes(dependences: Dependences, graph: Graph) -> dict[str, int]:
    """Returns the bytes of each storage, by the name of its oldest value."""
    sizes: dict[str, int] = {}
    for name, root in dependences.storage.items():
        if name == root:
            tensor = graph.values[name].type
            sizes[name] = count_elements(tensor) * tensor.dtype.bytes
    return sizes


def peak_bytes(groups: Sequence[Sequence[int]], dependences: Dependences, sizes: dict[str, int]) -> int:
    """Returns the most bytes alive at once when groups of nodes run in this order, each as one kernel.

    Values that only one group touches stay in registers; inputs live until their last use.
    """
    storage, nodes = dependences.storage, dependences.nodes
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, numbers in enumerate(groups):
        for number in numbers:
            node = nodes[number]
            for name in node.result_names:
                first.setdefault(storage[name], position)
                last[storage[name]] = position
            for name in node.reads:
                last[storage[name]] = position
    end = len(groups)
    for name in dependences.kept:
        last[storage[name]] = end
    deltas = [0] * (end + 2)
    for root, position in last.items():
        definer = dependences.definer.get(root)
        begin = first.get(root, 0) if definer is not None else 0
        if begin == position and definer is not None and not nodes[definer].is_host:
            continue
        deltas[begin] += sizes[root]
        deltas[position + 1] -= sizes[root]
    peak = live = 0
    for delta in deltas:
        live += delta
        peak = max(peak, live)
    return peak
