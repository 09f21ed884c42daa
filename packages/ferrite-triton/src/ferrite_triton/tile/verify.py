"""Numbered rules of a well-formed tile program, and all places that break them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.dtypes import BOOL

from .language import (
    Block,
    BlockSize,
    Broadcast,
    Choose,
    Describe,
    Expression,
    Full,
    Lanes,
    Reshape,
    Scan,
    Shape,
    TileType,
    Variable,
    parts_of,
)
from .statements import Carried, Do, For, Function, If, Let, Statement, TileProgram
from .text import tile_lines
from .types import TileTypeError, types_of

RULES: dict[str, str] = {
    "T01": "a name that is known is not defined again, and a name is an identifier",
    "T02": "an operation gets operands that it takes, of names that are known there",
    "T03": "a value has the type that is written beside its name",
    "T04": "a statement has an effect, and a value has none",
    "T05": "the counter of a loop and its bounds are integers of one type",
    "T06": "what a loop carries has one type in all rounds",
    "T07": "a condition is one bool",
    "T08": "an extent is a power of two, a block constant of the program, or an equal part of one",
    "T09": "a combine is one of the table, or a function of the program for such elements, which keeps their types",
}
"""What each rule asks for."""


@dataclass(frozen=True, slots=True)
class TileProblem:
    """One broken rule: its number, what is wrong, and the statement in the order of the text (None for the header)."""

    rule: str
    message: str
    statement: int | None

    def __str__(self) -> str:
        location = "the header" if self.statement is None else f"statement {self.statement}"
        return f"{self.rule} in {location}: {self.message}"


class TileError(ValueError):
    """A tile program that breaks rules; the message shows the program with each problem under its line.

    Attributes:
        problems: all of them.
    """

    def __init__(self, program: TileProgram, problems: tuple[TileProblem, ...]) -> None:
        self.problems = problems
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__(f"{count} in the tile program\n{listing(program, problems)}")


def verify(program: TileProgram) -> tuple[TileProblem, ...]:
    """Returns all problems of a program, in the order of its text; none of a well-formed one."""
    checker = _Checker(program)
    checker.check()
    return tuple(checker.problems)


def require_valid(program: TileProgram) -> None:
    """Does nothing for a well-formed program.

    Raises:
        TileError: it breaks rules.
    """
    problems = verify(program)
    if problems:
        raise TileError(program, problems)


def listing(program: TileProgram, problems: tuple[TileProblem, ...]) -> str:
    """Returns the text of a program with each problem under the first line of its statement."""
    pending: dict[int | None, list[TileProblem]] = {}
    for problem in problems:
        pending.setdefault(problem.statement, []).append(problem)
    shown: list[str] = []
    for line in tile_lines(program):
        shown.append(line.text)
        indent = " " * (len(line.text) - len(line.text.lstrip()))
        shown += [f"{indent}^ {problem.rule}: {problem.message}" for problem in pending.pop(line.statement, ())]
    return "\n".join(shown)


@dataclass(slots=True)
class _Checker:
    """Walks a program once; names are known from their statement to the end of the block it stands in."""

    program: TileProgram
    problems: list[TileProblem] = field(default_factory=list)
    _statement: int | None = None
    _count: int = 0

    def check(self) -> None:
        names: dict[str, TileType] = {}
        for function in self.program.functions:
            self._function(function)
        for parameter in self.program.parameters:
            self._define(parameter, names)
        self._block(self.program.body, names)

    def _function(self, function: Function) -> None:
        """Checks that a function makes a state of two, of scalars alone."""
        names: dict[str, TileType] = {}
        for variable in (*function.left, *function.right):
            self._define(variable, names)
        for let in function.body:
            self._let(let, names)
        kinds = [tuple(variable.type for variable in side) for side in (function.left, function.right)]
        results = tuple(self._single(result, names) for result in function.results)
        is_scalar = not any(kind.shape or kind.is_pointer for kind in names.values())
        if kinds[0] != kinds[1] or results != kinds[0] or not is_scalar or function.name in COMBINES:
            self._report("T09", f"{function.name} does not make a state of scalars of two others")

    def _combines(self, scan: Scan, names: dict[str, TileType]) -> None:
        if scan.combine in COMBINES:
            return
        function = next((each for each in self.program.functions if each.name == scan.combine), None)
        found = tuple(self._single(operand, names) for operand in scan.operands)
        kinds = tuple(None if each is None else each.dtype for each in found)
        if function is None or kinds != tuple(variable.type.dtype for variable in function.left):
            types = ", ".join(map(str, kinds))
            self._report("T09", f"{scan.combine} combines no elements of {types}")

    def _report(self, rule: str, message: str) -> None:
        self.problems.append(TileProblem(rule, message, self._statement))

    def _define(self, variable: Variable, names: dict[str, TileType]) -> None:
        if variable.name in names or not variable.name.isidentifier():
            self._report("T01", f"{variable.name} is defined already, or is no identifier")
        self._check_shape(variable.type.shape)
        names[variable.name] = variable.type

    def _check_shape(self, shape: Shape) -> None:
        for extent in shape:
            match extent:
                case Block(constant, parts):
                    if constant not in self.program.constants or parts < 1 or parts & (parts - 1):
                        self._report("T08", f"{extent} is no part of a block constant of the program")
                case number:
                    if number < 1 or number & (number - 1):
                        self._report("T08", f"{number} is no power of two")

    def _types(
        self, root: Expression, names: dict[str, TileType], *, effect: bool = False
    ) -> tuple[TileType, ...] | None:
        """Returns the types of the results of an expression; None after noting what is wrong with it."""
        for part in parts_of(root):
            match part:
                case Full() | Broadcast() | Reshape() | Describe():
                    self._check_shape(part.shape)
                case Lanes():
                    self._check_shape((part.extent,))
                case BlockSize():
                    self._check_shape((part.block,))
                case Choose():
                    self._check_shape((part.constant,))
                case Scan():
                    self._combines(part, names)
        try:
            found = types_of(root, names)
        except TileTypeError as error:
            self._report("T02", str(error))
            return None
        if bool(found) == effect:
            self._report("T04", "an effect has no value" if effect else "this has no value")
            return None
        return found

    def _single(self, root: Expression, names: dict[str, TileType]) -> TileType | None:
        found = self._types(root, names)
        return found[0] if found else None

    def _block(self, body: tuple[Statement, ...], outer: dict[str, TileType]) -> dict[str, TileType]:
        """Checks statements; returns the names that are known at their end."""
        names = dict(outer)
        for statement in body:
            self._statement = self._count
            self._count += 1
            match statement:
                case Let():
                    self._let(statement, names)
                case Do(effect):
                    self._types(effect, names, effect=True)
                case For():
                    self._loop(statement, names)
                case If(condition, then, otherwise):
                    found = self._single(condition, names)
                    if found is not None and found != TileType(BOOL):
                        self._report("T07", f"the condition is {found}")
                    self._block(then, names)
                    self._block(otherwise, names)
        return names

    def _let(self, let: Let, names: dict[str, TileType]) -> None:
        found = self._types(let.value, names)
        if found is not None and len(found) != len(let.variables):
            self._report("T03", f"{len(let.variables)} names for {len(found)} values")
            found = None
        for number, variable in enumerate(let.variables):
            self._expect(variable, None if found is None else found[number], "T03")
            self._define(variable, names)

    def _expect(self, variable: Variable, found: TileType | None, rule: str) -> None:
        if found is not None and found != variable.type:
            self._report(rule, f"{variable.name} is written as {variable.type}, its value is {found}")

    def _loop(self, loop: For, names: dict[str, TileType]) -> None:
        number, kind = self._statement, loop.counter.type
        if kind.shape or kind.is_pointer or not kind.dtype.is_integer:
            self._report("T05", f"the counter {loop.counter.name} is {kind}")
        for bound in (loop.start, loop.stop, loop.step):
            found = self._single(bound, names)
            if found is not None and found != kind:
                self._report("T05", f"the counter is {kind}, a bound {found}")
        for carried in loop.carried:
            self._expect(carried.variable, self._single(carried.initial, names), "T06")
        inside = dict(names)
        self._define(loop.counter, inside)
        for carried in loop.carried:
            self._define(carried.variable, inside)
        known = self._block(loop.body, inside)
        self._statement = number
        for carried in loop.carried:
            self._follow(carried, known)
            names[carried.variable.name] = carried.variable.type

    def _follow(self, carried: Carried, known: dict[str, TileType]) -> None:
        self._expect(carried.variable, self._single(carried.following, known), "T06")
