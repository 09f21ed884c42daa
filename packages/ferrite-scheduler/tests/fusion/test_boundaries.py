"""Where a schedule has boundaries, and what is said about them."""

from __future__ import annotations

from dataclasses import replace

from checks import APART
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Graph, Origin
from ferrite_scheduler import boundaries, schedule

TEXT = """
graph @f(x: f32[1024, 64], w: f32[64, 64]) -> (c, r, k) {
  s: f32[64]       = reduce sum [j < 64 | i < 1024] x[i, j]
  c: f32[64]       = scan sum [i < 64] along i s[i]
  r: f32[1024, 64] = sort [i < 1024, j < 64] along j x[i, j]
  e: f32[64, 64]   = extern aten.clone.default(w)
  k: f32[64, 64]   = loop [i < 64, j < 64] add(e[i, j], s[j])
}"""


def placed(graph: Graph) -> Graph:
    """Returns a graph whose definitions come from lines of a file, in order."""
    made = [
        replace(each, origins=(Origin(f"aten.op{line}", "", f"m.py:{line}", "/project/m.py"),))
        for line, each in enumerate(graph.definitions)
    ]
    return replace(graph, definitions=tuple(made))


def test_every_boundary_has_its_rule_or_its_library_call() -> None:
    plan = schedule(placed(parse_graph(TEXT)), policy=APART)
    found = {(each.first.value, each.second.value): each for each in boundaries(plan)}
    scan = found["s", "c"]
    assert (scan.rule, scan.title, scan.values) == ("F03", "iteration spaces match", ("s",))
    assert scan.numbers == (("first", "64|1024"), ("second", "1|64"))
    assert "(first 64|1024, second 1|64)" in str(scan)
    assert [side.origins[0].location for side in (scan.first, scan.second)] == ["/project/m.py:0", "/project/m.py:1"]
    library = found["e", "k"]
    assert (library.first.kernel, library.rule) == (None, "")
    assert library.reason == "aten.clone.default is an extern call, which no kernel joins"
    assert "aten.op3 (/project/m.py:3)" in str(library)


def test_kernels_that_read_the_same_are_told_where_a_rule_was_asked() -> None:
    plan = schedule(parse_graph(TEXT), policy=APART)
    (siblings,) = [each for each in boundaries(plan) if {each.first.value, each.second.value} == {"s", "r"}]
    assert siblings.values == ()
    assert siblings.rule.startswith(("F", "P"))


def test_one_kernel_has_no_boundary() -> None:
    text = "graph @f(x: f32[8, 8]) -> (y) {\n  m: f32[8] = reduce max [i < 8 | j < 8] x[i, j]\n"
    assert boundaries(schedule(parse_graph(text + "  y: f32[8, 8] = loop [i < 8, j < 8] sub(x[i, j], m[i])\n}"))) == ()
