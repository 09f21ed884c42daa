"""Dead code elimination: what is named and never used goes, with what only it was made of."""

from __future__ import annotations

from dataclasses import replace

from ferrite_triton.tile.language import Call, Expression, names_in
from ferrite_triton.tile.statements import Do, For, If, Let, Statement, TileProgram


def drop_unused(program: TileProgram) -> TileProgram:
    """Returns a program without the values that nothing uses, and without loops and conditions that do nothing.

    Calls of device functions stay, whatever becomes of their results: a program may have to wait in one.
    """
    body, _ = _block(program.body, set())
    return replace(program, body=body)


def _block(body: tuple[Statement, ...], used: set[str]) -> tuple[tuple[Statement, ...], set[str]]:
    """Returns the statements that are needed for their effects or for names used behind them, and the names used."""
    kept: list[Statement] = []
    used = set(used)
    for statement in reversed(body):
        found = _statement(statement, used)
        if found is not None:
            kept.append(found)
    return tuple(reversed(kept)), used


def _statement(statement: Statement, used: set[str]) -> Statement | None:
    match statement:
        case Let(variables, value):
            if not isinstance(value, Call) and not any(variable.name in used for variable in variables):
                return None
            _use(used, value)
        case Do(effect):
            _use(used, effect)
        case If(condition, then, otherwise):
            (then, first), (otherwise, second) = _block(then, used), _block(otherwise, used)
            if not then and not otherwise:
                return None
            used |= first | second
            _use(used, condition)
            return replace(statement, then=then, otherwise=otherwise)
        case For():
            return _loop(statement, used)
    return statement


def _loop(loop: For, used: set[str]) -> For | None:
    """Returns a loop with what its carried values need, which may be each other; None of one that does nothing."""
    wanted = {carried.variable.name for carried in loop.carried if carried.variable.name in used}
    while True:
        inside = {name for each in loop.carried if each.variable.name in wanted for name in names_in(each.following)}
        body, needed = _block(loop.body, inside)
        grown = wanted | {carried.variable.name for carried in loop.carried if carried.variable.name in needed | inside}
        if grown == wanted:
            break
        wanted = grown
    if not body and not wanted:
        return None
    carried = tuple(each for each in loop.carried if each.variable.name in wanted)
    used |= needed | inside
    for expression in (loop.start, loop.stop, loop.step, *(each.initial for each in carried)):
        _use(used, expression)
    return replace(loop, carried=carried, body=body)


def _use(used: set[str], expression: Expression) -> None:
    used.update(names_in(expression))
