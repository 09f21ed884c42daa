"""What may run where, and the bytes alive, while items move through the order of execution."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Graph
from ferrite_scheduler.analysis.dependences import dependences_of
from ferrite_scheduler.analysis.nodes import nodes_of
from ferrite_scheduler.memory.footprint import storage_bytes
from ferrite_scheduler.memory.positions import Positions

CHAIN = """
graph @f(x: f32[4], y: f32[8]) -> (c, e) {
  a: f32[4] = extern aten.clone.default(x)
  b: f32[8] = extern aten.clone.default(y)
  c: f32[4] = extern aten.clone.default(a)
  d: f32[16] = extern aten.clone.default(b)
  e: f32[8] = extern aten.clone.default(d)
}"""


def positions_of(graph: Graph, released: tuple[str, ...] = ()) -> Positions:
    nodes = nodes_of(graph)
    return Positions(nodes, graph, dependences_of(graph, nodes), released)


def drawn_graph(rng: Random) -> Graph:
    """Returns a graph of extern calls, each of one value before it."""
    names, lines = ["x0", "x1"], []
    for number in range(rng.randint(3, 12)):
        source = rng.choice(names)
        lines.append(f"v{number}: f32[{rng.choice((2, 8, 32))}] = extern aten.clone.default({source})")
        names.append(f"v{number}")
    made = [name for name in names if name.startswith("v")]
    outputs = ", ".join(rng.sample(made, rng.randint(1, 3)))
    return parse_graph(f"graph @f(x0: f32[8], x1: f32[32]) -> ({outputs}) {{\n" + "\n".join(lines) + "\n}")


def peak_of(graph: Graph, order: list[list[int]], released: tuple[str, ...]) -> int:
    """Returns the most bytes alive where the definitions of each place run at once."""
    touched = [
        {
            name
            for k in place
            for name in (*(v.name for v in graph.definitions[k].args), graph.definitions[k].results[0].name)
        }
        for place in order
    ]
    kept = set(graph.output_names) | {value.name for value in graph.inputs if value.name not in released}
    alive = [0] * len(order)
    for name, value in graph.values.items():
        places = [number for number, names in enumerate(touched) if name in names]
        if not places:
            continue
        begin = 0 if name.startswith("x") else places[0]
        end = len(order) - 1 if name in kept else places[-1]
        for number in range(begin, end + 1):
            alive[number] += storage_bytes(value.type)
    return max(alive)


def test_items_go_as_far_as_what_they_need() -> None:
    positions = positions_of(parse_graph(CHAIN))
    assert [positions.earliest(k) for k in range(5)] == [0, 0, 1, 2, 4]
    assert [positions.latest(k) for k in range(5)] == [1, 2, 4, 3, 4]


def test_released_inputs_go_after_their_last_use() -> None:
    held, freed = positions_of(parse_graph(CHAIN)), positions_of(parse_graph(CHAIN), ("x", "y"))
    assert freed.peak < held.peak


@pytest.mark.parametrize("released", [(), ("x0", "x1")])
@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_peak_is_that_of_the_order(released: tuple[str, ...], seed: int) -> None:
    rng = Random(seed)
    graph = drawn_graph(rng)
    positions = positions_of(graph, released)
    order = [[k] for k in range(len(graph.definitions))]
    assert positions.peak == peak_of(graph, order, released)
    for _ in range(4):
        source = rng.choice([k for k, place in enumerate(order) if place])
        targets = [
            k for k in range(positions.earliest(source), positions.latest(source) + 1) if k != source and order[k]
        ]
        if not targets:
            continue
        target = rng.choice(targets)
        foreseen = positions.peak_after(source, target)
        positions.move(source, target)
        order[target], order[source] = order[target] + order[source], []
        assert positions.peak == peak_of(graph, order, released)
        assert foreseen <= positions.peak
        assert positions.peak_after(target, target) <= positions.peak
