"""Loop unswitching: rounds that add products of zeros do not take place.

A mask that is the same for a whole program, and in all rounds of a loop, may make all factors of a product zero: a
gradient of a convolution with stride 2 has programs for positions of the image that no window lies on. Such a program
needs no round, and what is loaded in those of the others needs no such mask::

    c = z < 1                                      c = z < 1
    for r = 0, 512, RBLOCK                         for r = 0, where(c, 512, 0), RBLOCK
        a = masked(c, load(in0 + i), 0)                a = load(in0 + i)
        b = load(in1 + k, mask=c, other=0)             b = load(in1 + k)
        next sum = dot(a, b, sum)                      next sum = dot(a, b, sum)

Loads without a mask can be under way to shared memory while others are multiplied. Both factors have to be zero: zero
times infinity is no number. (Allen, Cocke, "A Catalogue of Optimizing Transformations", 1971.)
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from ferrite_ir.language.dtypes import BOOL
from ferrite_triton.tile.build import both, where
from ferrite_triton.tile.language import Cast, Dot, Elementwise, Expression, Literal, Load, Name, TileType
from ferrite_triton.tile.rewriting import other_conditions, rewritten, unmasked
from ferrite_triton.tile.statements import For, If, Let, Statement, TileProgram


def unswitch_loops(program: TileProgram) -> TileProgram:
    """Returns a program whose loops over products have no rounds where a condition makes all factors zero."""
    return replace(program, body=_block(program.body, frozenset()))


def _block(body: tuple[Statement, ...], known: AbstractSet[str]) -> tuple[Statement, ...]:
    """Returns statements with the loops among them unswitched; ``known`` are the scalar conditions named before."""
    found: list[Statement] = []
    conditions = set(known)
    for statement in body:
        match statement:
            case Let((variable,), _) if variable.type.dtype is BOOL and not variable.type.shape:
                conditions.add(variable.name)
            case If(condition, then, otherwise):
                statement = If(condition, _block(then, conditions), _block(otherwise, conditions))  # noqa: PLW2901
            case For():
                inside = replace(statement, body=_block(statement.body, conditions))
                statement = _unswitched(inside, conditions)  # noqa: PLW2901
        found.append(statement)
    return tuple(found)


def _unswitched(loop: For, conditions: AbstractSet[str]) -> For:
    """Returns a loop that takes place where all conditions hold without which each of its rounds adds zeros."""
    lets = [each for each in loop.body if isinstance(each, Let)]
    if not loop.carried or len(lets) < len(loop.body):
        return loop
    values = {each.variables[0].name: each.value for each in lets}
    needed = set(conditions)
    for carried in loop.carried:
        match carried.following:
            case Dot(left, right, Name(name)) if name == carried.variable.name:
                needed &= _conditions_of(left, values) & _conditions_of(right, values)
            case _:
                return loop
    if not needed:
        return loop
    types = {each.variables[0].name: each.variables[0].type for each in lets}
    true = set(needed)
    for each in lets:
        if other_conditions(each.value, true) is None:
            true.add(each.variables[0].name)
    body = tuple(Let(each.variables, _assuming(each, true, types)) for each in lets)
    condition = both(*map(Name, sorted(needed)))
    return replace(loop, stop=where(condition, loop.stop, loop.start), body=body)


def _conditions_of(value: Expression, values: Mapping[str, Expression]) -> set[str]:
    """Returns names of conditions without each of which an expression is zero, whatever else is so."""
    match value:
        case Name(name) if name in values:
            return _conditions_of(values[name], values)
        case Cast(inner, _):
            return _conditions_of(inner, values)
        case Load(_, mask, Literal(0)) if mask is not None:
            return _conjuncts(mask, values)
        case Elementwise("masked" | "where", (condition, inner, Literal(0))):
            return _conjuncts(condition, values) | _conditions_of(inner, values)
    return set()


def _conjuncts(condition: Expression, values: Mapping[str, Expression]) -> set[str]:
    """Returns the names of what has to hold for a condition to hold."""
    match condition:
        case Name(name):
            return {name} | (_conjuncts(values[name], values) if name in values else set())
        case Elementwise("bitand", (one, other)):
            return _conjuncts(one, values) | _conjuncts(other, values)
    return set()


def _assuming(let: Let, true: AbstractSet[str], types: Mapping[str, TileType]) -> Expression:
    """Returns the value of a statement where conditions of these names are known to hold.

    A choice becomes what it chooses where that is a value of its type: a smaller one would have to be repeated.
    """
    (variable, *_), value = let.variables, let.value
    match value:
        case Elementwise("masked" | "where", (condition, Name(name), _)) if types.get(name) == variable.type:
            return Name(name) if other_conditions(condition, true) is None else value

    def change(part: Expression) -> Expression | None:
        match part:
            case Load():
                free = unmasked(part, true)
                return free if free != part else None
            case Elementwise("bitand") if (rest := other_conditions(part, true)) is not None:
                return rest if rest != part else None
        return None

    return rewritten(value, change)
