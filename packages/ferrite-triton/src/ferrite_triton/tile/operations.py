"""The elementwise operations of tile programs: those of the loop language, and faster or narrower forms of some.

A form says what the printer of a target may make of an operation; its value is that of the operation, up to the error
that is stated here. Which form is exact enough where is for those to decide who build the program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ferrite_ir.language.ops import OPS, ScalarOp


@dataclass(frozen=True, slots=True)
class Form:
    """A form of an operation: the operation, and in which way it differs."""

    op: str
    meaning: str


FORMS: dict[str, Form] = {
    "quotient": Form("truncdiv", "an integer quotient, truncated, by what is known not to be zero"),
    "remainder": Form("fmod", "the remainder of such a quotient"),
    "floor_quotient": Form("floordiv", "an integer quotient, rounded down, by what is known not to be zero"),
    "floor_remainder": Form("mod", "the remainder of such a quotient, never of another sign than the divisor"),
    "lesser": Form("minimum", "of positions, which are never no numbers"),
    "greater": Form("maximum", "of positions"),
    "div_fast": Form("div", "a quotient of f32 that is off by up to 2 ulp, without the slow cases of the exact one"),
    "exp_fast": Form("exp", "off by as many roundings as the operand is large; below 2**-126 it gives 0"),
    "mul_rounded": Form("mul", "a product that is no part of a fused multiply-add"),
    "erf_narrow": Form("erf", "exact enough for results that are rounded to a 16-bit type"),
}
"""By name, the forms of operations."""

ELEMENTWISE: dict[str, ScalarOp] = {
    **OPS,
    **{name: replace(OPS[form.op], name=name) for name, form in FORMS.items()},
}
"""By name, arity and result type of every elementwise operation."""


def meaning_of(op: str) -> str:
    """Returns the operation of the loop language that an elementwise operation computes."""
    form = FORMS.get(op)
    return op if form is None else form.op
