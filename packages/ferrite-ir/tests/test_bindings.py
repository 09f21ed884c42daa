"""Sizes that a graph learns while it runs: text, rules, meaning."""

from __future__ import annotations

import pytest

from ferrite_ir import EvaluationError, Tensor, dtype_named, evaluate, parse_graph, verify
from ferrite_ir.language.bindings import Binding, bindings_of, check_symbols, given_symbols, results_that_bind
from ferrite_ir.passes import PIPELINE

FOUND = """
graph @main(x: f32[n], k: i64[]) -> (y, z) where m: size >= 0, n: size, u0: size >= 0, u1: size >= 0 <= 8 {
  places: i64[u0] = extern test.places(x) effects
  extern ferrite.read(size(u1), k) effects
  extern ferrite.let(size(m), size(min(u0, u1))) effects
  extern ferrite.check(["and", ["ge", size(u1), 0], ["le", size(u1), 8]], "k is wrong", [["k", size(u1)]]) effects
  y: f32[]        = reduce sum [ | r < u0] x[at(places[r], n)]
  z: f32[m]       = loop [i < m] x[at(places[i], n)]
}
"""


def places(x: Tensor) -> Tensor:
    found = [place for (place,) in x.points() if x.read((place,)) > 0]
    return Tensor(dtype_named("i64"), (len(found),), (1,), 0, list(found))


def test_text_is_read_back() -> None:
    graph = parse_graph(FOUND)
    assert parse_graph(str(graph)) == graph
    assert not verify(graph)


def test_who_binds_what() -> None:
    graph = parse_graph(FOUND)
    assert given_symbols(graph) == {"n"}
    assert bindings_of(graph) == {0: (Binding("u0", 0, 0),), 1: (Binding("u1"),), 2: (Binding("m"),)}
    assert results_that_bind(graph) == {"places": (Binding("u0", 0, 0),)}
    assert [sorted(check_symbols(definition)) for definition in graph.definitions] == [[], [], [], ["u1"], [], []]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("x", [[1.0, -1.0, 2.0, 3.0], [-1.0], [-2.0, 5.0]])
def test_meaning_is_that_of_the_values_of_the_run(x: list[float], k: int) -> None:
    kept = [value for value in x if value > 0]
    for graph in (parse_graph(FOUND), PIPELINE.run(parse_graph(FOUND))):
        y, z = evaluate(graph, [x, k], externs={"test.places": places})
        assert (y, z) == (sum(kept), kept[:k])


@pytest.mark.parametrize("k", [9, -1])
def test_a_check_that_does_not_hold_says_so(k: int) -> None:
    with pytest.raises(EvaluationError, match=f"k is wrong: k is {k}"):
        evaluate(parse_graph(FOUND), [[1.0], k], externs={"test.places": places})


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('["lt", size(n), 3]', False),
        ('["ne", size(n), 4]', True),
        ('["not", ["eq", size(n), 3]]', False),
        ('["or", ["gt", size(n), 5], ["eq", size(2*n), 6]]', True),
    ],
)
def test_conditions(condition: str, *, holds: bool) -> None:
    graph = parse_graph(f"""
    graph @main(x: f32[n]) -> (x) where n: size {{
      extern ferrite.check({condition}, "no", []) effects
    }}""")
    if holds:
        evaluate(graph, [[1.0, 2.0, 3.0]])
    else:
        with pytest.raises(EvaluationError, match="no"):
            evaluate(graph, [[1.0, 2.0, 3.0]])


def test_a_size_is_not_used_before_it_is_known() -> None:
    first, second = "  y: f32[u0] = loop [i < u0] f32(1.0)\n", "  p: i64[u0] = extern test.places(x) effects\n"
    text = "graph @main(x: f32[4]) -> (y) where u0: size >= 0 {{\n{0}{1}}}"
    assert not verify(parse_graph(text.format(second, first)))
    (problem,) = verify(parse_graph(text.format(first, second)))
    assert problem.rule == "V24"
    assert "u0" in problem.message
