"""What must come before what, and what shares storage."""

from __future__ import annotations

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler.dependences import dependences_of, is_opaque, nodes_of, overwrites_all, readable_homes


def dependences(text):
    graph = parse_graph(text)
    return dependences_of(graph, nodes_of(graph))


def before(found, name):
    """Returns the names whose definitions must precede that of a name."""
    number = found.definer[name]
    return {found.nodes[other].result_names[0] for other in found.before[number]}


VERSIONS = """
graph @f(x: f32[4], y: f32[4]) -> (a, b, c) mutates (x: x2) {
  a: f32[4]  = loop [i < 4] neg(x[i])
  x1: f32[4] = update set x [i < 4] at [i] y[i]
  b: f32[4]  = loop [i < 4] neg(x1[i])
  x2: f32[4] = update set x1 [i < 4] at [i] y[i]
  c: f32[4]  = loop [i < 4] neg(y[i])
}"""


def test_readers_of_old_contents_come_before_the_write():
    found = dependences(VERSIONS)
    assert before(found, "a") == set()
    assert before(found, "x1") == {"a"}
    assert before(found, "b") == {"x1"}
    assert before(found, "x2") == {"x1", "b"}
    assert before(found, "c") == set()


def test_versions_share_the_storage_of_the_first():
    found = dependences(VERSIONS)
    assert {found.storage[name] for name in ("x", "x1", "x2")} == {"x"}
    assert found.versions == {"x": ["x", "x1", "x2"]}
    assert found.kept == {"a", "b", "c", "x2"}


def test_aliases_order_like_the_value_they_alias():
    found = dependences("""
    graph @f(x: f32[4], y: f32[4]) -> (a, b) mutates (x: x1) {
      v: f32[4]  = extern ferrite.alias(x) aliases (v: x)
      a: f32[4]  = loop [i < 4] neg(v[i])
      x1: f32[4] = update set x [i < 4] at [i] y[i]
      b: f32[4]  = loop [i < 4] exp(v[i])
    }""")
    assert before(found, "x1") == {"v", "a"}
    assert before(found, "b") == {"v", "x1"}


def test_effects_keep_program_order():
    found = dependences("""
    graph @f(x: f32[4]) -> (a, b, c) {
      a: f32[4] = extern lib.one.default(x) effects
      b: f32[4] = extern lib.two.default(x)
      c: f32[4] = extern lib.three.default(x) effects
    }""")
    assert before(found, "c") == {"a"}
    assert before(found, "b") == set()


def node(text, name):
    found = dependences(text)
    return found.nodes[found.definer[name]]


def accesses(body, shape="6, 4", dims="i < 6, j < 4"):
    made = node(f"graph @f(x: f32[{shape}], y: f32[24]) -> (z) {{\nz: f32[6, 4] = loop [{dims}] {body}\n}}", "z")
    return [touch.access for touch in made.loads]


def test_same_element_same_access_and_a_shift_differs():
    assert accesses("add(x[i, j], y[i*4 + j])")[:1] == accesses("y[i*4 + j]")
    assert accesses("x[i, j]") != accesses("x[-i + 5, j]")
    assert accesses("x[i, j]") != accesses("x[0, j]")


@pytest.mark.parametrize("body", ["y[at(cast.i64(y[i]), 24)]", "y[(i*j0 + j) // 5]".replace("i*j0", "i*4")])
def test_what_is_no_sum_of_digits_is_opaque(body):
    assert any(map(is_opaque, accesses(body)))


def test_bytes_count_distinct_elements():
    body = "add(x[i, j], cast.f32(b[j]))"
    made = node(f"graph @f(x: f32[6, 4], b: bf16[4]) -> (z) {{\nz: f32[6, 4] = loop [i < 6, j < 4] {body}\n}}", "z")
    assert {touch.name: touch.bytes for touch in made.loads} == {"x": 96, "b": 8}


def test_only_full_plain_updates_may_be_read_back():
    head = "graph @f(x: f32[4], y: f32[4]) -> () mutates (x: x1) {\nx1: f32[4] = update "
    whole = node(head + "set x [i < 4] at [i] y[i]\n}", "x1")
    part = node(head + "set x [i < 3] at [i + 1] y[i]\n}", "x1")
    added = node(head + "add x [i < 4] at [i] y[i]\n}", "x1")
    some = node(head + "set x [i < 4] at [i] y[i] if lt(y[i], f32(0.0))\n}", "x1")
    assert overwrites_all(whole)
    assert readable_homes(whole) != (None,)
    for other in (part, added, some):
        assert not overwrites_all(other)
        assert readable_homes(other) == (None,)
