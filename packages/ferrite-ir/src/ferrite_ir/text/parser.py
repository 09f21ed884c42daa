"""Reads graphs and modules from their text form.

``parse_graph(str(graph)) == graph``, with bodies that are the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping

from ferrite_ir.language import sizes
from ferrite_ir.language.graph import Definition, Graph, Module, Output, Value, View
from ferrite_ir.language.sizes import Size

from .definition_parser import DefinitionReader
from .expression_parser import parse_index, parse_scalar, read_integer, read_listed
from .tokens import ParseError, Words

__all__ = [
    "GraphReader",
    "ParseError",
    "parse_graph",
    "parse_index",
    "parse_module",
    "parse_scalar",
    "place_definitions",
]


def parse_graph(text: str, source: str = "") -> Graph:
    """Returns the graph written as ``text``.

    Args:
        text: one graph.
        source: name of the file it came from, for messages.

    Raises:
        ParseError: the text is no graph, or more than one; the message shows the line, the column and the place.
    """
    words = Words(text, source)
    graph = GraphReader(words).read()
    if words.next.kind != "end":
        raise words.error(f"expected the end of the text after the graph, found {words.describe()}")
    return graph


def parse_module(text: str, source: str = "") -> Module:
    """Returns the module written as ``text``: one or more graphs, the first one the entry.

    Raises:
        ParseError: the text is not one or more graphs, or two have one name; the message shows the place.
    """
    words = Words(text, source)
    graphs: dict[str, Graph] = {}
    while words.next.kind != "end" or not graphs:
        token = words.next
        graph = GraphReader(words).read()
        if graph.name in graphs:
            raise words.error(f"two graphs are called @{graph.name}", token)
        graphs[graph.name] = graph
    return Module(tuple(graphs.values()))


def place_definitions(text: str) -> dict[tuple[str, int], int]:
    """Returns the line (from 1) on which each definition of each graph of a text starts, by graph name and position."""
    words = Words(text)
    positions: dict[tuple[str, int], int] = {}
    while words.next.kind != "end":
        reader = GraphReader(words)
        graph = reader.read()
        positions.update({(graph.name, i): text.count("\n", 0, at) + 1 for i, at in enumerate(reader.offsets)})
    return positions


class GraphReader(DefinitionReader):
    """Reads one graph, whose values and symbols are known from there on.

    Attributes:
        offsets: where in the text each of its definitions starts.
    """

    __slots__ = ("offsets",)

    def __init__(self, words: Words) -> None:
        super().__init__(words)
        self.offsets: list[int] = []

    def read(self) -> Graph:
        """Returns the graph that stands next."""
        words = self.words
        words.expect("graph")
        words.expect("@")
        name = words.name("the name of the graph")
        self.symbols = self._declared_symbols()
        words.expect("(")
        given = read_listed(words, ")", self._read_input)
        inputs = tuple(value for value in given if isinstance(value, Value))
        numbers = tuple(size for size in given if not isinstance(size, Value))
        for value in inputs:
            self.values[value.name] = value
        words.expect("->")
        after_outputs = self._skip_parentheses()
        mutations: tuple[tuple[str, str], ...] = ()
        if words.accept("mutates"):
            mutations = self.read_pairs()
        device = words.name("a device type") if words.accept("on") else "cuda"
        if words.accept("where"):
            self._read_symbols()
        words.expect("{")
        definitions: list[Definition] = []
        while not words.sees("}"):
            self.offsets.append(words.next.offset)
            definitions.append(self.read_definition())
        closing = words.position
        words.position = after_outputs
        outputs = self._read_outputs()
        words.position = closing
        words.expect("}")
        return Graph(name, inputs, tuple(definitions), outputs, mutations, device, numbers)

    def _declared_symbols(self) -> Mapping[str, Size]:
        """Returns the symbols in the ``where`` part, which stands behind the types that use them."""
        words, start = self.words, self.words.position
        found: Mapping[str, Size] = {}
        while words.next.kind != "end" and (self.sees_strides() or not words.sees("{")):
            if words.take().text == "where":
                found = self._read_symbols()
                break
        words.position = start
        return found

    def _read_symbols(self) -> Mapping[str, Size]:
        words = self.words
        found: dict[str, Size] = {}
        while True:
            name = words.name("a symbolic size")
            words.expect(":")
            words.expect("size")
            low = read_integer(words) if words.accept(">=") else None
            high = read_integer(words) if words.accept("<=") else None
            found[name] = sizes.symbol(name, low, high, read_integer(words) if words.accept("~") else None)
            if not words.accept(","):
                return found

    def _read_input(self) -> Value | tuple[str, Size]:
        words = self.words
        if not words.sees("size", 2):
            return self.read_value()
        name = words.name("a size")
        words.expect(":")
        token = words.expect("size")
        if not words.accept("=") and name not in self.symbols:
            raise words.error(f"{name!r} is no symbolic size of the where part; write 'name: size = expression'", token)
        return name, self.symbols[name] if words.tokens[words.position - 1] is token else self.read_size()

    def _skip_parentheses(self) -> int:
        """Moves past a parenthesised part and returns where it starts."""
        words = self.words
        start = words.position
        words.expect("(")
        depth = 1
        while depth:
            if words.next.kind == "end":
                raise words.error("the outputs have no closing ')'")
            text = words.take().text
            depth += (text == "(") - (text == ")")
        return start

    def _read_outputs(self) -> tuple[Output, ...]:
        self.words.expect("(")
        return tuple(read_listed(self.words, ")", self._read_output))

    def _read_output(self) -> Output:
        found = self.read_argument()
        if isinstance(found, (View, bool, int, float, sizes.Symbolic)) or found is None:
            return found
        raise self.words.error(
            "an output is a view of a value, a number or none", self.words.tokens[self.words.position - 1]
        )
