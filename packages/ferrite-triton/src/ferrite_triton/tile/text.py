"""The text form of tile programs, one statement to a line; `parse_tile` reads it back as the same program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

from ferrite_ir.language.dtypes import DType
from ferrite_ir.text.printer import const_text
from ferrite_ir.text.tokens import spelled

from .language import (
    Block,
    BlockSize,
    Call,
    Constant,
    Elementwise,
    Expression,
    Literal,
    Name,
    Shape,
    Variable,
    parts_of,
)
from .statements import PRINTERS, Do, For, Function, If, Let, Statement, TileProgram


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text and the number of its statement in the order of the text; None of lines of no statement."""

    text: str
    statement: int | None


def tile_text(program: TileProgram) -> str:
    """Returns the text of a program."""
    return "\n".join(line.text for line in tile_lines(program))


def tile_lines(program: TileProgram) -> list[Line]:
    """Returns the lines of a program's text, each with its statement."""
    parameters = ", ".join(map(_variable, program.parameters))
    constants = f" [{', '.join(program.constants)}]" if program.constants else ""
    head = f"tile @{spelled(program.name)}({parameters}){constants} {{"
    functions = (Line(text, None) for function in program.functions for text in _function_lines(function))
    return [*functions, Line(head, None), *_Printer().block(program.body, "  "), Line("}", None)]


def _function_lines(function: Function) -> Iterator[str]:
    """Yields the lines of a combine of a program's own, which stands in front of it."""
    left, right = (", ".join(map(_variable, side)) for side in (function.left, function.right))
    yield f"combine @{spelled(function.name)}({left} | {right}) {{"
    yield from (line.text for line in _Printer().block(function.body, "  "))
    yield f"  return {', '.join(map(expression_text, function.results))}"
    yield "}"


PRINTERS[:] = [tile_text]


class _Printer:
    """Counts statements as it writes them: a loop or a condition before what is in it."""

    def __init__(self) -> None:
        self._count = 0

    def block(self, body: tuple[Statement, ...], indent: str) -> Iterator[Line]:
        for statement in body:
            number = self._count
            self._count += 1
            match statement:
                case Let(variables, value):
                    named = ", ".join(map(_variable, variables))
                    yield Line(f"{indent}{named} = {expression_text(value)}", number)
                case Do(effect):
                    yield Line(f"{indent}{expression_text(effect)}", number)
                case For():
                    yield from self._loop(statement, number, indent)
                case If(condition, then, otherwise):
                    yield Line(f"{indent}if {expression_text(condition)} {{", number)
                    yield from self.block(then, indent + "  ")
                    if otherwise:
                        yield Line(f"{indent}}} else {{", number)
                        yield from self.block(otherwise, indent + "  ")
                    yield Line(f"{indent}}}", number)

    def _loop(self, loop: For, number: int, indent: str) -> Iterator[Line]:
        bounds = ", ".join(map(expression_text, (loop.start, loop.stop, loop.step)))
        stages = f", stages={loop.stages}" if loop.stages else ""
        flattens = ", flattens" if loop.flattens else ""
        yield Line(f"{indent}for {_variable(loop.counter)} = {bounds}{stages}{flattens} {{", number)
        for carried in loop.carried:
            initial = expression_text(carried.initial)
            yield Line(f"{indent}  carry {_variable(carried.variable)} = {initial}", number)
        yield from self.block(loop.body, indent + "  ")
        for carried in loop.carried:
            following = expression_text(carried.following)
            yield Line(f"{indent}  next {spelled(carried.variable.name)} = {following}", number)
        yield Line(f"{indent}}}", number)


def _variable(variable: Variable) -> str:
    return f"{spelled(variable.name)}: {variable.type}"


def expression_text(root: Expression) -> str:
    """Returns the text of an expression."""
    texts: dict[int, str] = {}
    for part in parts_of(root):
        texts[id(part)] = _part_text(part, texts)
    return texts[id(root)]


def _part_text(part: Expression, texts: dict[int, str]) -> str:
    match part:
        case Name(name):
            return spelled(name)
        case Literal(value, dtype):
            return const_text(value, dtype)
        case BlockSize(block, dtype):
            return f"{dtype}({block})"
        case Constant(value):
            return _constant(value)
        case Call(function, operands):
            return f"@{function}({', '.join(texts[id(operand)] for operand in operands)})"
        case Elementwise(op, operands):
            return f"{op}({', '.join(texts[id(operand)] for operand in operands)})"
    arguments: list[str] = []
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name == "operands":
            arguments += [texts[id(operand)] for operand in value]
        elif isinstance(value, Expression) and field.default is MISSING:
            arguments.append(texts[id(value)])
        elif isinstance(value, Expression):
            arguments.append(f"{field.name}={texts[id(value)]}")
        elif field.default is MISSING or value != field.default:
            arguments.append(f"{field.name}={attribute_text(value)}")
    return f"{part.WORD}({', '.join(arguments)})"


def attribute_text(value: Any) -> str:
    """Returns the text of an attribute: a number, a truth value, a type, an extent, a word, a string, a list."""
    match value:
        case bool():
            return str(value).lower()
        case DType() | int() | Block():
            return str(value)
        case str():
            return value if value.isidentifier() else json.dumps(value)
        case _:
            return shape_text(value)


def _constant(value: float | bool | str | None) -> str:  # noqa: FBT001  # one of several kinds
    match value:
        case None | bool():
            return str(value).lower()
        case str():
            return json.dumps(value)
    return repr(value)


def shape_text(shape: Shape) -> str:
    """Returns the text of a shape, or of another list of numbers."""
    return f"[{', '.join(map(str, shape))}]"
