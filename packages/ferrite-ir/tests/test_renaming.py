"""Definitions under other names, and the powers of two near a number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ferrite_ir import Graph, parse_graph
from ferrite_ir.language.graph import Computed
from ferrite_ir.language.powers_of_two import next_power_of_two, previous_power_of_two
from ferrite_ir.passes.renaming import Renaming

BEFORE = """graph @f(x: f32[4, 6], i: i64[4]) -> (s, c, p, o) mutates (x: u) {
  s: f32[4] = reduce sum [d0 < 4 | r0 < 6] x[d0, r0]
  l: f32[4, 6] = loop [d0 < 4, d1 < 6] add(x[wrap(i[d0], 4), d1], s[d0])
  p: f32[4, 6] = scan sum [d0 < 4, d1 < 6] along d1 mul(l[d0, d1], x[d0, d1])
  o: f32[4, 6] = sort [d0 < 4, d1 < 6] along d1 l[d0, d1]
  c: f32[4, 4] = contract [d0 < 4, d1 < 4 | r0 < 6] l[d0, r0] * x[d1, r0]
  u: f32[4, 6] = update add x [d0 < 4, d1 < 6] at [wrap(i[d0], 4), d1] l[d0, d1] if lt(s[d0], f32(1.0))
}"""
AFTER = """graph @f(x1: f32[4, 6], i1: i64[4]) -> (s1, c1, p1, o1) mutates (x1: u1) {
  s1: f32[4] = reduce sum [d0 < 4 | r0 < 6] x1[d0, r0]
  l1: f32[4, 6] = loop [d0 < 4, d1 < 6] add(x1[wrap(i1[d0], 4), d1], s1[d0])
  p1: f32[4, 6] = scan sum [d0 < 4, d1 < 6] along d1 mul(l1[d0, d1], x1[d0, d1])
  o1: f32[4, 6] = sort [d0 < 4, d1 < 6] along d1 l1[d0, d1]
  c1: f32[4, 4] = contract [d0 < 4, d1 < 4 | r0 < 6] l1[d0, r0] * x1[d1, r0]
  u1: f32[4, 6] = update add x1 [d0 < 4, d1 < 6] at [wrap(i1[d0], 4), d1] l1[d0, d1] if lt(s1[d0], f32(1.0))
}"""


def computed(graph: Graph) -> tuple[Computed, ...]:
    return graph.definitions


def test_every_kind_of_definition_is_renamed() -> None:
    before, after = parse_graph(BEFORE), parse_graph(AFTER)
    renaming = Renaming({name: f"{name}1" for name in before.values})
    assert tuple(map(renaming.definition, computed(before))) == computed(after)


def test_what_has_no_other_name_stays() -> None:
    graph = parse_graph(BEFORE)
    renaming = Renaming({"nobody": "somebody"})
    assert tuple(map(renaming.definition, computed(graph))) == computed(graph)
    assert all(renaming.reads(definition) is definition for definition in graph.definitions)


def test_reads_alone_are_renamed() -> None:
    before, after = parse_graph(BEFORE), parse_graph(AFTER)
    update, renamed = computed(before)[-1], computed(after)[-1]
    read = Renaming({name: f"{name}1" for name in before.values}).reads(update)
    assert (read.body, read.indices, read.condition) == (renamed.body, renamed.indices, renamed.condition)
    assert (read.result, read.target) == (update.result, update.target)


@given(st.integers(-3, 1 << 70))
def test_powers_of_two_are_the_nearest(value: int) -> None:
    above, below = next_power_of_two(value), previous_power_of_two(value)
    assert above & (above - 1) == 0 == below & (below - 1)
    assert above // 2 < max(1, value) <= above
    assert below <= max(1, value) < 2 * below
