"""How close orders of execution come to the lowest peak of memory, on graphs where the order matters.

    python benchmarks/host/memory_order.py [--graphs 40] [--seed 0]

Graphs are drawn: 20 to 60 items, each of which reads the results of up to four before it, of sizes from 1 to 64. Each
is ordered as the scheduler orders it, with the defaults of its policy, and by a long search: a beam of a hundred times
as many sets of items, from the program's order and from random ones, and windows of 20 items. Printed are the peaks of
the program's order, the scheduler's and the long search's, their ratio, and the time of the first search.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.extend(map(str, Path(__file__).resolve().parents[2].glob("packages/*/src")))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages" / "ferrite-scheduler" / "tests"))

from crossed_items import crossed_items
from ferrite_scheduler import Policy
from ferrite_scheduler.fusion.low_peak_order import Items, low_peak_order, peak_of


def shuffled(items: Items, rng: random.Random) -> list[int]:
    """Returns a topological order at random."""
    waiting = {item: len(before) for item, before in items.before.items()}
    ready, found = [item for item, count in waiting.items() if not count], []
    while ready:
        item = ready.pop(rng.randrange(len(ready)))
        found.append(item)
        for other in items.after[item]:
            waiting[other] -= 1
            ready += [other] if not waiting[other] else []
    return found


def long_search(items: Items, rng: random.Random) -> int:
    """Returns the lowest peak that is found in much time."""
    policy = Policy(ordered_exactly=20, order_states=100 * Policy().order_states)
    starts = [list(range(len(items.traces))), *(shuffled(items, rng) for _ in range(2))]
    return min(peak_of(low_peak_order(start, items, policy), items) for start in starts)


def main() -> None:
    """Prints a line for each graph, and the ratios of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    policy, ratios = Policy(), []
    print("graph  items  program  scheduler  long search  ratio     ms")
    for number in range(arguments.graphs):
        rng = random.Random(f"{arguments.seed}/{number}")
        items = crossed_items(rng, rng.randint(20, 60), rng.randint(1, 4))
        program = range(len(items.traces))
        begun = time.perf_counter()
        order = low_peak_order(program, items, policy)
        spent = (time.perf_counter() - begun) * 1e3
        found = peak_of(order, items)
        lowest = min(found, long_search(items, rng))
        ratios.append(found / lowest)
        row = f"{peak_of(program, items):8} {found:10} {lowest:12} {ratios[-1]:6.3f} {spent:6.1f}"
        print(f"{number:5} {len(program):6} {row}", flush=True)
    print(f"ratio: mean {statistics.mean(ratios):.3f}, worst {max(ratios):.3f}")


if __name__ == "__main__":
    main()
