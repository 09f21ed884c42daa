"""Reads graphs and modules from their text form.

``parse_graph(str(graph)) == graph``, with bodies that are the same objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ferrite_ir.language import sizes
from ferrite_ir.language.attend import KINDS
from ferrite_ir.language.combine_functions import LEFT, RIGHT, CombineFunction
from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.graph import (
    UPDATE_MODES,
    Attend,
    Call,
    Contract,
    Definition,
    Extern,
    For,
    Graph,
    If,
    Loop,
    Module,
    Output,
    Reduction,
    Scan,
    Sort,
    Tag,
    TensorType,
    Update,
    Value,
    View,
    While,
    whole,
)
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size

from .attention_parser import read_dim, read_weights
from .expression_parser import (
    Scope,
    parse_index,
    parse_scalar,
    read_bindings,
    read_dtype,
    read_indices,
    read_integer,
    read_listed,
    read_number,
    read_scalar,
    read_size,
)
from .tokens import ParseError, Words

__all__ = [
    "DefinitionReader",
    "ParseError",
    "parse_graph",
    "parse_index",
    "parse_module",
    "parse_scalar",
    "place_definitions",
]

Results = tuple[Value | None, ...]
Domain = tuple[tuple[Dim, ...], tuple[Dim, ...]]


def parse_graph(text: str, source: str = "") -> Graph:
    """Returns the graph written as ``text``.

    Args:
        text: one graph.
        source: name of the file it came from, for messages.

    Raises:
        ParseError: the text is no graph, or more than one; the message shows the line, the column and the place.
    """
    words = Words(text, source)
    graph = _GraphReader(words).read()
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
        graph = _GraphReader(words).read()
        if graph.name in graphs:
            raise words.error(f"two graphs are called @{graph.name}", token)
        graphs[graph.name] = graph
    return Module(tuple(graphs.values()))


def place_definitions(text: str) -> dict[tuple[str, int], int]:
    """Returns the line (from 1) on which each definition of each graph of a text starts, by graph name and position."""
    words = Words(text)
    positions: dict[tuple[str, int], int] = {}
    while words.next.kind != "end":
        reader = _GraphReader(words)
        graph = reader.read()
        positions.update({(graph.name, i): text.count("\n", 0, at) + 1 for i, at in enumerate(reader.offsets)})
    return positions


class _GraphReader:
    """Reads one graph; holds the names seen so far."""

    __slots__ = ("offsets", "symbols", "values", "words")

    def __init__(self, words: Words) -> None:
        self.words = words
        self.values: dict[str, Value] = {}
        self.symbols: Mapping[str, Size] = {}
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
            mutations = self._read_pairs()
        device = words.name("a device type") if words.accept("on") else "cuda"
        if words.accept("where"):
            self._read_symbols()
        words.expect("{")
        definitions: list[Definition] = []
        while not words.sees("}"):
            self.offsets.append(words.next.offset)
            definitions.append(self._read_definition())
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
        while words.next.kind != "end" and (self._is_strides() or not words.sees("{")):
            if words.take().text == "where":
                found = self._read_symbols()
                break
        words.position = start
        return found

    def _is_strides(self) -> bool:
        """Returns whether the brace that stands next belongs to a type (it follows a bracket at once)."""
        words = self.words
        previous = words.tokens[words.position - 1]
        return previous.text == "]" and previous.offset + 1 == words.next.offset

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
            return self._read_value()
        name = words.name("a size")
        words.expect(":")
        token = words.expect("size")
        if not words.accept("=") and name not in self.symbols:
            raise words.error(f"{name!r} is no symbolic size of the where part; write 'name: size = expression'", token)
        return name, self.symbols[name] if words.tokens[words.position - 1] is token else self._read_size()

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

    def _scope(self, dims: tuple[Dim, ...] = ()) -> Scope:
        return Scope(self.values, self.symbols, {dim.name: dim for dim in dims})

    def _read_size(self) -> Size:
        return read_size(self.words, self._scope())

    def _read_value(self) -> Value:
        name = self.words.name("a value")
        self.words.expect(":")
        return Value(name, self._read_type())

    def _read_type(self) -> TensorType:
        dtype, shape, strides = self._read_strided()
        device = self.words.take().text if self.words.accept("@") else ""
        return TensorType(dtype, shape, strides, device)

    def _read_strided(self) -> tuple[DType, tuple[Size, ...], tuple[Size, ...]]:
        words = self.words
        dtype = read_dtype(words)
        words.expect("[")
        shape = tuple(read_listed(words, "]", self._read_size))
        strides = TensorType(dtype, shape).strides
        if words.sees("{") and self._is_strides():
            token = words.take()
            strides = tuple(read_listed(words, "}", self._read_size))
            if len(strides) != len(shape):
                raise words.error(f"{len(shape)} extents and {len(strides)} strides", token)
        return dtype, shape, strides

    def _read_known(self) -> Value:
        token = self.words.next
        name = self.words.name("a value")
        found = self.values.get(name)
        if found is None:
            raise self.words.error(f"unknown value {name!r}; a value is defined before it is used", token)
        return found

    def _read_names(self) -> tuple[str, ...]:
        self.words.expect("(")
        return tuple(read_listed(self.words, ")", lambda: self.words.name("a value")))

    def _read_pairs(self) -> tuple[tuple[str, str], ...]:
        words = self.words
        words.expect("(")

        def pair() -> tuple[str, str]:
            first = words.name("a value")
            words.expect(":")
            return first, words.name("a value")

        return tuple(read_listed(words, ")", pair))

    def _read_callee(self) -> str:
        self.words.expect("@")
        return self.words.name("the name of a graph")

    def _read_view(self) -> View:
        words = self.words
        value = self._read_known()
        if not words.accept("as"):
            return whole(value)
        dtype, shape, strides = self._read_strided()
        offset = self._read_size() if words.accept("at") else 0
        return View(value.name, dtype, shape, strides, offset)

    def _read_outputs(self) -> tuple[Output, ...]:
        self.words.expect("(")
        return tuple(read_listed(self.words, ")", self._read_output))

    def _read_output(self) -> Output:
        found = self._read_argument()
        if isinstance(found, (View, bool, int, float, sizes.Symbolic)) or found is None:
            return found
        raise self.words.error(
            "an output is a view of a value, a number or none", self.words.tokens[self.words.position - 1]
        )

    def _read_argument(self) -> Any:
        words = self.words
        token = words.next
        if token.kind == "string":
            return json.loads(words.take().text)
        if token.kind == "number" or token.text in ("-", "nan", "inf"):
            return read_number(words)
        if token.text in _WORDS and token.kind == "name":
            words.take()
            return _WORDS[token.text]
        if words.accept("["):
            return tuple(read_listed(words, "]", self._read_argument))
        if words.sees("(", 1) and token.text in ("tag", "complex", "size"):
            words.take()
            words.expect("(")
            found = self._read_tagged(token.text)
            words.expect(")")
            return found
        return self._read_view()

    def _read_tagged(self, kind: str) -> Any:
        words = self.words
        if kind == "size":
            return self._read_size()
        if kind == "complex":
            real = read_number(words)
            words.expect(",")
            return complex(real, read_number(words))
        name = words.name("the kind of the tag")
        words.expect(",")
        if words.next.kind != "string":
            raise words.error(f"expected a quoted string, found {words.describe()}")
        return Tag(name, json.loads(words.take().text))

    def _read_definition(self) -> Definition:
        words = self.words
        results: Results = ()
        if not (words.sees("extern") and not words.sees(":", 1)):
            results = self._read_results()
            words.expect("=")
        token = words.take()
        reader = _DEFINITIONS.get(token.text)
        if reader is None:
            if token.text == "fold":
                raise words.error("'fold' is the old word for a reduction: write 'reduce'", token)
            raise words.error(f"expected a definition ({', '.join(_DEFINITIONS)}), found {token.text!r}", token)
        definition = reader(self, results)
        for value in results:
            if value is not None:
                self.values.setdefault(value.name, value)
        return definition

    def _read_results(self) -> Results:
        words = self.words
        results: list[Value | None] = []
        while True:
            results.append(None if words.accept("_") else self._read_value())
            if not words.accept(","):
                return tuple(results)

    def _named(self, results: Results) -> tuple[Value, ...]:
        named = tuple(value for value in results if value is not None)
        if len(named) != len(results):
            raise self.words.error("only the results of an extern call can be left out with '_'")
        return named

    def _single(self, results: Results) -> Value:
        if len(results) != 1 or results[0] is None:
            raise self.words.error(f"this definition has one result, not {len(results)}")
        return results[0]

    def _read_domain(self) -> Domain:
        token = self.words.next
        dims, reduced, others = self._read_parts()
        if others:
            raise self.words.error("only an attention has dims behind a second '|'", token)
        return dims, reduced

    def _read_parts(self) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[Dim, ...]]:
        """Returns the dims of a domain, in three parts between ``|``, those that are not there empty."""
        words = self.words
        parts: tuple[list[Dim], ...] = ([], [], [])
        position, target = 0, parts[0]
        words.expect("[")
        while not words.accept("]"):
            if position < len(parts) - 1 and words.accept("|"):
                position += 1
                target = parts[position]
                continue
            name = words.name("a dim")
            words.expect("<")
            target.append(Dim(name, self._read_size()))
            if not (words.sees("]") or words.sees("|")):
                words.expect(",")
        first, second, third = map(tuple, parts)
        return first, second, third

    def _read_plain_domain(self) -> tuple[Dim, ...]:
        token = self.words.next
        dims, reduced = self._read_domain()
        if reduced:
            raise self.words.error("only a reduction and a contract have dims behind '|'", token)
        return dims

    def _read_bodies(self, scope: Scope) -> tuple[Scalar, ...]:
        words = self.words
        read_bindings(words, scope)
        if words.accept("("):
            return tuple(read_listed(words, ")", lambda: read_scalar(words, scope)))
        return (read_scalar(words, scope),)

    def _read_along(self, dims: tuple[Dim, ...]) -> Dim:
        self.words.expect("along")
        return read_dim(self.words, dims)

    def _read_combine(self) -> str:
        token = self.words.take()
        if token.text not in COMBINES:
            raise self.words.error(f"unknown combine {token.text!r}; known: {', '.join(COMBINES)}", token)
        return token.text

    def _read_function(self, results: Results) -> CombineFunction:
        """Returns a user's combine: its states have the types of the results, and it knows no value of the graph."""
        kinds = [TensorType(value.type.dtype, ()) for value in self._named(results)]
        states = [Value(f"{side}{position}", kind) for side in (LEFT, RIGHT) for position, kind in enumerate(kinds)]
        return CombineFunction(self._read_bodies(Scope({state.name: state for state in states})))

    def read_loop(self, results: Results) -> Loop:
        """Returns the rest of a loop."""
        dims = self._read_plain_domain()
        return Loop(self._named(results), dims, self._read_bodies(self._scope(dims)))

    def read_reduction(self, results: Results) -> Reduction:
        """Returns the rest of a reduction."""
        combine = self._read_combine()
        dims, reduced = self._read_domain()
        bodies = self._read_bodies(self._scope((*dims, *reduced)))
        return Reduction(self._named(results), combine, dims, reduced, bodies)

    def read_scan(self, results: Results) -> Scan:
        """Returns the rest of a scan."""
        reverse = self.words.accept("reverse")
        combine = self._read_function(results) if self.words.accept("by") else self._read_combine()
        dims = self._read_plain_domain()
        along = self._read_along(dims)
        return Scan(self._named(results), combine, dims, along, self._read_bodies(self._scope(dims)), reverse)

    def read_sort(self, results: Results) -> Sort:
        """Returns the rest of a sort."""
        words = self.words
        descending = words.accept("descending")
        top = self._read_size() if words.accept("top") else None
        dims = self._read_plain_domain()
        along = self._read_along(dims)
        scope = self._scope(dims)
        read_bindings(words, scope)
        return Sort(self._named(results), dims, along, read_scalar(words, scope), descending, top)

    def read_update(self, results: Results) -> Update:
        """Returns the rest of an update."""
        words = self.words
        mode = words.take()
        if mode.text not in UPDATE_MODES:
            raise words.error(f"unknown update mode {mode.text!r}; known: {', '.join(UPDATE_MODES)}", mode)
        target = self._read_known().name
        dims = self._read_plain_domain()
        scope = self._scope(dims)
        read_bindings(words, scope)
        words.expect("at")
        indices = tuple(read_indices(words, scope))
        body = read_scalar(words, scope)
        condition = read_scalar(words, scope) if words.accept("if") else None
        return Update(self._single(results), target, mode.text, dims, indices, body, condition)

    def read_contract(self, results: Results) -> Contract:
        """Returns the rest of a contract."""
        dims, reduced = self._read_domain()
        scope = self._scope((*dims, *reduced))
        read_bindings(self.words, scope)
        left = read_scalar(self.words, scope)
        self.words.expect("*")
        return Contract(self._single(results), dims, reduced, left, read_scalar(self.words, scope))

    def read_attend(self, results: Results) -> Attend:
        """Returns the rest of an attention."""
        words = self.words
        token = words.take()
        if token.text not in KINDS:
            raise words.error(f"unknown kind of attention {token.text!r}; known: {', '.join(KINDS)}", token)
        words.expect("(")
        names = list(read_listed(words, ")", lambda: words.name("the name of a product")))
        position = words.next
        dims, behind, inner = self._read_parts()
        if len(dims) < 2 or len(behind) != 1:
            raise words.error("an attention has a row and a column, one dim behind '|', and others behind it", position)
        scope = self._scope((*dims, *behind, *inner))
        return Attend(self._named(results), token.text, dims, behind[0], *read_weights(words, names, inner, scope))

    def read_extern(self, results: Results) -> Extern:
        """Returns the rest of an extern call."""
        words = self.words
        target = self._read_target()
        words.expect("(")
        args: list[Any] = []
        kwargs: list[tuple[str, Any]] = []

        def argument() -> None:
            if words.next.kind == "name" and words.sees("=", 1):
                name = words.take().text.removeprefix("$")
                words.expect("=")
                kwargs.append((name, self._read_argument()))
            else:
                args.append(self._read_argument())

        read_listed(words, ")", argument)
        mutates = self._read_names() if words.accept("mutates") else ()
        aliases = self._read_pairs() if words.accept("aliases") else ()
        effects = words.accept("effects")
        return Extern(results, target, tuple(args), tuple(kwargs), aliases, mutates, effects)

    def _read_target(self) -> str:
        words = self.words
        if words.next.kind == "string":
            return str(json.loads(words.take().text))
        parts = [words.take().text]
        while words.accept("."):
            parts.append(words.take().text)
        return ".".join(parts)

    def read_call(self, results: Results) -> Call:
        """Returns the rest of a call."""
        return Call(self._named(results), self._read_callee(), self._read_names(), self._read_sizes("sizes"))

    def read_if(self, results: Results) -> If:
        """Returns the rest of a choice between two graphs."""
        condition = self._read_known().name
        self.words.expect("then")
        then = self._read_callee()
        self.words.expect("else")
        otherwise = self._read_callee()
        return If(self._named(results), condition, then, otherwise, self._read_names(), self._read_sizes("sizes"))

    def read_while(self, results: Results) -> While:
        """Returns the rest of a loop over graphs."""
        condition = self._read_callee()
        self.words.expect("do")
        body = self._read_callee()
        args, sizes, binds = self._read_names(), self._read_sizes("sizes"), self._read_sizes("binds")
        return While(self._named(results), condition, body, args, sizes, binds)

    def read_for(self, results: Results) -> For:
        """Returns the rest of a loop over rows."""
        body, args, words = self._read_callee(), self._read_names(), self.words
        (count,) = self._read_sizes("times") or (None,)
        if count is None:
            raise words.error("expected 'times', and how often the loop turns", words.next)
        (carried,), (sliced,) = self._read_sizes("carries") or (0,), self._read_sizes("rows") or (0,)
        if not isinstance(carried, int) or not isinstance(sliced, int):
            raise words.error("how many operands a loop carries, and takes rows of, are numbers", words.next)
        return For(self._named(results), body, args, count, carried, sliced, self._read_sizes("sizes"))

    def _read_sizes(self, word: str) -> tuple[Size, ...]:
        if not self.words.accept(word):
            return ()
        self.words.expect("(")
        return tuple(read_listed(self.words, ")", self._read_size))


class DefinitionReader(_GraphReader):
    """Reads what other texts hold beside graphs: definitions, values, types and sizes, by names known so far.

    Attributes:
        words: what is read.
        values: the values that there are, by name; `read` leaves those of the graph that it has read.
        symbols: the symbolic sizes that there are, by name, likewise.
    """

    __slots__ = ()

    def read_definition(self) -> Definition:
        """Returns the definition that stands next; its results are known from there on."""
        return self._read_definition()

    def read_value(self) -> Value:
        """Returns the value that stands next: a name and a type."""
        return self._read_value()

    def read_type(self) -> TensorType:
        """Returns the type that stands next."""
        return self._read_type()

    def read_size(self) -> Size:
        """Returns the size that stands next."""
        return self._read_size()

    def scope(self, dims: tuple[Dim, ...]) -> Scope:
        """Returns what names mean in an expression over these dims."""
        return self._scope(dims)


_WORDS: dict[str, bool | None] = {"none": None, "true": True, "false": False}

_DEFINITIONS: dict[str, Callable[[_GraphReader, Results], Definition]] = {
    "loop": _GraphReader.read_loop,
    "reduce": _GraphReader.read_reduction,
    "scan": _GraphReader.read_scan,
    "sort": _GraphReader.read_sort,
    "update": _GraphReader.read_update,
    "contract": _GraphReader.read_contract,
    "attend": _GraphReader.read_attend,
    "extern": _GraphReader.read_extern,
    "call": _GraphReader.read_call,
    "if": _GraphReader.read_if,
    "while": _GraphReader.read_while,
    "for": _GraphReader.read_for,
}
