"""Statements of the tile language, and the programs that they make up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .language import Assert, Expression, Variable


@dataclass(frozen=True, slots=True)
class Let:
    """Names the values of an expression: one, but of a combine of several components, or of a call."""

    variables: tuple[Variable, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class Do:
    """Does something for its effect: one of `EFFECTS`, or a call without results."""

    effect: Expression


@dataclass(frozen=True, slots=True)
class Carried:
    """A value that a loop hands from one round to the next, and on to what follows the loop.

    Attributes:
        variable: its name and type, in the loop and behind it.
        initial: what it is in the first round, and behind a loop of no round.
        following: what it is after a round; an expression over what is known at the end of the body.
    """

    variable: Variable
    initial: Expression
    following: Expression


@dataclass(frozen=True, slots=True)
class For:
    """Rounds of a body, while a counter that begins at ``start`` and grows by ``step`` is below ``stop``.

    Attributes:
        counter: a scalar integer.
        start, stop, step: scalars of its type.
        carried: what goes from round to round; all are replaced at once at the end of the body.
        body: what each round does.
        stages: rounds whose loads may be under way at once; 0 leaves it to the launch.
        flattens: whether the compiler makes one loop of this one and the one inside, so that the loads of a round begin
            while the one before ends.
    """

    counter: Variable
    start: Expression
    stop: Expression
    step: Expression
    carried: tuple[Carried, ...]
    body: tuple[Statement, ...]
    stages: int = 0
    flattens: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """One of two bodies, by a scalar condition; what they name is not known behind them."""

    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


Statement: TypeAlias = "Let | Do | For | If"


@dataclass(frozen=True, slots=True)
class Function:
    """A combine of the program's own: what two states of scalars, the left one before the right one, become.

    Attributes:
        name: by which scans of the program call it.
        left, right: the components of the two states, which have the same types.
        body: statements that name scalars.
        results: the components of the combined state.
    """

    name: str
    left: tuple[Variable, ...]
    right: tuple[Variable, ...]
    body: tuple[Let, ...]
    results: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class TileProgram:
    """What each program instance of a kernel does.

    Attributes:
        name: of the kernel function.
        parameters: in the order of the call.
        constants: names of the block constants, numbers that a launch chooses.
        body: statements, in order.
        functions: combines beside those of the table.
    """

    name: str
    parameters: tuple[Variable, ...]
    constants: tuple[str, ...]
    body: tuple[Statement, ...]
    functions: tuple[Function, ...] = ()

    def __str__(self) -> str:
        (printer,) = PRINTERS
        return printer(self)


PRINTERS: list[Callable[[TileProgram], str]] = []
"""What prints programs: `tile_text`, which stands on the language and enters itself."""


def expressions_of(body: tuple[Statement, ...]) -> Iterator[Expression]:
    """Yields the expressions of statements and of the statements inside them, in order."""
    pending: list[Statement | Expression] = list(reversed(body))
    while pending:
        match pending.pop():
            case Let() as statement:
                yield statement.value
            case Do() as statement:
                yield statement.effect
            case For() as statement:
                yield from (statement.start, statement.stop, statement.step)
                yield from (carried.initial for carried in statement.carried)
                pending.extend(carried.following for carried in reversed(statement.carried))
                pending.extend(reversed(statement.body))
            case If() as statement:
                yield statement.condition
                pending.extend(reversed((*statement.then, *statement.otherwise)))
            case expression:
                yield expression


def has_assertions(body: tuple[Statement, ...]) -> bool:
    """Whether statements, or the statements inside them, assert something while the kernel runs."""
    return any(isinstance(each, Assert) for each in expressions_of(body))


def names_defined(body: tuple[Statement, ...]) -> set[str]:
    """Returns the names that statements and the statements inside them define."""
    found: set[str] = set()
    pending = list(body)
    while pending:
        match pending.pop():
            case Let(variables, _):
                found.update(variable.name for variable in variables)
            case If(_, then, otherwise):
                pending += [*then, *otherwise]
            case For() as loop:
                found.update((loop.counter.name, *(carried.variable.name for carried in loop.carried)))
                pending += loop.body
    return found
