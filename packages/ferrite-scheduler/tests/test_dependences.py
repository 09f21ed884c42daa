"""What must come before what, and what shares storage."""

from __future__ import annotations

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler import schedule
from ferrite_scheduler.analysis.dependences import dependences_of
from ferrite_scheduler.analysis.nodes import is_opaque, nodes_of, overwrites_all, readable_homes
from ferrite_scheduler.model.schedule import CallExtern, Launch


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


def test_quotients_and_remainders_that_add_up_in_memory_are_digits():
    (node,) = dependences(
        "graph @f(x: f32[5, 3, 7, 7]{147, 1, 21, 3}) -> (a) { a: f32[16, 3] = "
        "reduce sum [p < 16, c < 3 | r < 15] masked(lt(index.i64(p*15 + r), i64(245)), "
        "x[(p*15 + r) // 49, c, ((p*15 + r) // 7) % 7, (p*15 + r) % 7], f32(0.0)) }"
    ).nodes
    (touch,) = node.loads
    assert touch.access == (0, ((1, 15, 3), (15, 3, 1), (45, 16, 45)))
    assert not touch.rigid


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


FOUND = """
graph @f(x: f32[8], w: f32[8]) -> (a, d) where u0: size >= 0, u1: size >= 0 {
  m: bool[8]  = loop [i < 8] gt(x[i], f32(0.0))
  p: i64[u0]  = extern test.places(m) effects
  k: i64[]    = loop [] i64(3)
  extern ferrite.read(size(u1), k) effects
  extern ferrite.check(["le", size(u1), 8], "too many", []) effects
  a: f32[u0]  = loop [i < u0] f32(1.0)
  b: f32[8]   = loop [i < 8] mul(w[i], w[i])
  c: f32[8]   = loop [i < 8] add(w[i], cast.f32(index.i64(u1)))
  d: f32[]    = reduce sum [ | i < 8] add(b[i], c[i])
}"""


def test_what_uses_a_size_comes_after_what_tells_it():
    found = dependences(FOUND)
    read, check = 3, 4
    assert before(found, "a") == {"p"}  # though it does not read the positions
    assert before(found, "b") == set()
    assert set(found.before[found.definer["c"]]) == {read, check}
    assert {found.definer["k"], found.definer["p"]} <= set(found.before[read])
    assert read in found.before[check]


def test_a_result_that_nobody_reads_is_kept_for_its_size():
    plan = schedule(parse_graph(FOUND))
    calls = [step for step in plan.steps if isinstance(step, CallExtern)]
    assert [step.definition.target for step in calls] == ["test.places", "ferrite.read", "ferrite.check"]
    assert calls[0].results == ("p",)
    steps = [str(step) for step in plan.steps]
    allocated = next(place for place, step in enumerate(steps) if step.startswith("a = alloc"))
    assert allocated > next(place for place, step in enumerate(steps) if "test.places" in step)
    launches = [(place, plan.kernels[step.kernel]) for place, step in enumerate(plan.steps) if isinstance(step, Launch)]
    after = next(place for place, step in enumerate(steps) if "ferrite.check" in step)
    assert all(place > after for place, kernel in launches if "u1" in str(kernel))


def test_what_reads_a_value_comes_after_the_checks_of_its_extents():
    """The type of ``p`` says 3, whatever the call returns: nothing reads it before that is known."""
    found = dependences("""
    graph @f(x: f32[8]) -> (a) where u0: size >= 0 {
      p: i64[3]  = extern test.places(x) effects
      extern ferrite.size(size(u0), p, 0) effects
      extern ferrite.check(["eq", size(u0), 3], "not three", []) effects
      a: i64[3]  = loop [i < 3] neg(p[i])
    }""")
    assert set(found.before[found.definer["a"]]) == {0, 1, 2}
