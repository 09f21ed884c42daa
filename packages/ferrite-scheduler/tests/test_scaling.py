"""Scheduling is near-linear: the work per definition, counted and not timed, does not grow with the graph."""

from __future__ import annotations

import pytest

from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.analysis.dependences import dependences_of
from ferrite_scheduler.analysis.nodes import nodes_of
from ferrite_scheduler.fusion.greedy import fuse
from ferrite_scheduler.simulation.synthetic_graphs import layered_graph


def work_per_definition(definitions: int) -> dict[str, float]:
    graph = layered_graph(definitions)
    counters = fuse(dependences_of(graph, nodes_of(graph)), Target(), Policy()).counters
    count = len(graph.definitions)
    return {
        "pairs": counters.pairs / count,
        "judged": counters.judged / count,
        "edges": counters.edges / count,
        "merged": counters.merged / count,
    }


@pytest.mark.parametrize("definitions", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_work_per_definition_is_flat(definitions):
    small, large = work_per_definition(100), work_per_definition(definitions)
    for kind, amount in small.items():
        assert large[kind] <= 1.3 * amount, kind
    assert large["judged"] < 2


def test_a_value_read_by_everyone_does_not_cost_more():
    from ferrite_ir import parse_graph

    def judged(count: int) -> float:
        body = "\n".join(f"v{k}: f32[{8 + k}] = loop [i < {8 + k}] mul(x{k}[i], s[])" for k in range(count))
        inputs = ", ".join(f"x{k}: f32[{8 + k}]" for k in range(count))
        outputs = ", ".join(f"v{k}" for k in range(count))
        graph = parse_graph(f"graph @f(s: f32[], {inputs}) -> ({outputs}) {{\n{body}\n}}")
        counters = fuse(dependences_of(graph, nodes_of(graph)), Target(), Policy()).counters
        return (counters.judged + counters.edges) / count

    assert judged(400) <= 1.3 * judged(100) + 1


def test_a_long_chain_does_not_recurse():
    from ferrite_ir import parse_graph

    body = "\n".join(f"v{k + 1}: f32[6] = extern aten.clone.default(v{k})" for k in range(5000))
    graph = parse_graph(f"graph @f(v0: f32[6]) -> (v5000) {{\n{body}\n}}")
    assert len(schedule(graph).steps) == 2 * 5000
