"""Reads the text form of tile programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, replace
from typing import Any

from ferrite_ir.language.dtypes import BOOL, DTYPES, DType
from ferrite_ir.text.expression_parser import read_number
from ferrite_ir.text.tokens import Token, Words

from .language import (
    OPERATIONS,
    Block,
    BlockSize,
    Call,
    Constant,
    Elementwise,
    Expression,
    Extent,
    Literal,
    Name,
    Shape,
    TileType,
    Variable,
)
from .operations import ELEMENTWISE
from .statements import Carried, Do, For, Function, If, Let, Statement, TileProgram


def parse_tile(text: str, source: str = "") -> TileProgram:
    """Returns the program that a text describes; whether it is well-formed is `verify`'s to say.

    Args:
        text: one program, as `tile_text` writes it; ``#`` begins a comment.
        source: the file it came from, for messages.

    Raises:
        ParseError: the text is not in the language; the message shows the line with a caret.
    """
    reader = _Reader(Words(text, source))
    program = reader.program()
    if reader.words.next.kind != "end":
        raise reader.words.error(f"expected the end of the text, found {reader.words.describe()}")
    return program


class _Reader:
    """Reads one program by recursive descent; programs nest as deeply as their loops, conditions and operands do."""

    def __init__(self, words: Words) -> None:
        self.words = words

    def program(self) -> TileProgram:
        words = self.words
        functions: list[Function] = []
        while words.accept("combine"):
            functions.append(self.function())
        words.expect("tile")
        words.expect("@")
        name = words.name("the name of a program")
        parameters = self._list("(", ")", self.variable)
        constants = self._list("[", "]", lambda: words.name("a block constant")) if words.sees("[") else ()
        return TileProgram(name, parameters, constants, self.block(), tuple(functions))

    def function(self) -> Function:
        words = self.words
        words.expect("@")
        name = words.name("the name of a combine")
        words.expect("(")
        left = [self.variable()]
        while words.accept(","):
            left.append(self.variable())
        words.expect("|")
        right = [self.variable()]
        while words.accept(","):
            right.append(self.variable())
        words.expect(")")
        words.expect("{")
        body: list[Let] = []
        while not (words.sees("return") and not words.sees(":", 1)):
            token, statement = words.next, self.statement()
            if not isinstance(statement, Let):
                raise words.error("a combine names values, and returns some", token)
            body.append(statement)
        words.expect("return")
        results = [self.expression()]
        while words.accept(","):
            results.append(self.expression())
        words.expect("}")
        return Function(name, tuple(left), tuple(right), tuple(body), tuple(results))

    def _list(self, opening: str, closing: str, read: Callable[[], Any]) -> tuple[Any, ...]:
        words = self.words
        words.expect(opening)
        found: list[Any] = []
        while not words.accept(closing):
            if found:
                words.expect(",")
            found.append(read())
        return tuple(found)

    # --- statements -------------------------------------------------------------------------------------------------

    def block(self) -> tuple[Statement, ...]:
        self.words.expect("{")
        found: list[Statement] = []
        while not self.words.accept("}"):
            found.append(self.statement())
        return tuple(found)

    def statement(self) -> Statement:
        words = self.words
        if words.sees(":", 1):
            variables = [self.variable()]
            while words.accept(","):
                variables.append(self.variable())
            words.expect("=")
            value = self.expression()
            if isinstance(value, Call):
                value = replace(value, results=tuple(variable.type for variable in variables))
            return Let(tuple(variables), value)
        if words.accept("for"):
            return self.loop()
        if words.accept("if"):
            condition, then = self.expression(), self.block()
            return If(condition, then, self.block() if words.accept("else") else ())
        return Do(self.expression())

    def loop(self) -> For:
        words = self.words
        counter = self.variable()
        words.expect("=")
        start = self.expression()
        words.expect(",")
        stop = self.expression()
        words.expect(",")
        step = self.expression()
        stages, flattens = 0, False
        while words.accept(","):
            if words.accept("flattens"):
                flattens = True
                continue
            words.expect("stages")
            words.expect("=")
            stages = self.integer()
        words.expect("{")
        initial: list[tuple[Variable, Expression]] = []
        while words.sees("carry") and not words.sees(":", 1):
            words.take()
            variable = self.variable()
            words.expect("=")
            initial.append((variable, self.expression()))
        body: list[Statement] = []
        while not words.sees("}") and (not words.sees("next") or words.sees(":", 1)):
            body.append(self.statement())
        carried = tuple(Carried(variable, first, self.following(variable)) for variable, first in initial)
        words.expect("}")
        return For(counter, start, stop, step, carried, tuple(body), stages, flattens)

    def following(self, variable: Variable) -> Expression:
        words = self.words
        words.expect("next")
        token = words.next
        if words.name("a carried value") != variable.name:
            raise words.error(f"expected next {variable.name}: carried values follow in the order of carry", token)
        words.expect("=")
        return self.expression()

    def variable(self) -> Variable:
        name = self.words.name("a name")
        self.words.expect(":")
        return Variable(name, self.tile_type())

    def tile_type(self) -> TileType:
        is_pointer, is_descriptor = self.words.accept("*"), self.words.accept("descriptor")
        dtype = self.dtype()
        return TileType(dtype, self.shape() if self.words.sees("[") else (), is_pointer, is_descriptor)

    def dtype(self) -> DType:
        token = self.words.take()
        found = DTYPES.get(token.text)
        if found is None:
            raise self.words.error(f"expected an element type, found {token.text!r}", token)
        return found

    def shape(self) -> Shape:
        return self._list("[", "]", self.extent)

    def extent(self) -> Extent:
        words = self.words
        if words.next.kind == "number":
            return self.integer()
        constant = words.name("an extent")
        return Block(constant, self.integer() if words.accept("//") else 1)

    def integer(self) -> int:
        token = self.words.take()
        if token.kind != "number" or not token.text.isdigit():
            raise self.words.error(f"expected a whole number, found {token.text!r}", token)
        return int(token.text)

    # --- expressions ------------------------------------------------------------------------------------------------

    def expression(self) -> Expression:
        words = self.words
        if words.accept("@"):
            function = words.name("a device function")
            return Call(function, self._list("(", ")", self.call_operand))
        if words.sees("true") or words.sees("false"):
            return Literal(words.take().text == "true", BOOL)
        if not words.sees("(", 1):
            return Name(words.name("an expression"))
        token = words.take()
        if token.text in DTYPES:
            return self.typed_number(DTYPES[token.text])
        if token.text in ELEMENTWISE:
            return Elementwise(token.text, self._list("(", ")", self.expression))
        kind = OPERATIONS.get(token.text)
        if kind is None:
            raise words.error(f"there is no operation {token.text!r}", token)
        return self.operation(kind, token)

    def typed_number(self, dtype: DType) -> Expression:
        words = self.words
        words.expect("(")
        is_block = words.next.kind == "name" and words.next.text not in ("nan", "inf")
        extent = self.extent() if is_block else None
        found = BlockSize(extent, dtype) if isinstance(extent, Block) else Literal(read_number(words), dtype)
        words.expect(")")
        return found

    def call_operand(self) -> Expression:
        words = self.words
        if words.next.kind == "string":
            return Constant(str(json.loads(words.take().text)))
        if words.next.kind == "number" or words.sees("-"):
            return Constant(read_number(words))
        if words.accept("none"):
            return Constant(None)
        if words.sees("true") or words.sees("false"):
            return Constant(words.take().text == "true")
        return self.expression()

    def operation(self, kind: type[Expression], token: Token) -> Expression:
        words = self.words
        table = {field.name: field for field in fields(kind)}
        positional = [field for field in table.values() if _is_operand(field)]
        given: dict[str, Any] = {"operands": ()} if "operands" in table else {}
        words.expect("(")
        is_first = True
        while not words.accept(")"):
            if not is_first:
                words.expect(",")
            is_first = False
            if words.sees("=", 1):
                key = words.take()
                words.expect("=")
                field = table.get(key.text)
                if field is None or key.text in given:
                    raise words.error(f"{token.text} has no {key.text}, or two", key)
                given[field.name] = self.expression() if "Expression" in str(field.type) else self.attribute(field)
                continue
            if "operands" in table:
                given["operands"] = (*given["operands"], self.expression())
                continue
            if len(given) >= len(positional):
                raise words.error(f"{token.text} takes {len(positional)} operands without a name")
            given[positional[len(given)].name] = self.expression()
        missing = [name for name, field in table.items() if field.default is MISSING and name not in given]
        if missing:
            raise words.error(f"{token.text} needs {', '.join(missing)}", token)
        return kind(**given)

    def attribute(self, field: Field[Any]) -> Any:
        return _ATTRIBUTES[str(field.type)](self)

    def word(self) -> str:
        token = self.words.take()
        if token.kind == "string":
            return str(json.loads(token.text))
        if token.kind != "name":
            raise self.words.error(f"expected a word, found {token.text!r}", token)
        return token.text

    def flag(self) -> bool:
        token = self.words.take()
        if token.text not in ("true", "false"):
            raise self.words.error(f"expected true or false, found {token.text!r}", token)
        return token.text == "true"


def _is_operand(field: Field[Any]) -> bool:
    return field.type == "Expression"


_ATTRIBUTES: dict[str, Callable[[_Reader], Any]] = {
    "int": _Reader.integer,
    "bool": _Reader.flag,
    "str": _Reader.word,
    "DType": _Reader.dtype,
    "Extent": _Reader.extent,
    "Shape": _Reader.shape,
    "tuple[int, ...]": _Reader.shape,
}
"""How the attributes of operations are read, by the types of their fields."""
