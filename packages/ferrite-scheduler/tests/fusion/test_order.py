"""The topological order under merging, against plain reachability."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_scheduler.fusion.topological_order import MergeOrder


def random_dag(rng: Random, count: int, density: float):
    before = [{} for _ in range(count)]
    after = [{} for _ in range(count)]
    for b in range(count):
        for a in range(b):
            if rng.random() < density:
                before[b][a] = None
                after[a][b] = None
    return before, after


def reaches_through_third(after, groups, a, b):
    """Returns whether a path leads from group ``a`` to group ``b`` with another group in between."""

    def following(group):
        return {groups[y] for x in range(len(groups)) if groups[x] == group for y in after[x]} - {group}

    stack, seen = [group for group in following(a) if group != b], set()
    while stack:
        group = stack.pop()
        if group == b:
            return True
        if group not in seen and group != a:
            seen.add(group)
            stack.extend(following(group))
    return False


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 14), st.sampled_from([0.1, 0.25, 0.5]))
def test_merges_exactly_what_has_no_third_between_and_stays_sorted(seed, count, density):
    rng = Random(seed)
    before, after = random_dag(rng, count, density)
    order = MergeOrder(before, after, budget=10_000)
    for _ in range(2 * count):
        a, b = rng.randrange(count), rng.randrange(count)
        if order.find(a) == order.find(b):
            continue
        groups = [order.find(x) for x in range(count)]
        ra, rb = order.find(a), order.find(b)
        blocked = reaches_through_third(after, groups, ra, rb) or reaches_through_third(after, groups, rb, ra)
        witness = order.merge(a, b)
        assert (witness is not None) == blocked
        if witness is not None:
            assert order.find(witness) not in (ra, rb)
        place = {group: at for at, group in enumerate(order.ordered())}
        assert len(place) == len({order.find(x) for x in range(count)})
        for x in range(count):
            for y in after[x]:
                first, second = order.find(x), order.find(y)
                assert first == second or place[first] < place[second]


def test_an_exhausted_budget_refuses():
    count = 200
    before = [{i - 1: None} if i else {} for i in range(count)]
    after = [{i + 1: None} if i + 1 < count else {} for i in range(count)]
    before[-1][0] = None
    after[0][count - 1] = None
    assert MergeOrder(before, after, budget=10).merge(0, count - 1) == -1
    witness = MergeOrder(before, after, budget=1000).merge(0, count - 1)
    assert witness is not None
    assert 0 < witness < count - 1


def test_a_hub_with_many_successors_is_cheap_to_merge_with_its_last():
    count = 2000
    before = [{0: None} if i else {} for i in range(count)]
    after = [dict.fromkeys(range(1, count))] + [{} for _ in range(count - 1)]
    order = MergeOrder(before, after, budget=100)
    assert order.merge(0, count - 1) is None
    assert order.visits < 20


def test_many_merges_at_one_place_keep_labels_apart():
    count = 300
    empty = [{} for _ in range(count)]
    order = MergeOrder(empty, empty, budget=10)
    for i in range(1, count):
        assert order.merge(0, i) is None
    assert list(order.ordered()) == [order.find(0)]


def test_paths_besides_one_class() -> None:
    """Of 0 -> 1 -> 3 and 0 -> 2 -> 3 one is left without 1, and none without 1 where 2 is gone."""
    before: list[dict[int, None]] = [{}, {0: None}, {0: None}, {1: None, 2: None}]
    after: list[dict[int, None]] = [{1: None, 2: None}, {3: None}, {3: None}, {}]
    assert MergeOrder(before, after, budget=10).path_between(0, 3, besides=1) == 2
    before[3].pop(2)
    after[2].clear()
    order = MergeOrder(before, after, budget=10)
    assert (order.path_between(0, 3), order.path_between(0, 3, besides=1)) == (1, None)
