"""Users' combines in tile programs: as functions of two states for scans of tiles, and joined in place.

Truth values are scanned as integers, as those of named combines are. A function may take *marked* states, which say
first whether they are states of any point at all: what lies past the end of a line has no neutral element that could
stand there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrite_ir.language.combine_functions import LEFT, RIGHT, CombineFunction
from ferrite_ir.language.dtypes import BOOL, I32, DType
from ferrite_ir.language.scalar import Scalar, postorder
from ferrite_triton.tile.build import apply, converted, literal, where
from ferrite_triton.tile.language import Bitcast, Cast, Expression, Full, Literal, Name, TileType, Variable
from ferrite_triton.tile.statements import Function, Let
from ferrite_triton.tile.types import types_of

CHOICES = frozenset(("where", "masked"))
"""Operations that only choose between operands: narrow floats pass through them."""

Hold = Callable[[str, Expression], Expression]
"""Names a value: takes a prefix for the name and the value, returns what stands for it."""


def held_type(dtype: DType) -> DType:
    """Returns the type of a component in the registers."""
    return I32 if dtype is BOOL else dtype


def joined(
    function: CombineFunction, left: Sequence[Expression], right: Sequence[Expression], hold: Hold
) -> tuple[Expression, ...]:
    """Returns what two states combine to; the components are numbers, or tiles whose elements are."""
    known: dict[Scalar, Expression] = {}
    for side, state in ((LEFT, left), (RIGHT, right)):
        for node, held in zip(function.components(side), state, strict=True):
            known[node] = apply("ne", held, Literal(0, I32)) if node.dtype is BOOL else held
    for node in postorder(function.bodies):
        if node not in known:
            known[node] = _computed(node, [known[operand] for operand in node.operands], hold)
    return tuple(
        hold("flag", Cast(known[body], I32)) if body.dtype is BOOL else known[body] for body in function.bodies
    )


def _computed(node: Scalar, operands: list[Expression], hold: Hold) -> Expression:
    match node.op:
        case "const":
            return literal(node.value, node.dtype)
        case "cast" | "rounded":
            return hold("cast", Cast(operands[0], node.dtype))
        case "bitcast":
            return hold("bits", Bitcast(operands[0], node.dtype))
    kinds = [operand.dtype for operand in node.operands]
    if node.op in CHOICES or not any(kind.is_narrow_float for kind in kinds):
        return hold(node.op, apply(node.op, *operands))
    wide = (converted(operand, kind, kind.compute) for operand, kind in zip(operands, kinds, strict=True))
    made: Expression = apply(node.op, *wide)
    return hold(node.op, Cast(made, node.dtype) if node.dtype.is_narrow_float else made)


def tile_function(name: str, function: CombineFunction, *, is_marked: bool) -> Function:
    """Returns the function of two states, marked or not, under a name."""
    kinds = tuple(TileType(held_type(dtype)) for dtype in function.types)
    left, right = (tuple(Variable(f"{side}{i}", kind) for i, kind in enumerate(kinds)) for side in (LEFT, RIGHT))
    known = {variable.name: variable.type for variable in (*left, *right)}
    body: list[Let] = []

    def hold(prefix: str, value: Expression) -> Expression:
        (kind,) = types_of(value, known)
        variable = Variable(f"{prefix}_{len(body) + 1}", kind)
        known[variable.name] = kind
        body.append(Let((variable,), value))
        return Name(variable.name)

    results = joined(function, _names(left), _names(right), hold)
    if not is_marked:
        return Function(name, left, right, tuple(body), tuple(map(_scalar, results)))
    marks = tuple(Variable(f"has_{side}", TileType(I32)) for side in (LEFT, RIGHT))
    has_left, has_right = (apply("ne", Name(mark.name), Literal(0, I32)) for mark in marks)
    known |= {mark.name: mark.type for mark in marks}
    chosen = [
        where(has_left, where(has_right, both, first), second)
        for both, first, second in zip(results, _names(left), _names(right), strict=True)
    ]
    mark = apply("bitor", *(Name(mark.name) for mark in marks))
    return Function(name, (marks[0], *left), (marks[1], *right), tuple(body), (mark, *chosen))


def _names(variables: Sequence[Variable]) -> tuple[Name, ...]:
    return tuple(Name(variable.name) for variable in variables)


def _scalar(result: Expression) -> Expression:
    return Full(result, ()) if isinstance(result, Literal) else result
