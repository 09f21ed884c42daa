"""Reads what definitions and graphs are written with: sizes, types, values, views, and arguments of extern calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.graph import Tag, TensorType, Value, View, whole
from ferrite_ir.language.index import Dim
from ferrite_ir.language.sizes import Size

from .expression_parser import Scope, read_dtype, read_listed, read_number, read_size
from .tokens import Words

_WORDS: dict[str, bool | None] = {"none": None, "true": True, "false": False}


class ValueReader:
    """Reads with the names known so far; raises `ParseError` where something else stands.

    Attributes:
        words: what is read.
        values: the values that there are, by name.
        symbols: the symbolic sizes that there are, by name.
    """

    __slots__ = ("symbols", "values", "words")

    def __init__(self, words: Words) -> None:
        self.words = words
        self.values: dict[str, Value] = {}
        self.symbols: Mapping[str, Size] = {}

    def scope(self, dims: tuple[Dim, ...] = ()) -> Scope:
        """Returns what names mean in an expression over these dims."""
        return Scope(self.values, self.symbols, {dim.name: dim for dim in dims})

    def read_size(self) -> Size:
        """Returns the size that stands next."""
        return read_size(self.words, self.scope())

    def read_sizes(self, word: str) -> tuple[Size, ...]:
        """Returns the sizes that stand behind a word, in parentheses; none where it does not stand."""
        if not self.words.accept(word):
            return ()
        self.words.expect("(")
        return tuple(read_listed(self.words, ")", self.read_size))

    def read_value(self) -> Value:
        """Returns the value that stands next: a name and a type."""
        name = self.words.name("a value")
        self.words.expect(":")
        return Value(name, self.read_type())

    def read_type(self) -> TensorType:
        """Returns the type that stands next."""
        dtype, shape, strides = self._read_strided()
        device = self.words.take().text if self.words.accept("@") else ""
        return TensorType(dtype, shape, strides, device)

    def _read_strided(self) -> tuple[DType, tuple[Size, ...], tuple[Size, ...]]:
        words = self.words
        dtype = read_dtype(words)
        words.expect("[")
        shape = tuple(read_listed(words, "]", self.read_size))
        strides = TensorType(dtype, shape).strides
        if words.sees("{") and self.sees_strides():
            token = words.take()
            strides = tuple(read_listed(words, "}", self.read_size))
            if len(strides) != len(shape):
                raise words.error(f"{len(shape)} extents and {len(strides)} strides", token)
        return dtype, shape, strides

    def sees_strides(self) -> bool:
        """Returns whether the brace that stands next belongs to a type (it follows a bracket at once)."""
        words = self.words
        previous = words.tokens[words.position - 1]
        return previous.text == "]" and previous.offset + 1 == words.next.offset

    def read_known(self) -> Value:
        """Returns the value whose name stands next."""
        token = self.words.next
        name = self.words.name("a value")
        found = self.values.get(name)
        if found is None:
            raise self.words.error(f"unknown value {name!r}; a value is defined before it is used", token)
        return found

    def read_names(self) -> tuple[str, ...]:
        """Returns the names of values that stand next, in parentheses."""
        self.words.expect("(")
        return tuple(read_listed(self.words, ")", lambda: self.words.name("a value")))

    def read_pairs(self) -> tuple[tuple[str, str], ...]:
        """Returns the pairs of names that stand next, in parentheses."""
        words = self.words
        words.expect("(")

        def pair() -> tuple[str, str]:
            first = words.name("a value")
            words.expect(":")
            return first, words.name("a value")

        return tuple(read_listed(words, ")", pair))

    def read_callee(self) -> str:
        """Returns the name of the graph that is called next."""
        self.words.expect("@")
        return self.words.name("the name of a graph")

    def read_view(self) -> View:
        """Returns the view that stands next: a value, and where it is not whole its type and strides."""
        words = self.words
        value = self.read_known()
        if not words.accept("as"):
            return whole(value)
        dtype, shape, strides = self._read_strided()
        offset = self.read_size() if words.accept("at") else 0
        return View(value.name, dtype, shape, strides, offset)

    def read_argument(self) -> Any:
        """Returns the argument of an extern call that stands next: a view, a number, a word, or a list of these."""
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
            return tuple(read_listed(words, "]", self.read_argument))
        if words.sees("(", 1) and token.text in ("tag", "complex", "size"):
            words.take()
            words.expect("(")
            found = self._read_tagged(token.text)
            words.expect(")")
            return found
        return self.read_view()

    def _read_tagged(self, kind: str) -> Any:
        words = self.words
        if kind == "size":
            return self.read_size()
        if kind == "complex":
            real = read_number(words)
            words.expect(",")
            return complex(real, read_number(words))
        name = words.name("the kind of the tag")
        words.expect(",")
        if words.next.kind != "string":
            raise words.error(f"expected a quoted string, found {words.describe()}")
        return Tag(name, json.loads(words.take().text))
