"""A topological order of clusters that is kept while clusters are merged.

Merging two clusters is possible iff no path joins them through a third. The order bounds that search to the clusters
between the two, and the search runs from both ends at once, so it stops when the smaller side is known. Only that
side is then moved: either what follows the first cluster goes right behind the second, or what precedes the second
goes right before the first. This is the affected-region idea of Pearce and Kelly (A dynamic topological sort
algorithm for directed acyclic graphs, 2007) on labels in a linked list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

_GAP = 1 << 40
_PLAIN = -1


class MergeOrder:
    """Union-find over nodes with a topological order of the classes.

    Attributes:
        visits: edges walked by all searches so far.
        budget: most edges that one search may walk from each side.
    """

    def __init__(self, before: Sequence[dict[int, None]], after: Sequence[dict[int, None]], budget: int) -> None:
        total = len(before)
        self.budget = budget
        self.visits = 0
        self._parent = list(range(total))
        self._before = [dict(edges) for edges in before]
        self._after = [dict(edges) for edges in after]
        self._label = [_GAP * (number + 1) for number in range(total)]
        # A ring through a sentinel at index `total`.
        self._next = [number + 1 for number in range(total)] + [0]
        self._previous = [total, *range(total)]

    def find(self, number: int) -> int:
        """Returns the representative of a node's class."""
        parent = self._parent
        root = number
        while parent[root] != root:
            root = parent[root]
        while parent[number] != root:
            parent[number], number = root, parent[number]
        return root

    def ordered(self) -> Iterator[int]:
        """Yields the representatives of all classes in topological order."""
        end = len(self._parent)
        at = self._next[end]
        while at != end:
            yield at
            at = self._next[at]

    def path_between(self, first: int, second: int, besides: int | None = None) -> int | None:
        """Returns a class on a path between two classes; None if there is none, -1 if the budget ran out.

        A path through ``besides`` is none.
        """
        without = () if besides is None else (self.find(besides),)
        witness, _, _ = self._search(*self._sorted(first, second), without)
        return witness

    def merge(self, first: int, second: int, *, is_bounded: bool = True) -> int | None:
        """Merges two classes; returns None, or, where that is impossible, what `path_between` returns.

        A search that is not bounded by the budget is for classes of which it is known that no path joins them.
        """
        low, high = self._sorted(first, second)
        witness, region, forward = self._search(low, high, is_bounded=is_bounded)
        if witness is not None:
            return witness
        keep, gone = (high, low) if forward else (low, high)
        moving = sorted(region, key=self._label.__getitem__)
        self._unlink(gone)
        for number in moving:
            self._unlink(number)
        self._insert(moving, keep if forward else self._previous[keep])
        self._join(keep, gone)
        return None

    def _sorted(self, first: int, second: int) -> tuple[int, int]:
        a, b = self.find(first), self.find(second)
        return (a, b) if self._label[a] < self._label[b] else (b, a)

    def _search(
        self, low: int, high: int, without: tuple[int, ...] = (), *, is_bounded: bool = True
    ) -> tuple[int | None, set[int], bool]:
        """Returns ``(witness, region, forward)``: see `path_between`.

        The region is all that follows ``low`` or, not ``forward``, precedes ``high``, of what lies between the two.
        Paths through classes of ``without`` are none.
        """
        ahead, behind = {low, *without}, {high, *without}
        up = self._walk(self._after, low, high, ahead)
        down = self._walk(self._before, high, low, behind)
        for _ in range(self.budget) if is_bounded else count():
            for walk, seen, other, forward in ((up, ahead, behind, True), (down, behind, ahead, False)):
                found = next(walk, None)
                self.visits += 1
                if found is None:
                    seen.discard(low if forward else high)
                    return None, seen, forward
                if found in other:
                    return found, set(), forward
                if found < _PLAIN:
                    return _PLAIN - 1 - found, set(), forward
        return -1, set(), True

    def _walk(self, edges: list[dict[int, None]], start: int, goal: int, seen: set[int]) -> Iterator[int]:
        """Walks from ``start`` over the classes strictly between it and ``goal``.

        Yields each class when first seen, `_PLAIN` for other edges, and ``_PLAIN - 1 - at`` for an edge that reaches
        ``goal`` from a third class ``at``.
        """
        label, find = self._label, self.find
        low, high = sorted((label[start], label[goal]))
        stack = [start]
        while stack:
            at = stack.pop()
            for stale in edges[at]:
                other = find(stale)
                if other == goal:
                    yield _PLAIN - 1 - at if at != start else _PLAIN
                elif other not in seen and low < label[other] < high:
                    seen.add(other)
                    stack.append(other)
                    yield other
                else:
                    yield _PLAIN

    def _unlink(self, number: int) -> None:
        before, after = self._previous[number], self._next[number]
        self._next[before], self._previous[after] = after, before

    def _insert(self, numbers: list[int], anchor: int) -> None:
        """Links ``numbers`` right behind ``anchor``."""
        end = len(self._parent)
        after = self._next[anchor]
        low = self._label[anchor] if anchor != end else 0
        high = self._label[after] if after != end else low + _GAP * (len(numbers) + 2)
        step = (high - low) // (len(numbers) + 1)
        for position, number in enumerate(numbers):
            self._label[number] = low + step * (position + 1)
            self._next[anchor], self._previous[number] = number, anchor
            anchor = number
        self._next[anchor], self._previous[after] = after, anchor
        if step < 1:
            self._relabel()

    def _relabel(self) -> None:
        for position, number in enumerate(list(self.ordered())):
            self._label[number] = _GAP * (position + 1)

    def _join(self, keep: int, gone: int) -> None:
        self._parent[gone] = keep
        for edges in (self._before, self._after):
            small, large = sorted((edges[keep], edges[gone]), key=len)
            large.update(small)
            large.pop(keep, None)
            large.pop(gone, None)
            edges[keep], edges[gone] = large, {}
