"""Layout selection, helped: vectors of tiles that are reduced along them are loaded in one dim, and expanded then.

The compiler gives each load of a tile a layout of its own, by what its threads can read at once, and lets one layout
win among values that meet. A vector of shape ``[1, RBLOCK]`` with about as many elements as a program has threads is
spread over all of them, an element to each; if that layout wins, rows are reduced across all warps, one row after the
other, by way of shared memory::

    b: [1, RBLOCK] = load(in1 + r)                 b_line: [RBLOCK] = load(in1 + r_line)
    x: [XBLOCK, RBLOCK] = load(in0 + i) + b        b: [1, RBLOCK] = expand(b_line)
    reduce(x, axis=1)    shuffles for each row     reduce(x, axis=1)    a few for all rows of a thread

A tile of rank 1 cannot win: what is expanded from it takes the layout of what it meets, at the cost of moving a vector.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, replace

from ferrite_triton.tile.language import (
    Bitcast,
    Block,
    BlockSize,
    Cast,
    Elementwise,
    Expand,
    Expression,
    Hint,
    Literal,
    Load,
    Name,
    Offset,
    Reduce,
    Scan,
    TileType,
    Variable,
    parts_of,
)
from ferrite_triton.tile.statements import For, If, Let, Statement, TileProgram, expressions_of

_FIELDS: dict[type[Expression], tuple[str, ...]] = {
    Cast: ("value",),
    Bitcast: ("value",),
    Offset: ("pointer", "elements"),
    Load: ("pointer", "mask", "other"),
}
"""Operations that do the same to a vector in one dim, beside those on elements, and the names of their operands."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A name: its type, and for a vector the same in one dim, over lines of other vectors and scalars."""

    type: TileType
    line: Expression | None = None


def load_vectors_in_one_dim(program: TileProgram) -> TileProgram:
    """Returns a program that loads vectors along axes that it reduces or scans as tiles of rank 1."""
    axes = {
        part.axis
        for expression in expressions_of(program.body)
        for part in parts_of(expression)
        if isinstance(part, (Reduce, Scan))
    }
    if not axes:
        return program
    names = ChainMap({each.name: _Known(each.type) for each in program.parameters})
    body, _ = _rewritten(program.body, names, frozenset(axes))
    return replace(program, body=body)


def vector_axis(type_: TileType) -> int | None:
    """Returns the axis along which a tile of rank 2 or more is a vector; None if it is none."""
    longer = [axis for axis, extent in enumerate(type_.shape) if extent != 1]
    is_vector = len(type_.shape) > 1 and len(longer) == 1 and isinstance(type_.shape[longer[0]], Block)
    return longer[0] if is_vector else None


def _rewritten(
    body: tuple[Statement, ...], outside: ChainMap[str, _Known], axes: frozenset[int]
) -> tuple[tuple[Statement, ...], set[str]]:
    """Returns statements with vectors along axes loaded in one dim, and which vectors need lines, these here written.

    Args:
        body: of a program, a loop or a branch.
        outside: what is known before it.
        axes: those along which a tile is reduced somewhere.
    """
    names, needed = outside.new_child(), set[str]()
    found: list[Statement] = []
    for statement in body:
        match statement:
            case Let((variable,), value):
                names[variable.name] = known = _Known(variable.type, _line(value, variable.type, names))
                is_load = isinstance(value, Load) and vector_axis(variable.type) in axes and known.line is not None
                if is_load and known.line is not None:
                    _need(needed, known.line, names)
                found += _in_one_dim(variable, known) if is_load else (statement,)
            case Let(variables, _):
                names.update({each.name: _Known(each.type) for each in variables})
                found.append(statement)
            case For():
                inside = names.new_child({each.variable.name: _Known(each.variable.type) for each in statement.carried})
                inside[statement.counter.name] = _Known(statement.counter.type)
                rounds, wanted = _rewritten(statement.body, inside, axes)
                needed |= wanted
                found.append(replace(statement, body=rounds))
                names.update({each.variable.name: _Known(each.variable.type) for each in statement.carried})
            case If(_, then, otherwise):
                (then, first), (otherwise, second) = (_rewritten(each, names, axes) for each in (then, otherwise))
                needed |= first | second
                found.append(replace(statement, then=then, otherwise=otherwise))
            case _:
                found.append(statement)
    return _with_lines(found, names, needed)


def _with_lines(
    body: list[Statement], names: ChainMap[str, _Known], needed: set[str]
) -> tuple[tuple[Statement, ...], set[str]]:
    """Returns statements with the lines that are needed, each behind its vector, and those needed from outside."""
    found: list[Statement] = []
    here: set[str] = set()
    for statement in body:
        found.append(statement)
        if isinstance(statement, Let) and (name := statement.variables[0].name) in needed:
            here.add(name)
            if not (isinstance(statement.value, Expand) and statement.value.value == Name(line_name(name))):
                found.append(_let_line(statement.variables[0], names[name]))
    return tuple(found), needed - here


def _in_one_dim(variable: Variable, known: _Known) -> tuple[Statement, ...]:
    """Returns the statements that name a vector in one dim, and expand it."""
    others = tuple(axis for axis in range(len(variable.type.shape)) if axis != vector_axis(variable.type))
    return _let_line(variable, known), Let((variable,), Expand(Name(line_name(variable.name)), others))


def _let_line(variable: Variable, known: _Known) -> Let:
    axis = vector_axis(variable.type)
    assert axis is not None, "a line is that of a vector"
    assert known.line is not None, "a vector that has a line"
    return Let(
        (Variable(line_name(variable.name), replace(variable.type, shape=(variable.type.shape[axis],))),), known.line
    )


def _need(needed: set[str], line: Expression, names: ChainMap[str, _Known]) -> None:
    """Adds the vectors whose lines an expression names, and those that these are made of."""
    pending = [line]
    while pending:
        for part in parts_of(pending.pop()):
            vector = part.name.removesuffix(_SUFFIX) if isinstance(part, Name) and part.name not in names else ""
            if vector and vector not in needed:
                needed.add(vector)
                made_of = names[vector].line
                assert made_of is not None, "a vector that has a line"
                pending.append(made_of)


# --- expressions ------------------------------------------------------------------------------------------------------


def _line(value: Expression, type_: TileType, names: ChainMap[str, _Known]) -> Expression | None:
    """Returns a vector in one dim; None of what is no vector, or is made of what has no line."""
    axis = vector_axis(type_)
    if axis is None:
        return None
    match value:
        case Name() | Literal() | BlockSize():
            return _leaf(value, axis, names)
        case Expand(inner, _):
            return inner if _is_rank_1(inner, names) else None
        case Hint(inner, says, numbers):
            line = _line(inner, type_, names)
            return None if line is None else Hint(line, says, (numbers[axis],))
        case Elementwise(op, operands):
            lines = [_line(operand, type_, names) for operand in operands]
            return None if None in lines else Elementwise(op, tuple(line for line in lines if line is not None))
    is_usual = type(value) in _FIELDS and not (isinstance(value, Load) and value.row_per_thread)
    return _with_operands(value, type_, names) if is_usual else None


def _with_operands(value: Expression, type_: TileType, names: ChainMap[str, _Known]) -> Expression | None:
    operands = {name: getattr(value, name) for name in _FIELDS[type(value)]}
    lines = {name: _line(each, type_, names) for name, each in operands.items() if each is not None}
    return None if None in lines.values() else replace(value, **lines)


def _leaf(value: Expression, axis: int, names: ChainMap[str, _Known]) -> Expression | None:
    if not isinstance(value, Name):
        return value
    known = names.get(value.name)
    if known is None or not known.type.shape:
        return value  # a block constant, or a scalar
    return Name(line_name(value.name)) if known.line is not None and vector_axis(known.type) == axis else None


def _is_rank_1(inner: Expression, names: ChainMap[str, _Known]) -> bool:
    """Returns whether an expression is of rank 1: positions in a block, and what is added to or made of them."""
    mentioned = (names.get(part.name) for part in parts_of(inner) if isinstance(part, Name))
    return all(known is None or len(known.type.shape) <= 1 for known in mentioned)


_SUFFIX = "_line"


def line_name(vector: str) -> str:
    """Returns the name of a vector in one dim."""
    return vector + _SUFFIX
