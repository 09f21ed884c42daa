"""Printing and reading: bindings keep text linear, names are escaped, errors say where."""

from __future__ import annotations

import pytest

from ferrite_ir.language.dtypes import F32, I64
from ferrite_ir.language.graph import Graph, Loop, Origin, Reduction, TensorType, Value, whole
from ferrite_ir.language.index import Dim, indirect
from ferrite_ir.language.scalar import apply, cast, load
from ferrite_ir.text.expression_parser import parse_scalar
from ferrite_ir.text.parser import GraphReader, ParseError, parse_graph, parse_module
from ferrite_ir.text.printer import definition_text, graph_text, scalar_text
from ferrite_ir.text.tokens import KEYWORDS, Words, spelled

I = Dim("i", 4)
X = Value("x", TensorType(F32, (4,)))


def test_shared_expressions_are_printed_once() -> None:
    node = load("x", (I.index,), F32)
    for _ in range(200):
        node = apply("add", node, node)
    text = scalar_text(node)
    assert len(text) < 10_000
    assert parse_scalar(text, [X], [I]) is node


def test_deep_expressions_are_cut() -> None:
    node = load("x", (I.index,), F32)
    for _ in range(5000):
        node = apply("exp", node)
    assert parse_scalar(scalar_text(node), [X], [I]) is node


def test_sharing_through_indices() -> None:
    k = Value("k", TensorType(I64, (4,)))
    place = apply("add", load("k", (I.index,), I64), load("k", (I.index,), I64))
    first = load("x", (indirect(place, 4),), F32)
    node = apply("add", first, cast(place, F32))
    assert scalar_text(node) == "let t0 = add(k[i], k[i]) add(x[at(t0, 4)], cast.f32(t0))"
    assert parse_scalar(scalar_text(node), [X, k], [I]) is node


@pytest.mark.parametrize("word", sorted(KEYWORDS - {"_"}))
def test_any_name_can_be_used(word: str) -> None:
    value, dim = Value(word, TensorType(F32, (4,))), Dim(word, 4)
    result = Value(f"{word}_", TensorType(F32, (4,)))
    loop = Loop((result,), (dim,), (load(word, (dim.index,), F32),))
    graph = Graph(word, (value,), (loop,), (whole(value), whole(result)))
    assert spelled(word) == f"${word}"
    assert parse_graph(str(graph)) == graph


def test_origins_are_comments() -> None:
    loop = Loop(
        (Value("y", X.type),),
        (I,),
        (load("x", (I.index,), F32),),
        (Origin("aten.clone", "m", "f.py:3"), Origin("aten.relu")),
    )
    assert definition_text(loop) == "y: f32[4] = loop [i < 4] x[i]"
    assert definition_text(loop, origins=True) == "y: f32[4] = loop [i < 4] x[i]  # aten.clone (f.py:3), aten.relu"
    graph = Graph("g", (X,), (loop,), ())
    assert parse_graph(graph_text(graph, origins=True)) == graph


def test_long_headers_are_broken() -> None:
    inputs = tuple(Value(f"input_{i}", X.type) for i in range(30))
    text = str(Graph("g", inputs, (), ()))
    assert text.count("\n") == 32
    assert parse_graph(text).inputs == inputs


def test_error_shows_line_column_and_place() -> None:
    with pytest.raises(ParseError) as raised:
        parse_graph("graph @f(x: f32[4]) -> (x) {\n  y: f32[4] = loop [i < 4] add(x[i])\n}", "f.fir")
    assert str(raised.value) == (
        "f.fir:2:28: add: takes 2 operands, got 1\n"
        "    y: f32[4] = loop [i < 4] add(x[i])\n"
        "                             ^"
    )
    assert (raised.value.line, raised.value.column) == (2, 28)


BROKEN = [
    ("", "expected 'graph', found the end of the text"),
    ("graph @f() -> () {\n} x", "expected the end of the text after the graph"),
    ("graph @f() -> (", "the outputs have no closing"),
    ("graph @f(x: f32[4]{1, 2}) -> () {\n}", "1 extents and 2 strides"),
    ("graph @f() -> () where n: size >= -1 {\n}", "expected an integer"),
    ("graph @f(x: f32[4]) -> (z) {\n}", "unknown value 'z'"),
    ('graph @f(x: f32[4]) -> ("s") {\n}', "an output is a view of a value, a number or none"),
    (
        "graph @f(x: f32[4]) -> () {\n  y: f32[4] = reduce mean [i < 4 | j < 4] x[i]\n}",
        "unknown combine 'mean'; known: sum",
    ),
    (
        "graph @f(x: f32[4]) -> (y) {\n  y: f32[] = fold max [ | j < 4] x[j]\n}",
        "'fold' is the old word for a reduction: write 'reduce'",
    ),
    (
        "graph @f(x: f32[4]) -> () {\n  y: f32[4] = loop [i < 4 | j < 4] x[i]\n}",
        "only a reduction and a contract have dims behind",
    ),
    ("graph @f(x: f32[4]) -> () {\n  _ = loop [i < 4] x[i]\n}", "only the results of an extern call can be left out"),
    ("graph @f(x: f32[4]) -> () {\n  y: f32[4] = scan sum [i < 4] along j x[i]\n}", "unknown dim 'j'; known here: i"),
    ("graph @f(x: f32[4]) -> () {\n  y: f32[4] = update put x [i < 4] at [i] x[i]\n}", "unknown update mode 'put'"),
    ("graph @f(x: f32[4]) -> () {\n  y: f32[4] = loop [i < 4] let t = x[i] let t = x[i] t\n}", "'t' is bound twice"),
    (
        "graph @f(x: f32[4]) -> () {\n  y: f32[4] = loop [i < 4] t\n}",
        "unknown local binding 't'; a value is read as t[...]",
    ),
    ("graph @f(x: f32[4]) -> () {\n  y: f32[4] = loop [i < 4] i32(1.5)\n}", "1.5 is not an i32"),
    (
        "graph @f(x: f32[4]) -> () {\n  y: f32[4] = loop [i < 4] x[at(x[i], 4)]\n}",
        "an indirect index is an integer, not f32",
    ),
    ("graph @f(x: f32[4]) -> () {\n  y: f32[4] = loop [i < 4] x[i // i]\n}", "which is no size"),
    ("graph @f(x: f32[4]) -> () {\n  y: f32[4] = loop [i < 4] x[i // 0]\n}", "divisors are positive"),
    (
        "graph @f(x: f32[4]) -> () {\n  y: f32[4] = loop [i < 4] " + "exp(" * 300 + "x[i]" + ")" * 300 + "\n}",
        "nested deeper than 200",
    ),
    ("graph @f(x: f32[4]) -> () ;", "unexpected character ';'"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=range(len(BROKEN)))
def test_broken_text(text: str, message: str) -> None:
    with pytest.raises(ParseError) as raised:
        parse_graph(text)
    assert message in raised.value.reason


def test_two_graphs_of_one_name() -> None:
    with pytest.raises(ParseError, match="two graphs are called @f"):
        parse_module("graph @f() -> () {\n}\ngraph @f() -> () {\n}")


def test_definitions_are_read_beside_graphs() -> None:
    """Texts of other packages hold them: what a name means goes on from the graph that was read before."""
    words = Words(
        "graph @f(x: f32[n, 4]) -> (x) where n: size { } y: f32[n] = reduce max [i < n | j < 4] x[i, j] [2*n]"
    )
    reader = GraphReader(words)
    graph = reader.read()
    assert reader.values == graph.values
    definition = reader.read_definition()
    assert isinstance(definition, Reduction)
    assert reader.values["y"] is definition.results[0]
    words.expect("[")
    assert reader.read_size() == 2 * definition.dims[0].size
    words.expect("]")
    with pytest.raises(ParseError, match="expected a definition"):
        GraphReader(Words("y: f32[3] = spin x")).read_definition()
