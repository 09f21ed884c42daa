"""Short ways to write expressions of tile programs."""

from __future__ import annotations

from collections.abc import Iterable

from ferrite_ir.language.dtypes import BOOL, DType
from ferrite_ir.language.scalar import Number
from ferrite_ir.reference.combine_semantics import neutral

from .language import Block, BlockSize, Cast, Elementwise, Expression, Full, Lanes, Literal, Name, Shape


def apply(op: str, *operands: Expression) -> Elementwise:
    """Returns an elementwise operation."""
    return Elementwise(op, operands)


def add(*terms: Expression) -> Expression:
    """Returns the sum of terms, from the left."""
    return _chain("add", terms)


def sub(left: Expression, right: Expression) -> Expression:
    """Returns a difference."""
    return apply("sub", left, right)


def mul(*factors: Expression) -> Expression:
    """Returns the product of factors, from the left."""
    return _chain("mul", factors)


def where(condition: Expression, then: Expression, otherwise: Expression) -> Expression:
    """Returns a choice for each element."""
    return apply("where", condition, then, otherwise)


def both(*conditions: Expression) -> Expression:
    """Returns whether all conditions hold."""
    return _chain("bitand", conditions)


def either(*conditions: Expression) -> Expression:
    """Returns whether one of the conditions holds."""
    return _chain("bitor", conditions)


def all_of(conditions: Iterable[Expression]) -> Expression | None:
    """Returns whether all conditions hold; None of none."""
    found = tuple(conditions)
    return both(*found) if found else None


def quotient(value: Expression, by: Expression) -> Expression:
    """Returns the quotient of integers that are not negative, by what is not zero."""
    return apply("quotient", value, by)


def remainder(value: Expression, by: Expression) -> Expression:
    """Returns the remainder of such a quotient."""
    return apply("remainder", value, by)


def literal(value: Number, dtype: DType) -> Literal:
    """Returns a number of a type."""
    if dtype is BOOL:
        return Literal(bool(value), dtype)
    return Literal(float(value) if dtype.is_float else int(value), dtype)


def block_size(constant: str, dtype: DType, parts: int = 1) -> BlockSize:
    """Returns what a block constant stands for, or an equal part of it."""
    return BlockSize(Block(constant, parts), dtype)


def lanes(constant: str, parts: int = 1) -> Lanes:
    """Returns the numbers 0, 1, … up to a block constant, or to an equal part of it."""
    return Lanes(Block(constant, parts))


def full(shape: Shape, value: Number, dtype: DType) -> Full:
    """Returns a tile that has one number everywhere."""
    return Full(literal(value, dtype), shape)


def converted(value: Expression, source: DType, target: DType) -> Expression:
    """Returns a value in another type; numbers become numbers of it."""
    match value:
        case Literal(number):
            return literal(number, target)
        case BlockSize(block):
            return BlockSize(block, target)
    return value if source is target else Cast(value, target)


def neutral_of(combine: str, dtype: DType) -> Number:
    """Returns what changes nothing when it is combined, for a combine of one value."""
    (found,) = neutral(combine, dtype)
    return found


def named(name: str) -> Name:
    """Returns the value of a variable."""
    return Name(name)


def _chain(op: str, operands: tuple[Expression, ...]) -> Expression:
    found, *rest = operands
    for operand in rest:
        found = apply(op, found, operand)
    return found
