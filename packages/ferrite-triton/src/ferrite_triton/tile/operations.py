"""The elementwise operations of tile programs: those of the loop language, and faster or narrower variants of some.

A variant says what the printer of a target may make of an operation; its value is that of the operation, up to the
error that is stated here. Which variant is exact enough where is for those to decide who build the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ferrite_ir.language.ops import OPS, ScalarOp
from ferrite_ir.language.scalar import Number


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of an operation: the operation, and in which way it differs."""

    op: str
    meaning: str


VARIANTS: dict[str, Variant] = {
    "quotient": Variant("truncdiv", "an integer quotient, truncated, by what is known not to be zero"),
    "remainder": Variant("fmod", "the remainder of such a quotient"),
    "floor_quotient": Variant("floordiv", "an integer quotient, rounded down, by what is known not to be zero"),
    "floor_remainder": Variant("mod", "the remainder of such a quotient, never of another sign than the divisor"),
    "lesser": Variant("minimum", "of positions, which are never no numbers"),
    "greater": Variant("maximum", "of positions"),
    "div_fast": Variant("div", "a quotient of f32 that is off by up to 2 ulp, without the slow cases of the exact one"),
    "exp_fast": Variant("exp", "off by as many roundings as the operand is large; below 2**-126 it gives 0"),
    "mul_rounded": Variant("mul", "a product that is no part of a fused multiply-add"),
    "erf_narrow": Variant("erf", "exact enough for results that are rounded to a 16-bit type"),
}
"""By name, the variants of operations."""

SELECTIONS = frozenset(("where", "masked"))
"""Operations whose first operand is a condition, and the others what it chooses between."""

ELEMENTWISE: dict[str, ScalarOp] = {
    **OPS,
    **{name: replace(OPS[variant.op], name=name) for name, variant in VARIANTS.items()},
}
"""By name, arity and result type of every elementwise operation."""


def meaning_of(op: str) -> str:
    """Returns the operation of the loop language that an elementwise operation computes."""
    variant = VARIANTS.get(op)
    return op if variant is None else variant.op


def is_negative_zero(value: Number) -> bool:
    """Returns whether a number is a zero with its sign bit set: no literal of Triton, no masked load gives one."""
    return isinstance(value, float) and value == 0.0 and math.copysign(1.0, value) < 0
