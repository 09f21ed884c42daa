"""Statements of tile programs in Python's syntax: names, loops that carry values, branches.

Triton kernels and NumPy functions are both Python, so that order, indentation and the replacement of carried values are
the same for both. How values and effects are spelled is asked of a `TargetLanguage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from ferrite_triton.tile.language import Dispatch, Expression, Name, TileType, Variable, names_in
from ferrite_triton.tile.statements import Do, For, Function, If, Let, Statement, TileProgram

STEP = "    "

Types: TypeAlias = "Mapping[str, TileType]"
Hold: TypeAlias = "Callable[[str, str], str]"
"""Writes a line that names a text before the line being made; takes a prefix for the name, and returns the name."""


class TargetLanguage(Protocol):
    """How a language that has Python's syntax says what tile programs say."""

    def expression(self, root: Expression, types: Types, hold: Hold) -> str:
        """Returns the text of a value, or of a call for its effect."""
        ...

    def effect(self, effect: Expression, types: Types, hold: Hold) -> str | None:
        """Returns the line that has an effect; None where there is nothing to do on this target."""
        ...

    def rounds(self, loop: For, bounds: Sequence[str]) -> str:
        """Returns what a loop goes through, from the texts of its start, its stop and its step."""
        ...

    def in_branch(self, number: str, branch: int) -> str:
        """Returns a number as one of many branches has it that are alike but for the names in them."""
        ...


def print_statements(program: TileProgram, language: TargetLanguage, indent: str = STEP) -> Iterator[str]:
    """Yields the lines of the body of a program.

    Raises:
        UnsupportedDefinition: the target has no text for an operation.
    """
    return _Printer(program, language).block(program.body, indent)


def print_function(function: Function, language: TargetLanguage) -> Iterator[str]:
    """Yields the lines of a combine of a program's own, as a function of the components of both states.

    Raises:
        UnsupportedDefinition: the target has no text for an operation.
    """
    yield from print_body(function.name, (*function.left, *function.right), function.body, function.results, language)


def print_body(
    name: str,
    parameters: Sequence[Variable],
    body: tuple[Let, ...],
    results: Sequence[Expression],
    language: TargetLanguage,
) -> Iterator[str]:
    """Yields the lines of a function that names values and returns some.

    Raises:
        UnsupportedDefinition: the target has no text for an operation.
    """
    printer = _Printer(TileProgram(name, tuple(parameters), (), body), language)
    yield f"def {name}({', '.join(each.name for each in parameters)}):"
    if body:
        yield from printer.block(body, STEP)
    yield from printer.returned(results, STEP)


class _Printer:
    """Prints one program; ``_types`` are those of the names known so far, which are never two for one name."""

    def __init__(self, program: TileProgram, language: TargetLanguage) -> None:
        self._language = language
        self._types: dict[str, TileType] = {each.name: each.type for each in program.parameters}
        self._held = 0
        self._pending: list[str] = []

    def block(self, body: tuple[Statement, ...], indent: str) -> Iterator[str]:
        """Yields the lines of statements; ``pass`` where none of them has any."""
        is_empty = True
        for statement in body:
            for line in self._statement(statement, indent):
                is_empty = False
                yield line
        if is_empty:
            yield f"{indent}pass"

    def _statement(self, statement: Statement, indent: str) -> Iterator[str]:
        match statement:
            case Let(variables, Dispatch() as value):
                yield from self._dispatch(variables, value, indent)
                self._types |= {variable.name: variable.type for variable in variables}
            case Let(variables, value):
                text = self._text(value)
                yield from self._drained(indent)
                yield f"{indent}{', '.join(variable.name for variable in variables)} = {text}"
                self._types |= {variable.name: variable.type for variable in variables}
            case Do(effect):
                line = self._language.effect(effect, self._types, self._hold)
                yield from self._drained(indent)
                if line is not None:
                    yield f"{indent}{line}"
            case For():
                yield from self._loop(statement, indent)
            case If(condition, then, otherwise):
                text = self._text(condition)
                yield from self._drained(indent)
                yield f"{indent}if {text}:"
                yield from self.block(then, indent + STEP)
                if otherwise:
                    yield f"{indent}else:"
                    yield from self.block(otherwise, indent + STEP)

    def _dispatch(self, variables: Sequence[Variable], value: Dispatch, indent: str) -> Iterator[str]:
        """Yields the lines that find the range of a number by halves, and name what it has."""
        first, *rest = (variable.name for variable in variables)
        number, rows = self._text(value.operands[0]), value.ranges
        ends, begins = [f"{first}_end{k}" for k in range(len(rows) - 1)], ["0"]
        for end, (length, *_) in zip(ends, rows, strict=False):
            text = self._text(length)
            yield from self._drained(indent)
            yield f"{indent}{end} = {text if begins == ['0'] else f'{begins[-1]} + {text}'}"
            begins.append(end)

        def within(low: int, high: int, indent: str) -> Iterator[str]:
            if high - low == 1:
                offset = number if low == 0 else f"{number} - {begins[low]}"
                texts = [self._language.in_branch(offset, low), *map(self._text, rows[low][1:])]
                yield from self._drained(indent)
                yield from (f"{indent}{name} = {text}" for name, text in zip((first, *rest), texts, strict=True))
                return
            half = (low + high) // 2
            yield f"{indent}if {number} < {ends[half - 1]}:"
            yield from within(low, half, indent + STEP)
            yield f"{indent}else:"
            yield from within(half, high, indent + STEP)

        yield from within(0, len(rows), indent)

    def returned(self, results: Sequence[Expression], indent: str) -> Iterator[str]:
        """Yields the last lines of a function with such results."""
        texts = list(map(self._text, results))
        yield from self._drained(indent)
        yield f"{indent}return {', '.join(texts)}"

    def _loop(self, loop: For, indent: str) -> Iterator[str]:
        for carried in loop.carried:
            text = self._text(carried.initial)
            yield from self._drained(indent)
            yield f"{indent}{carried.variable.name} = {text}"
            self._types[carried.variable.name] = carried.variable.type
        self._types[loop.counter.name] = loop.counter.type
        rounds = self._language.rounds(loop, [self._text(bound) for bound in (loop.start, loop.stop, loop.step)])
        yield from self._drained(indent)
        yield f"{indent}for {loop.counter.name} in {rounds}:"
        inside = indent + STEP
        moved = [each for each in loop.carried if each.following != Name(each.variable.name)]
        if loop.body or not moved:
            yield from self.block(loop.body, inside)
        yield from self._follow(loop, inside)

    def _follow(self, loop: For, indent: str) -> Iterator[str]:
        """Yields the lines that replace what a loop carries: at once, where one of them is made of another."""
        moved = [each for each in loop.carried if each.following != Name(each.variable.name)]
        for number, carried in enumerate(moved):
            later = {name for other in moved[number + 1 :] for name in names_in(other.following)}
            text = self._text(carried.following)
            yield from self._drained(indent)
            if carried.variable.name not in later:
                yield f"{indent}{carried.variable.name} = {text}"
                continue
            rest = moved[number:]
            texts = [text, *(self._text(other.following) for other in rest[1:])]
            yield from self._drained(indent)
            yield f"{indent}{', '.join(other.variable.name for other in rest)} = {', '.join(texts)}"
            return

    def _hold(self, prefix: str, text: str) -> str:
        self._held += 1
        name = f"{prefix}_part{self._held}"
        self._pending.append(f"{name} = {text}")
        return name

    def _drained(self, indent: str) -> Iterator[str]:
        pending, self._pending = self._pending, []
        return (indent + line for line in pending)

    def _text(self, expression: Expression) -> str:
        return self._language.expression(expression, self._types, self._hold)
