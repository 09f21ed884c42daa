"""Prints how the scheduler's time per definition grows with the length of the graph: it should not.

    python benchmarks/host/scheduler_scaling.py [--sizes 100,1000,20000] [--profile]

A row per size: definitions, kernels, seconds, microseconds per definition, and per definition the pairs judged and
the dependence edges walked, which do not depend on the machine. Times are the best of several runs, of more for short
graphs: whatever else the machine does makes them longer. Needs ferrite-ir and ferrite-scheduler only.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from time import process_time

sys.path.extend(map(str, Path(__file__).resolve().parents[2].glob("packages/*/src")))

from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.analysis.dependences import dependences_of
from ferrite_scheduler.analysis.nodes import nodes_of
from ferrite_scheduler.fusion.greedy import fuse
from ferrite_scheduler.simulation.synthetic_graphs import layered_graph

SIZES = (100, 300, 1000, 3000, 10000, 20000)
RUNS, MEASURED = (3, 20), 10_000
"""Fewest and most runs of a size, and definitions to schedule in all of them."""


def measure(definitions: int) -> tuple[int, int, float]:
    """Returns definitions, kernels and CPU seconds of scheduling one new graph, with the garbage collector off."""
    graph = layered_graph(definitions)
    gc.collect()
    gc.disable()
    begin = process_time()
    result = schedule(graph)
    seconds = process_time() - begin
    gc.enable()
    return len(graph.definitions), len(result.kernels), seconds


def count(definitions: int) -> tuple[float, float]:
    """Returns pairs judged and edges walked per definition."""
    graph = layered_graph(definitions)
    counters = fuse(dependences_of(graph, nodes_of(graph)), Target(), Policy()).counters
    return counters.judged / len(graph.definitions), counters.edges / len(graph.definitions)


def profile(definitions: int) -> None:
    """Prints where the time goes."""
    import cProfile
    import pstats

    graph = layered_graph(definitions)
    with cProfile.Profile() as recorded:
        schedule(graph)
    pstats.Stats(recorded).sort_stats("tottime").print_stats(30)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    schedule(layered_graph(50))
    if arguments.profile:
        profile(int(arguments.sizes.split(",")[0]))
        return
    print(f"{'definitions':>11} {'kernels':>8} {'seconds':>8} {'us/definition':>14} {'judged':>7} {'edges':>7}")
    for size in map(int, arguments.sizes.split(",")):
        runs = min(max(MEASURED // size, RUNS[0]), RUNS[1])
        definitions, kernels, seconds = min((measure(size) for _ in range(runs)), key=lambda found: found[2])
        judged, edges = count(size)
        each = 1e6 * seconds / definitions
        print(f"{definitions:>11} {kernels:>8} {seconds:>8.3f} {each:>14.1f} {judged:>7.2f} {edges:>7.1f}", flush=True)


if __name__ == "__main__":
    main()
