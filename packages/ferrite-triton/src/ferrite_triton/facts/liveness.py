"""Liveness analysis: how many tiles of a program are alive at once, which says how many registers a thread needs.

Source: Aho, Lam, Sethi, Ullman, "Compilers: principles, techniques, and tools" (2006), section 9.2.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ferrite_triton.analysis.space import Space
from ferrite_triton.tile.language import (
    Block,
    Broadcast,
    Call,
    Elementwise,
    Expression,
    Load,
    TileType,
    Variable,
    names_in,
    parts_of,
)
from ferrite_triton.tile.statements import Do, For, If, Let, Statement, TileProgram


def live_tiles(space: Space, program: TileProgram) -> int:
    """Returns the largest number of values with an extent along the reduction axis that are alive at one statement.

    Integers and masks that are made of positions and sizes alone do not count: the compiler computes them anew where
    they are needed. Neither does what there is one of for several points: it is small beside a tile.
    """
    if not space.reduces_tile:
        return 0
    steps = list(_steps(program.body))
    last = {name: number for number, step in enumerate(steps) for name in step.uses}
    kept: set[str] = set()
    alive: dict[str, int] = {}
    most = 0
    for number, step in enumerate(steps):
        alive = {name: end for name, end in alive.items() if end > number}
        if step.makes or not kept.isdisjoint(step.uses):
            kept.update(variable.name for variable in step.defines)
            held = (variable for variable in step.defines if _holds_block(variable.type))
            alive |= {variable.name: last.get(variable.name, number) for variable in held}
        most = max(most, len(alive))
    return most


def _holds_block(type_: TileType) -> bool:
    """Returns whether a tile has an element, at least, for each point of a block of the reduction axis."""
    parts = [extent.parts for extent in type_.shape if isinstance(extent, Block) and extent.constant == "RBLOCK"]
    return bool(parts) and prod(extent for extent in type_.shape if isinstance(extent, int)) >= parts[0]


@dataclass(frozen=True, slots=True)
class _Step:
    """A statement: what it defines, the names that it uses, and whether it makes values out of positions or memory."""

    defines: tuple[Variable, ...]
    uses: list[str]
    makes: bool


def _step_of(defines: tuple[Variable, ...], value: Expression) -> _Step:
    is_tile = any(variable.type.shape for variable in defines)
    is_number = any(variable.type.dtype.is_float and not variable.type.is_pointer for variable in defines)
    is_chosen = isinstance(value, Broadcast) or (isinstance(value, Elementwise) and value.op == "where")
    makes = is_tile and (is_number or is_chosen or any(map(_is_read, parts_of(value))))
    return _Step(defines, names_in(value), makes)


def _is_read(part: Expression) -> bool:
    return isinstance(part, Load) or (isinstance(part, Call) and part.function != "opaque_indices")


def _steps(body: tuple[Statement, ...]) -> Iterator[_Step]:
    """Yields the statements, in the order in which they are printed."""
    for statement in body:
        match statement:
            case Let(variables, value):
                yield _step_of(variables, value)
            case Do(effect):
                yield _step_of((), effect)
            case For():
                yield from _steps(statement.body)
                for carried in statement.carried:
                    yield _step_of((carried.variable,), carried.following)
            case If(condition, then, otherwise):
                yield _step_of((), condition)
                yield from _steps(then)
                yield from _steps(otherwise)
