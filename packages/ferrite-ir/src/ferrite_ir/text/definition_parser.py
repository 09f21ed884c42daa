"""Reads definitions, in graphs and in the texts of other packages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ferrite_ir.language.attend import KINDS
from ferrite_ir.language.combine_functions import LEFT, RIGHT, CombineFunction
from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.graph import (
    UPDATE_MODES,
    Attend,
    Call,
    Contract,
    Definition,
    Extern,
    For,
    If,
    Loop,
    Reduction,
    Scan,
    Segments,
    Sort,
    TensorType,
    Update,
    Value,
    While,
)
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar

from .attention_parser import read_dim, read_weights
from .expression_parser import Scope, read_bindings, read_dtype, read_indices, read_listed, read_scalar
from .value_parser import ValueReader

Results = tuple[Value | None, ...]
Domain = tuple[tuple[Dim, ...], tuple[Dim, ...]]


class DefinitionReader(ValueReader):
    """Reads definitions, whose results join the values that there are."""

    __slots__ = ()

    def read_definition(self) -> Definition:
        """Returns the definition that stands next; its results are known from there on."""
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
            results.append(None if words.accept("_") else self.read_value())
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
            raise self.words.error("only an attention and a contract have dims behind a second '|'", token)
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
            target.append(Dim(name, self.read_size()))
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
        return Loop(self._named(results), dims, self._read_bodies(self.scope(dims)))

    def read_reduction(self, results: Results) -> Reduction:
        """Returns the rest of a reduction."""
        combine = self._read_combine()
        dims, reduced = self._read_domain()
        bodies = self._read_bodies(self.scope((*dims, *reduced)))
        return Reduction(self._named(results), combine, dims, reduced, bodies)

    def read_scan(self, results: Results) -> Scan:
        """Returns the rest of a scan."""
        reverse = self.words.accept("reverse")
        combine = self._read_function(results) if self.words.accept("by") else self._read_combine()
        dims = self._read_plain_domain()
        along = self._read_along(dims)
        return Scan(self._named(results), combine, dims, along, self._read_bodies(self.scope(dims)), reverse)

    def read_sort(self, results: Results) -> Sort:
        """Returns the rest of a sort."""
        words = self.words
        descending = words.accept("descending")
        top = self.read_size() if words.accept("top") else None
        dims = self._read_plain_domain()
        along = self._read_along(dims)
        scope = self.scope(dims)
        read_bindings(words, scope)
        return Sort(self._named(results), dims, along, read_scalar(words, scope), descending, top)

    def read_update(self, results: Results) -> Update:
        """Returns the rest of an update."""
        words = self.words
        mode = words.take()
        if mode.text not in UPDATE_MODES:
            raise words.error(f"unknown update mode {mode.text!r}; known: {', '.join(UPDATE_MODES)}", mode)
        target = self.read_known().name
        dims = self._read_plain_domain()
        scope = self.scope(dims)
        read_bindings(words, scope)
        words.expect("at")
        indices = tuple(read_indices(words, scope))
        body = read_scalar(words, scope)
        condition = read_scalar(words, scope) if words.accept("if") else None
        return Update(self._single(results), target, mode.text, dims, indices, body, condition)

    def read_contract(self, results: Results) -> Contract:
        """Returns the rest of a contract."""
        words = self.words
        fast = words.accept("fast")
        stored = read_dtype(words) if words.accept("stored") else None
        dims, reduced, inner = self._read_parts()
        scope = self.scope((*dims, *reduced, *inner))
        read_bindings(words, scope)
        left = read_scalar(words, scope)
        words.expect("*")
        right = read_scalar(words, scope)
        if not words.accept("segments"):
            if inner:
                raise words.error("dims behind a second '|' are those of groups: say which by 'segments'", words.next)
            return Contract(self._single(results), dims, reduced, left, right, fast=fast, stored=stored)
        of = read_dim(words, (*dims, *reduced))
        words.expect("as")
        group = read_dim(words, (*dims, *inner))
        words.expect("until")
        segments = Segments(of, group, read_scalar(words, scope))
        return Contract(self._single(results), dims, reduced, left, right, fast=fast, segments=segments, stored=stored)

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
        scope = self.scope((*dims, *behind, *inner))
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
                kwargs.append((name, self.read_argument()))
            else:
                args.append(self.read_argument())

        read_listed(words, ")", argument)
        mutates = self.read_names() if words.accept("mutates") else ()
        aliases = self.read_pairs() if words.accept("aliases") else ()
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
        return Call(self._named(results), self.read_callee(), self.read_names(), self.read_sizes("sizes"))

    def read_if(self, results: Results) -> If:
        """Returns the rest of a choice between two graphs."""
        condition = self.read_known().name
        self.words.expect("then")
        then = self.read_callee()
        self.words.expect("else")
        otherwise = self.read_callee()
        return If(self._named(results), condition, then, otherwise, self.read_names(), self.read_sizes("sizes"))

    def read_while(self, results: Results) -> While:
        """Returns the rest of a loop over graphs."""
        condition = self.read_callee()
        self.words.expect("do")
        body = self.read_callee()
        args, sizes, binds = self.read_names(), self.read_sizes("sizes"), self.read_sizes("binds")
        return While(self._named(results), condition, body, args, sizes, binds, self.words.accept("stacked"))

    def read_for(self, results: Results) -> For:
        """Returns the rest of a loop over rows."""
        body, args, words = self.read_callee(), self.read_names(), self.words
        (count,) = self.read_sizes("times") or (None,)
        if count is None:
            raise words.error("expected 'times', and the number of iterations of the loop", words.next)
        (carried,), (sliced,) = self.read_sizes("carries") or (0,), self.read_sizes("rows") or (0,)
        if not isinstance(carried, int) or not isinstance(sliced, int):
            raise words.error("how many operands a loop carries, and takes rows of, are numbers", words.next)
        return For(self._named(results), body, args, count, carried, sliced, self.read_sizes("sizes"))


_DEFINITIONS: dict[str, Callable[[DefinitionReader, Results], Definition]] = {
    "loop": DefinitionReader.read_loop,
    "reduce": DefinitionReader.read_reduction,
    "scan": DefinitionReader.read_scan,
    "sort": DefinitionReader.read_sort,
    "update": DefinitionReader.read_update,
    "contract": DefinitionReader.read_contract,
    "attend": DefinitionReader.read_attend,
    "extern": DefinitionReader.read_extern,
    "call": DefinitionReader.read_call,
    "if": DefinitionReader.read_if,
    "while": DefinitionReader.read_while,
    "for": DefinitionReader.read_for,
}
