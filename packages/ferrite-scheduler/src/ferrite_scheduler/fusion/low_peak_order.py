"""Memory-aware scheduling: an order of items that keeps the peak of memory low.

Finding the best order is NP-hard (it is a pebble game with weights: Sethi, "Complete register allocation problems",
1975). Here it is done in three steps, each of which keeps the best order so far:

1. *Candidates.* The order that is given; a depth-first one, in which what an item needs is computed right before it,
   operands that need most memory first (Sethi and Ullman 1970; Liu, "An application of generalized tree pebbling to
   sparse matrix factorization", 1987: best on trees); and a beam search, or of very many items a list schedule that
   looks ahead: it runs the item, or the item with all that it still waits for, that raises the peak least and then
   leaves least behind.
2. *Windows.* A few items around the peak are ordered exactly, by a best-first search over the sets of items that have
   run (as in Ahn et al., "Ordering chaos: memory-aware scheduling of irregularly wired neural networks for edge
   devices", 2020). An item that neither raises the peak nor leaves more behind than there was runs at once: it is
   never better later, since what it frees only grows. That is repeated as long as it lowers the peak.
3. Of few items the window is all of them: the result is the best order there is.

    memory  |        __        what lives while an item runs: all that was made and is still to be read, and its
            |   __  |  |__     results; the peak is the largest of these
            |__|  |_|     |__
            +----------------- items in order
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest
from itertools import islice

from ferrite_scheduler.model.policy import Policy


@dataclass(frozen=True, slots=True)
class Trace:
    """What an item does to memory: the storages that it makes, and all that it touches; what stays in it is neither.

    A storage that nobody frees (a result of the graph, an input that the caller holds) is made, but not touched.
    """

    made: frozenset[str]
    touched: frozenset[str]


@dataclass(frozen=True, slots=True)
class Items:
    """Items to be ordered.

    Attributes:
        before, after: by item, those that must run before it, and after it.
        traces: what each does to memory.
        sizes: bytes of each storage.
    """

    before: Mapping[int, Sequence[int]]
    after: Mapping[int, Sequence[int]]
    traces: Mapping[int, Trace]
    sizes: Mapping[str, int]

    def made(self, item: int) -> int:
        """Returns the bytes of what an item makes."""
        return sum(self.sizes[root] for root in self.traces[item].made)

    def touching(self) -> Counter[str]:
        """Returns how many items touch each storage."""
        return Counter(root for trace in self.traces.values() for root in trace.touched)

    def given(self) -> int:
        """Returns the bytes of what is there before any item has run."""
        made = {root for trace in self.traces.values() for root in trace.made}
        return sum(self.sizes[root] for root in self.touching() if root not in made)

    def least_peak(self) -> int:
        """Returns a bound that no order is below: what is there first, what is there last, what an item needs."""
        freed = set(self.touching())
        ends = sum(self.sizes[root] for trace in self.traces.values() for root in trace.made if root not in freed)
        each = (sum(self.sizes[root] for root in trace.made | trace.touched) for trace in self.traces.values())
        return max(self.given(), ends, max(each, default=0))


def profile(order: Sequence[int], items: Items) -> list[int]:
    """Returns the bytes alive while each item of an order runs."""
    left, live, found = items.touching(), items.given(), []
    for item in order:
        live += items.made(item)
        found.append(live)
        live -= _run(item, items, left)
    return found


def peak_of(order: Sequence[int], items: Items) -> int:
    """Returns the most bytes alive at once."""
    return max(profile(order, items), default=0)


def low_peak_order(order: Sequence[int], items: Items, policy: Policy) -> list[int]:
    """Returns an order of items whose peak of memory is low, the given one where nothing lower is found.

    Args:
        order: of all items, topological.
        items: what they need and do.
        policy: bounds the search: ``ordered_exactly`` and ``order_states`` to ``order_choices``.
    """
    least = items.least_peak()
    best = list(order)
    if peak_of(best, items) <= least:
        return best
    is_narrow = policy.order_states < policy.order_beam * len(best)
    other = _list_schedule(order, items, policy) if is_narrow else _beam(order, items, least, policy.order_states)
    for candidate in (_depth_first(order, items), other):
        best = min(best, candidate, key=lambda each: peak_of(each, items))
    for _ in range(policy.order_windows):
        lower = _with_exact_window(best, items, least, policy.ordered_exactly, policy.order_states)
        if lower is None:
            break
        best = lower
    return best


def _run(item: int, items: Items, left: Counter[str]) -> int:
    """Takes an item from those that are left to touch its storages; returns the bytes of those that it frees."""
    freed = 0
    for root in items.traces[item].touched:
        left[root] -= 1
        if not left[root]:
            freed += items.sizes[root]
    return freed


# --- candidates ------------------------------------------------------------------------------------------------------


def _depth_first(order: Sequence[int], items: Items) -> list[int]:
    """Returns an order in which items follow what they need, operands that need most memory beyond themselves first."""
    kept = {item: items.made(item) for item in order}
    need: dict[int, int] = {}
    operands: dict[int, list[int]] = {}
    for item in order:
        operands[item] = sorted(items.before[item], key=lambda other: kept[other] - need[other])
        held = most = 0
        for other in operands[item]:
            most = max(most, held + need[other])
            held += kept[other]
        need[item] = max(most, held + kept[item])
    found: dict[int, None] = {}
    for last in (item for item in order if not items.after[item]):
        pending = [last]
        while pending:
            item = pending[-1]
            missing = [other for other in operands[item] if other not in found]
            if item in found or not missing:
                found.setdefault(pending.pop())
            else:
                pending.extend(reversed(missing))
    return list(found)


def _list_schedule(order: Sequence[int], items: Items, policy: Policy) -> list[int]:
    """Returns an order made step by step, of what raises the peak least and then leaves least behind.

    A step is an item that could run, or one behind it with all that it still waits for.
    """
    number = {item: position for position, item in enumerate(order)}
    waiting = {item: len(items.before[item]) for item in order}
    ready = sorted((item for item, count in waiting.items() if not count), key=number.__getitem__)
    left, live, peak = items.touching(), items.given(), 0
    found: dict[int, None] = {}
    while ready:
        steps = _steps(ready, found, items, number, policy)
        rated = [(*_rise_of(step, items, left, live, peak), position, step) for position, step in enumerate(steps)]
        for item in min(rated)[-1]:
            live += items.made(item)
            peak = max(peak, live)
            live -= _run(item, items, left)
            found[item] = None
            ready.remove(item)
            for other in items.after[item]:
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
        ready.sort(key=number.__getitem__)
    return list(found)


def _steps(
    ready: Sequence[int], done: Mapping[int, None], items: Items, number: Mapping[int, int], policy: Policy
) -> Iterator[tuple[int, ...]]:
    """Yields what may run next: single items, and those that wait for them, each with all that it waits for."""
    seen: set[int] = set()
    for item in islice(ready, policy.order_choices):
        yield (item,)
        for other in islice(items.after[item], policy.order_choices):
            if other in seen:
                continue
            seen.add(other)
            chain = _chain(other, done, items, policy.order_chain)
            if chain is not None:
                yield tuple(sorted(chain, key=number.__getitem__))


def _chain(item: int, done: Mapping[int, None], items: Items, longest: int) -> set[int] | None:
    """Returns an item and all that it still waits for; None where that is more than so many items."""
    chain, pending = {item}, [item]
    while pending:
        for other in items.before[pending.pop()]:
            if other not in done and other not in chain:
                chain.add(other)
                pending.append(other)
        if len(chain) > longest:
            return None
    return chain


def _rise_of(step: Sequence[int], items: Items, left: Counter[str], live: int, peak: int) -> tuple[int, int]:
    """Returns the peak with a step run next, and the bytes that it leaves behind beyond those that are alive."""
    taken: Counter[str] = Counter()
    now = live
    for item in step:
        now += items.made(item)
        peak = max(peak, now)
        for root in items.traces[item].touched:
            taken[root] += 1
            if taken[root] == left[root]:
                now -= items.sizes[root]
    return peak, now - live


# --- windows ---------------------------------------------------------------------------------------------------------


def _with_exact_window(order: list[int], items: Items, least: int, window: int, states: int) -> list[int] | None:
    """Returns an order with the items around its first peak ordered exactly, None where that does not lower it."""
    heights = profile(order, items)
    peak = max(heights, default=0)
    if peak <= least:
        return None
    top = heights.index(peak)
    for begin in dict.fromkeys(
        max(0, min(top - back, len(order) - window)) for back in (window // 2, window - 1, 0, window // 4)
    ):
        found = _exact(order, begin, min(begin + window, len(order)), items, least, states)
        if found is not None:
            return [*order[:begin], *found, *order[begin + len(found) :]]
    return None


@dataclass(slots=True)
class _Window:
    """Neighbours in an order, as bits of a set of those that have run.

    Attributes:
        members: the items.
        needs: by item, the set of members that must run before it.
        made: by item, the bytes of what it makes.
        closes: by item, the storages that it may be the last to touch: bytes, and the set of members that touch it.
        live: bytes alive before any of them runs.
        bound: the most bytes alive at once in the order that they have.
    """

    members: list[int]
    needs: list[int]
    made: list[int]
    closes: list[list[tuple[int, int]]]
    live: int
    bound: int

    @classmethod
    def of(cls, order: Sequence[int], begin: int, end: int, items: Items) -> _Window:
        """Returns the items from a position of an order up to another one."""
        left, live = items.touching(), items.given()
        for item in order[:begin]:
            live += items.made(item)
            live -= _run(item, items, left)
        members = list(order[begin:end])
        bit = {item: 1 << position for position, item in enumerate(members)}
        users: Counter[str] = Counter()
        touching: dict[str, int] = {}
        for item in members:
            for root in items.traces[item].touched:
                users[root] += 1
                touching[root] = touching.get(root, 0) | bit[item]
        closes = [
            [(items.sizes[root], touching[root]) for root in items.traces[item].touched if users[root] == left[root]]
            for item in members
        ]
        needs = [sum(bit.get(other, 0) for other in items.before[item]) for item in members]
        bound = max(profile(order, items)[begin:end], default=0)
        return cls(members, needs, list(map(items.made, members)), closes, live, bound)

    def next_of(self, done: int, live: int, peak: int) -> Iterator[tuple[int, int, int]]:
        """Yields the members that may run after a set of them: which, and the bytes alive while and after each runs."""
        found = []
        for position, needs in enumerate(self.needs):
            bit = 1 << position
            if done & bit or needs & ~done:
                continue
            most = live + self.made[position]
            if most >= self.bound:
                continue
            rest = most - sum(size for size, users in self.closes[position] if users & ~done == bit)
            if most <= peak and rest <= live:
                yield position, most, rest
                return
            found.append((position, most, rest))
        yield from found


def _exact(order: Sequence[int], begin: int, end: int, items: Items, floor: int, states: int) -> list[int] | None:
    """Returns the items between two positions in their best order; None where theirs is, or the search is too long.

    Below ``floor``, which no order of all items is, peaks are equally good.
    """
    window = _Window.of(order, begin, end, items)
    complete = (1 << len(window.members)) - 1
    came_from: dict[int, tuple[int, int]] = {}
    # The set that has run with the lowest peak so far comes first, of those the one that has got furthest.
    heap = [(max(window.live, floor), 0, 0, window.live, (0, -1))]
    while heap and len(came_from) < states:
        peak, _, done, live, last = heappop(heap)
        if done in came_from:
            continue
        came_from[done] = last
        if done == complete:
            return _path(came_from, complete, window.members)
        for position, most, rest in window.next_of(done, live, peak):
            after = done | 1 << position
            if after not in came_from:
                heappush(heap, (max(peak, most), -after.bit_count(), after, rest, (done, position)))
    return None


def _beam(order: Sequence[int], items: Items, floor: int, states: int) -> list[int]:
    """Returns the items in an order found by a beam search, the given one where that is no lower.

    Item by item it goes on with the sets of items that have run with the lowest peak so far, of those the ones that
    leave least behind: as many as ``states`` in all allows.
    """
    window = _Window.of(order, 0, len(order), items)
    came_from: dict[int, tuple[int, int]] = {}
    kept = [(max(window.live, floor), window.live, 0)]
    for _ in order:
        found: dict[int, tuple[int, int, int]] = {}
        for peak, live, done in kept:
            for position, most, rest in window.next_of(done, live, peak):
                after = done | 1 << position
                state = (max(peak, most), rest, after)
                if after not in found or state < found[after]:
                    found[after] = state
                    came_from[after] = (done, position)
        kept = nsmallest(max(1, states // len(order)), found.values())
    return _path(came_from, kept[0][2], window.members) if kept else list(order)


def _path(came_from: Mapping[int, tuple[int, int]], last: int, members: Sequence[int]) -> list[int]:
    """Returns the members in the order in which a search came to a set of them."""
    found = []
    while last:
        last, position = came_from[last]
        found.append(members[position])
    return found[::-1]
