"""Horizontal fusion of tile programs: several become one, of which each has a range of the program instances.

```text
 tile @a: x = program_id(0) …        if program < end0:  x_0 = program …          (a, with names and constants _0)
 tile @b: x = program_id(0) …   =>   else:               x_1 = program - end0 …   (b, with names and constants _1)
```

Programs keep what they do: only their names, their block constants and the number of the program instance are others.
Each of several stands in a loop of one round, which is not pipelined. The compiler would make one of programs that are
alike, which every instance would begin with choosing all params for; loops it keeps apart. Programs that are alike but
for their params, and for sizes that are parameters, too, are one with many sets of both, as launches over lists of
tensors have it (multi-tensor apply): an instance finds its own set by halves, and there is one text to compile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from ferrite_ir.language.dtypes import I32, DType
from ferrite_triton.tile.build import add, apply, converted, mul, quotient, remainder, sub
from ferrite_triton.tile.language import (
    AwaitPredecessor,
    Block,
    Dispatch,
    Expression,
    Extent,
    Full,
    Literal,
    Name,
    ProgramId,
    Scan,
    TileType,
    Variable,
)
from ferrite_triton.tile.statements import Carried, Do, For, If, Let, Statement, TileProgram, names_defined

PROGRAM, INDEX, ROUND, PLACE = "program", "index", "round", "place"
"""Names of the number of an instance, of that in its program's range, of the loop's counter, of that in its own set."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A program to be joined with others.

    Attributes:
        program: what its instances do.
        instances: how many it needs, over its own block constants: for each set of parameters.
        params: by its own names, parameters of the whole, or numbers: each set of them that it is done for.
    """

    program: TileProgram
    instances: tuple[Expression, ...]
    params: tuple[Mapping[str, Name | Literal], ...]


def join_programs(
    name: str, parts: Sequence[Joined], parameters: tuple[Variable, ...], dtype: DType, *, takes_turns: bool = False
) -> TileProgram:
    """Returns the program that does what each of the parts does, in instances of its own.

    Args:
        name: of the kernel.
        parts: programs that wait for no others, and do not ask how many there are.
        parameters: those of all parts, each once.
        dtype: the type in which instances are counted.
        takes_turns: whether neighbouring instances belong to different parts.
    """
    written = [_Part(number, part, dtype) for number, part in enumerate(parts)]
    first = converted(ProgramId(0), I32, dtype)
    count = Literal(len(parts), dtype)
    statements: list[Statement] = [Do(AwaitPredecessor()), Let((Variable(PROGRAM, TileType(dtype)),), first)]
    if len(written) == 1:
        statements += written[0].body(Name(PROGRAM))
    elif takes_turns:
        turn, position = remainder(Name(PROGRAM), count), quotient(Name(PROGRAM), count)
        statements += [
            Let((Variable("turn", TileType(dtype)),), turn),
            Let((Variable(INDEX, TileType(dtype)),), position),
        ]
        branches = [part.loop(Name(INDEX)) for part in written]
        statements += _by_halves(branches, Name("turn"), [Literal(n, dtype) for n in range(len(parts))])
    else:
        ends: list[Expression] = [Literal(0, dtype)]
        for number, part in enumerate(written[:-1]):
            end = part.instances if number == 0 else add(ends[-1], part.instances)
            statements.append(Let((Variable(f"end{number}", TileType(dtype)),), end))
            ends.append(Name(f"end{number}"))
        begins = [Name(PROGRAM), *(sub(Name(PROGRAM), end) for end in ends[1:])]
        branches = [part.loop(begin) for part, begin in zip(written, begins, strict=True)]
        statements += _by_halves(branches, Name(PROGRAM), ends)
    constants = tuple(constant for part in written for constant in part.constants)
    functions = tuple(function for part in written for function in part.functions)
    return TileProgram(name, parameters, constants, tuple(statements), functions)


def _by_halves(
    branches: Sequence[tuple[Statement, ...]], number: Expression, ends: Sequence[Expression]
) -> tuple[Statement, ...]:
    """Returns the choice of a branch: branch ``k`` is for numbers from ``ends[k]`` on, up to the next one's."""
    if len(branches) == 1:
        return branches[0]
    half = len(branches) // 2
    then = _by_halves(branches[:half], number, ends[:half])
    otherwise = _by_halves(branches[half:], number, ends[half:])
    return (If(apply("lt", number, ends[half]), then, otherwise),)


class _Part:
    """A program with names and block constants of its own: they end in its number."""

    def __init__(self, number: int, joined: Joined, dtype: DType) -> None:
        self._number, self._dtype = number, dtype
        self._program, self._sets = joined.program, joined.params
        names = {*names_defined(joined.program.body), *joined.program.constants}
        self._names = {name: self._own(name) for name in names}
        self._values: dict[str, Literal] = {}
        self._chosen: list[Variable] = []
        for parameter in joined.program.parameters:
            wholes = [each.get(parameter.name, Name(parameter.name)) for each in joined.params]
            whole = wholes[0]
            if any(each != whole for each in wholes):
                self._names[parameter.name] = self._own(parameter.name)
                self._chosen.append(parameter)
            elif isinstance(whole, Name):
                self._names[parameter.name] = whole.name
            else:
                self._values[parameter.name] = whole
        self._combines = {function.name: self._own(function.name) for function in joined.program.functions}
        self.constants = tuple(map(self._own, joined.program.constants))
        self.functions = tuple(replace(each, name=self._combines[each.name]) for each in joined.program.functions)
        self._each = tuple(map(self._expression, joined.instances))
        self.instances = _sum_of(self._each, dtype)

    def _own(self, name: str) -> str:
        return f"{name}_{self._number}"

    def loop(self, position: Expression) -> tuple[Statement, ...]:
        """Returns what the instance of a number does, in a loop of one round; of none where there are not so many."""
        dtype, kind = self._dtype, TileType(self._dtype)
        mine, counter = Name(self._own(INDEX)), Variable(self._own(ROUND), kind)
        stop = apply("lesser", add(mine, Literal(1, dtype)), self.instances)
        # In the interpreter a loop counts in Python's integers: a tile of one element is of a type everywhere.
        tile = Name(self._own(f"{ROUND}_tile"))
        body = (Let((Variable(tile.name, kind),), Full(Name(counter.name), ())), *self.body(tile))
        begin = Let((Variable(mine.name, kind),), position)
        return begin, For(counter, mine, stop, Literal(1, dtype), (), body, stages=1)

    def body(self, number: Expression) -> tuple[Statement, ...]:
        """Returns what the instance of a number does."""
        dtype, found = self._dtype, []
        if len(self._sets) > 1:
            place = Variable(self._own(PLACE), TileType(dtype))
            operands = [number]
            for length, params in zip(self._each, self._sets, strict=True):
                operands += (length, *(_scalar(params[each.name]) for each in self._chosen))
            chosen = (Variable(self._own(each.name), each.type) for each in self._chosen)
            found.append(Let((place, *chosen), Dispatch(tuple(operands), len(self._chosen))))
            number = Name(place.name)
        found.append(Let((Variable(self._own(PROGRAM), TileType(I32)),), converted(number, dtype, I32)))
        return (*found, *self._block(self._program.body))

    def _block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(self._statement(each) for each in body if not _awaits(each))

    def _statement(self, statement: Statement) -> Statement:
        match statement:
            case Let(variables, value):
                return Let(tuple(map(self._variable, variables)), self._expression(value))
            case Do(effect):
                return Do(self._expression(effect))
            case If(condition, then, otherwise):
                return If(self._expression(condition), self._block(then), self._block(otherwise))
            case For():
                return replace(
                    statement,
                    counter=self._variable(statement.counter),
                    start=self._expression(statement.start),
                    stop=self._expression(statement.stop),
                    step=self._expression(statement.step),
                    carried=tuple(map(self._carried, statement.carried)),
                    body=self._block(statement.body),
                )

    def _carried(self, carried: Carried) -> Carried:
        initial, following = self._expression(carried.initial), self._expression(carried.following)
        return Carried(self._variable(carried.variable), initial, following)

    def _variable(self, variable: Variable) -> Variable:
        return Variable(self._names.get(variable.name, variable.name), self._type(variable.type))

    def _expression(self, expression: Expression) -> Expression:
        match expression:
            case Name(name) if name in self._values:
                return self._values[name]
            case Name(name):
                return Name(self._names.get(name, name))
            case ProgramId(0):
                return Name(f"{PROGRAM}_{self._number}")
            case Scan() if expression.combine in self._combines:
                operands = tuple(map(self._expression, expression.operands))
                return replace(expression, operands=operands, combine=self._combines[expression.combine])
        changed = {field.name: self._value(getattr(expression, field.name)) for field in fields(expression)}
        return replace(expression, **changed)

    def _type(self, type_: TileType) -> TileType:
        return replace(type_, shape=tuple(map(self._extent, type_.shape)))

    def _extent(self, extent: Extent) -> Extent:
        return Block(self._names[extent.constant], extent.parts) if isinstance(extent, Block) else extent

    def _value(self, value: object) -> object:
        """Returns a field of an expression with the names in it changed."""
        match value:
            case Expression():
                return self._expression(value)
            case Block():
                return self._extent(value)
            case TileType():
                return self._type(value)
            case tuple():
                return tuple(map(self._value, value))
        return value


def _sum_of(counts: Sequence[Expression], dtype: DType) -> Expression:
    """Returns a sum in which equal terms are counted first."""
    times: dict[Expression, int] = {}
    for count in counts:
        times[count] = times.get(count, 0) + 1
    terms = [count if number == 1 else mul(Literal(number, dtype), count) for count, number in times.items()]
    return add(*terms)


def _scalar(value: Name | Literal) -> Expression:
    """Returns what a branch names: a number as a tile, whose type is known in every target."""
    return Full(value, ()) if isinstance(value, Literal) else value


def _awaits(statement: Statement) -> bool:
    return isinstance(statement, Do) and isinstance(statement.effect, AwaitPredecessor)
