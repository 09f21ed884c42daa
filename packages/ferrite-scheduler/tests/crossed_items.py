"""Items that make and touch memory, drawn at random: graphs where the order of execution matters."""

from __future__ import annotations

import random

from ferrite_scheduler.fusion.low_peak_order import Items, Trace

_SIZES = (1, 2, 4, 8, 16, 64)
_NEAR = 12
"""Items before one, the nearest ones, whose results it may read."""


def crossed_items(rng: random.Random, count: int, most: int) -> Items:
    """Returns so many items, each of which reads at most ``most`` results of those before it.

    What nobody reads is a result of the graph, and stays; what reads nothing reads the graph's one input.
    """
    before: dict[int, list[int]] = {item: [] for item in range(count)}
    after: dict[int, list[int]] = {item: [] for item in range(count)}
    for item in range(count):
        near = range(max(0, item - _NEAR), item)
        before[item] = sorted(rng.sample(near, min(len(near), rng.randint(0, most))))
        for other in before[item]:
            after[other].append(item)
    sizes = {f"s{item}": rng.choice(_SIZES) for item in range(count)} | {"x": 8}
    traces = {}
    for item in range(count):
        read = {f"s{other}" for other in before[item]} or {"x"}
        own = {f"s{item}"} if after[item] else set()
        traces[item] = Trace(frozenset({f"s{item}"}), frozenset(read | own))
    return Items(before, after, traces, sizes)
