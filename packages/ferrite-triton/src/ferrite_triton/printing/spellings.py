"""The table from scalar operations to Triton text.

A row gives, for each kind of operands (float, int, uint, bool), a template with ``{0}``, ``{1}``, … for the operands,
or a function that returns the text. Operands are names, so templates need no parentheses. Adding an operation is adding
a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ferrite_ir.language.dtypes import I16, DType
from ferrite_ir.language.ops import REQUIREMENTS

from .literals import divided_text, full_text, type_text
from .printed import ATOM, Made
from .rows import Row, everywhere, integers, numbers, row_of


@dataclass(frozen=True, slots=True)
class Operands:
    """What a row's function sees.

    Attributes:
        texts: the operands.
        dtype: the type of the first operand, widened.
        literals: for each operand its number if it is a literal, else None.
        hold: names an intermediate result and returns the name.
    """

    texts: tuple[str, ...]
    dtype: DType
    literals: tuple[bool | int | float | None, ...]
    hold: Callable[[str], str]


Spelling = str | Callable[[Operands], Made]
"""A template, or what makes the text: alone, or with how strongly its operator binds (`OPERATORS`)."""


def _divide(operands: Operands) -> tuple[str, int]:
    a, b = operands.texts
    return divided_text(a, b, operands.literals[1], operands.dtype)


def _quotient(operands: Operands) -> str:
    return _divide(operands)[0]


def _reciprocal(operands: Operands) -> Made:
    (a,) = operands.texts
    return (f"fmath.reciprocal({a})", ATOM) if operands.dtype.bits == 32 else f"1.0 / {a}"


def _called(function: str, operands: Operands) -> str:
    """Returns a call of a function whose operands are tiles, literals too."""
    texts = [
        text if literal is None else full_text(literal, operands.dtype)
        for text, literal in zip(operands.texts, operands.literals, strict=True)
    ]
    return f"{function}({', '.join(texts)})"


def _fused(operands: Operands) -> str:
    """Returns a product and a sum with one rounding, also where the compiler of kernels is told to fuse nothing."""
    return _called("tl.fma", operands)


def _rounded_product(operands: Operands) -> str:
    """Returns a product that is rounded before anything is added to it."""
    return _called("fmath.product", operands)


def _truncdiv_float(operands: Operands) -> str:
    return f"fmath.trunc({operands.hold(_quotient(operands))})"


def _mod_float(operands: Operands) -> str:
    a, b = operands.texts
    rest = operands.hold(f"fmath.fmod({a}, {b})")
    return f"tl.where(({rest} != 0) & (({b} < 0) != ({rest} < 0)), {rest} + {b}, {rest})"


def _floordiv_float(operands: Operands) -> str:
    # Python's float floor division: exact remainder first, then a quotient that is an integer up to rounding.
    a, b = operands.texts
    hold = operands.hold
    ratio = hold(_quotient(operands))
    rest = hold(f"fmath.fmod({a}, {b})")
    difference = hold(f"{a} - {rest}")
    exact = hold(_quotient(Operands((difference, b), operands.dtype, (None, None), hold)))
    lowered = hold(f"tl.where(({rest} != 0) & (({b} < 0) != ({rest} < 0)), {exact} - 1.0, {exact})")
    floor = hold(f"fmath.floor({lowered})")
    floor = hold(f"tl.where({lowered} - {floor} > 0.5, {floor} + 1.0, {floor})")
    signed = hold(f"tl.where({lowered} != 0, {floor}, fmath.copysign({lowered} * 0.0, {ratio}))")
    return f"tl.where({b} == 0, {ratio}, {signed})"


def _divided(spelling: str, *, lowers: bool = False) -> Spelling:
    """Returns the spelling of a division of integers; by zero it has all bits set, as a GPU's own has it.

    Of 64 bits only the lower half is set where the upper ones of both operands are 0: such numbers are divided as those
    of 32 bits, which takes a fraction of the time. Quotients and remainders are alike in this.

    To the compiler a division is a promise that the divisor is not zero, also where its result is thrown away: it would
    take the condition out of ``where(b != 0, a // b, 0)``.

    Args:
        spelling: by what is not zero.
        lowers: whether it rounds towards minus infinity, which is one less for negative numbers, also those over zero.
    """

    def write(operands: Operands) -> str:
        (a, b), literal = operands.texts, operands.literals[1]
        if literal:
            return spelling.format(a, b)
        ones = f"~({a} * 0)" if literal == 0 else f"~{b}"
        if operands.dtype.bits == 64:
            ones = f"tl.where(({a} >> 32) == 0, {0xFFFFFFFF}, {ones})"
        if lowers:
            ones = f"{ones} - ({a} < 0).to({type_text(operands.dtype)})"
        if literal == 0:
            return ones
        divisor = operands.hold(f"tl.where({b} == 0, 1, {b})")
        return f"tl.where({b} == 0, {ones}, {spelling.format(a, divisor)})"

    return write


def _power_integer(operands: Operands) -> str:
    """Returns square-and-multiply over the bits of the exponent, with torch's results for negative exponents."""
    a, b = operands.texts
    hold, literal = operands.hold, operands.literals[1]
    signed = operands.dtype.kind == "int"
    bits = operands.dtype.bits if literal is None else max(1, int(literal).bit_length())
    result, base, exponent = hold(f"{a} * 0 + 1"), a, hold(f"{a} * 0 + {b}")
    for position in range(bits - 1 if signed and literal is None else bits):
        result = hold(f"tl.where((({exponent} >> {position}) & 1) != 0, {result} * {base}, {result})")
        base = hold(f"{base} * {base}") if position < bits - 1 else base
    if not signed:
        return result
    odd = f"tl.where(({exponent} & 1) != 0, -1, 1)"
    inverse = hold(f"tl.where({a} == 1, 1, tl.where({a} == -1, {odd}, 0))")
    return f"tl.where({exponent} < 0, {inverse}, {result}).to({type_text(operands.dtype)})"


def _sign(operands: Operands) -> str:
    (a,) = operands.texts
    kind = type_text(operands.dtype)
    return f"({a} > 0).to({kind}) - ({a} < 0).to({kind})"


def _signbit(operands: Operands) -> str:
    return f"{operands.texts[0]}.to(tl.int{operands.dtype.bits}, bitcast=True) < 0"


def _negative(operands: Operands) -> str:
    (a,) = operands.texts
    return f"fmath.negative_short({a})" if operands.dtype == I16 else f"-{a}"


def _magnitude(operands: Operands) -> str:
    (a,) = operands.texts
    return f"fmath.magnitude_short({a})" if operands.dtype == I16 else f"tl.abs({a})"


def _in_range(operands: Operands) -> bool:
    count = operands.literals[1]
    return count is not None and 0 <= count < operands.dtype.bits


def _shift_left(operands: Operands) -> str:
    a, b = operands.texts
    if _in_range(operands):
        return f"{a} << {b}"
    inside = operands.hold(f"({b} >= 0) & ({b} < {operands.dtype.bits})")
    return f"tl.where({inside}, {a} << tl.where({inside}, {b}, 0), 0).to({type_text(operands.dtype)})"


def _shift_right(operands: Operands) -> str:
    a, b = operands.texts
    if _in_range(operands):
        return f"{a} >> {b}"
    bits, kind = operands.dtype.bits, type_text(operands.dtype)
    inside = operands.hold(f"({b} >= 0) & ({b} < {bits})")
    if operands.dtype.kind == "uint":
        return f"tl.where({inside}, {a} >> tl.where({inside}, {b}, 0), 0).to({kind})"
    return f"({a} >> tl.where({inside}, {b}, {bits - 1})).to({kind})"


def _calls(names: str, arity: int = 1) -> dict[str, Row[Spelling]]:
    """Returns rows for functions of floats that `fmath` has under the same name."""
    operands = ", ".join(f"{{{position}}}" for position in range(arity))
    return {name: Row(f"fmath.{name}({operands})") for name in names.split()}


ROWS: dict[str, Row[Spelling]] = {
    "add": numbers("{0} + {1}"),
    "sub": numbers("{0} - {1}"),
    "mul": numbers("{0} * {1}"),
    "div": Row(_divide),
    "fma": Row(_fused),
    "minimum": Row("fmath.minimum_nan({0}, {1})", "fmath.minimum_nan({0}, {1})", "tl.minimum({0}, {1})", "{0} & {1}"),
    "maximum": Row("fmath.maximum_nan({0}, {1})", "fmath.maximum_nan({0}, {1})", "tl.maximum({0}, {1})", "{0} | {1}"),
    "floordiv": Row(_floordiv_float, _divided("fmath.floordiv({0}, {1})", lowers=True), _divided("{0} // {1}")),
    "truncdiv": Row(_truncdiv_float, _divided("fmath.truncdiv({0}, {1})"), _divided("{0} // {1}")),
    "mod": Row(_mod_float, _divided("fmath.floormod({0}, {1})"), _divided("{0} % {1}")),
    "fmod": Row("fmath.fmod({0}, {1})", _divided("{0} % {1}"), _divided("{0} % {1}")),
    "pow": Row("fmath.pow({0}, {1})", _power_integer, _power_integer),
    "neg": Row("{0} * -1.0", _negative, "-{0}"),
    "abs": Row("tl.abs({0})", _magnitude, "{0}"),
    "sign": Row(_sign, _sign, "({0} != 0).to({0}.dtype)"),
    "relu": Row("fmath.maximum_nan({0}, 0.0)", "tl.maximum({0}, 0)", "{0}"),
    "reciprocal": Row(_reciprocal),
    **_calls("sigmoid"),
    "isnan": Row("{0} != {0}"),
    "logical_not": Row(bool="{0} == 0"),
    "bitnot": integers("~{0}", "{0} == 0"),
    "bitand": integers("{0} & {1}", "{0} & {1}"),
    "bitor": integers("{0} | {1}", "{0} | {1}"),
    "bitxor": integers("{0} ^ {1}", "{0} ^ {1}"),
    "shl": integers(_shift_left),
    "shr": integers(_shift_right),
    "eq": everywhere("{0} == {1}"),
    "ne": everywhere("{0} != {1}"),
    "lt": Row("{0} < {1}", "{0} < {1}", "{0} < {1}", "({0} == 0) & {1}"),
    "le": Row("{0} <= {1}", "{0} <= {1}", "{0} <= {1}", "({0} == 0) | {1}"),
    "gt": Row("{0} > {1}", "{0} > {1}", "{0} > {1}", "{0} & ({1} == 0)"),
    "ge": Row("{0} >= {1}", "{0} >= {1}", "{0} >= {1}", "{0} | ({1} == 0)"),
    # The condition is bool and comes first.
    "where": Row(bool="tl.where({0}, {1}, {2})"),
    "masked": Row(bool="tl.where({0}, {1}, {2})"),
    **{name: Row(bool="{1}") for name in REQUIREMENTS},
    "ldexp": Row("fmath.ldexp({0}, {1}.to(tl.int32))"),
    "rand": Row(int="fmath.rand({0}, {1})"),
    "randn": Row(int="fmath.randn({0}, {1})"),
    "randint64": Row(int="fmath.randint64({0}, {1}, {2}, {3})"),
    **_calls("atan2 hypot copysign nextafter logaddexp", 2),
    "signbit": Row(_signbit),
    **_calls("floor ceil trunc round sqrt rsqrt isinf"),
    **_calls("exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"),
    **_calls("erf erfc erfcx erfinv lgamma digamma i0 i0e i1 i1e j0 j1 y0 y1 k0 k1 k0e k1e airy_ai ndtri"),
    **_calls("zeta igamma igammac", 2),
    **_calls("chebyshev_t chebyshev_u chebyshev_v chebyshev_w hermite_h hermite_he laguerre_l legendre_p", 2),
    "gcd": integers("fmath.gcd({0}, {1})"),
    # Forms of operations, of which ferrite_triton.tile.operations says what they are.
    "quotient": integers("{0} // {1}"),
    "remainder": integers("{0} % {1}"),
    "floor_quotient": integers("fmath.floordiv({0}, {1})"),
    "floor_remainder": integers("fmath.floormod({0}, {1})"),
    "lesser": integers("tl.minimum({0}, {1})"),
    "greater": integers("tl.maximum({0}, {1})"),
    "div_fast": Row("{0} / {1}"),
    "exp_fast": Row("fmath.fast_exp({0})"),
    "mul_rounded": Row(_rounded_product),
    "erf_narrow": Row("fmath.erf_narrow({0})"),
}

# Templates in which a bare literal takes the type of the other operands.
_TAKES_LITERALS = ("tl.where(",)


def spelling_of(op: str, dtype: DType) -> Spelling:
    """Returns how the operation is written for operands of this (computed) type.

    Raises:
        UnsupportedDefinition: the operation has no text for the type.
    """
    return row_of(ROWS, op, dtype, "kernel")


def takes_literals(spelling: Spelling) -> bool:
    """Returns whether bare literals may stand for operands; otherwise they are written as tiles of their type."""
    return isinstance(spelling, str) and ("(" not in spelling or spelling.startswith(_TAKES_LITERALS))
