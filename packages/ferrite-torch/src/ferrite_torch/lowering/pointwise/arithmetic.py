"""Formulas of arithmetic: what one element is, as torch computes it, for integers and floats.

Every function here takes scalar expressions of one type (and numbers for the parameters of an op) and returns one.
Integer division and remainders follow eager: rounding as asked, sign of the remainder that of the divisor
(``remainder``) or of the dividend (``fmod``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL, F32, F64, I8, I16, I32, I64, DType
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Unlowered
from ferrite_torch.lowering.expressions import (
    absolute,
    add,
    both,
    call,
    choose,
    div,
    either,
    eq,
    exp,
    floor,
    ge,
    gt,
    inverted,
    is_infinite,
    is_nan,
    is_true,
    larger,
    log1p,
    lt,
    mul,
    ne,
    neg,
    reciprocal,
    rsqrt,
    smaller,
    sqrt,
    sub,
    trunc,
)


def added(a: Scalar, b: Scalar, alpha: float = 1) -> Scalar:
    return add(a, _scaled(b, alpha))


def subtracted(a: Scalar, b: Scalar, alpha: float = 1) -> Scalar:
    return sub(a, _scaled(b, alpha))


def subtracted_from(a: Scalar, b: Scalar, alpha: float = 1) -> Scalar:
    return sub(b, _scaled(a, alpha))


def _scaled(a: Scalar, factor: float) -> Scalar:
    return a if factor == 1 else mul(a, factor)


def divided(a: Scalar, b: Scalar, rounding_mode: str | None = None) -> Scalar:
    match rounding_mode:
        case None:
            return div(a, b) if a.dtype.is_float else call("truncdiv", a, b)
        case "trunc":
            return trunc(div(a, b)) if a.dtype.is_float else call("truncdiv", a, b)
        case "floor":
            return divided_down(a, b)
    raise Unlowered(f"rounding_mode={rounding_mode!r}")


def divided_down(a: Scalar, b: Scalar) -> Scalar:
    """Returns the floor of ``a / b``, from the remainder where ``a / b`` itself would round up to the next integer."""
    if not a.dtype.is_float:
        return call("floordiv", a, b)
    remainder = call("fmod", a, b)
    quotient = div(sub(a, remainder), b)
    quotient = choose(both(ne(remainder, 0), differ_in_sign(b, remainder)), sub(quotient, 1), quotient)
    nearest = floor(quotient)
    nearest = choose(gt(sub(quotient, nearest), 0.5), add(nearest, 1), nearest)
    nearest = choose(eq(quotient, 0), call("copysign", sc.const(0.0, a.dtype), div(a, b)), nearest)
    return choose(eq(b, 0), div(a, b), nearest)


def differ_in_sign(a: Scalar, b: Scalar) -> Scalar:
    """Returns whether exactly one of the two is negative."""
    return ne(lt(a, 0), lt(b, 0))


def remainder(a: Scalar, b: Scalar) -> Scalar:
    if not a.dtype.is_float:
        return call("mod", a, b)
    rest = call("fmod", a, b)
    return choose(both(ne(rest, 0), differ_in_sign(b, rest)), add(rest, b), rest)


def raised(a: Scalar, b: Scalar) -> Scalar:
    """Returns ``a ** b``, by multiplication or a root where the exponent is a constant that torch treats so."""
    if a.dtype is BOOL:
        return either(a, inverted(b))
    special = _SPECIAL_POWERS.get(b.value) if b.op == "const" and a.dtype.is_float else None
    return call("pow", a, b) if special is None else special(a)


_SPECIAL_POWERS: dict[float, Callable[[Scalar], Scalar]] = {
    0.0: lambda a: sc.const(1.0, a.dtype),
    1.0: lambda a: a,
    2.0: lambda a: mul(a, a),
    3.0: lambda a: mul(mul(a, a), a),
    0.5: sqrt,
    -0.5: rsqrt,
    -1.0: reciprocal,
    -2.0: lambda a: reciprocal(mul(a, a)),
}


def squared(a: Scalar) -> Scalar:
    return mul(a, a)


def fraction(a: Scalar) -> Scalar:
    return sub(a, trunc(a))


def magnitude(a: Scalar) -> Scalar:
    return a if a.dtype.kind in ("uint", "bool") else absolute(a)


def sign_of(a: Scalar) -> Scalar:
    return a if a.dtype is BOOL else call("sign", a)


def rectified(a: Scalar) -> Scalar:
    return a if a.dtype is BOOL else call("relu", a)


def rounded_to(a: Scalar, decimals: int = 0) -> Scalar:
    """Returns ``a`` rounded half to even at a decimal place."""
    if not a.dtype.is_float:
        return a
    if decimals == 0:
        return call("round", a)
    scale = float(10 ** abs(decimals))
    if decimals > 0:
        return div(call("round", mul(a, scale)), scale)
    return mul(call("round", div(a, scale)), scale)


def multiplied_add(a: Scalar, x: Scalar, y: Scalar, value: float = 1) -> Scalar:
    """Returns ``a + value * (x * y)``, the sum and the factor before it with one rounding, as CUDA's kernels."""
    return fused(x, y, a) if value == 1 else fused(mul(x, y), _converted(value, a.dtype), a)


def fused(x: Scalar, y: Scalar, a: Scalar) -> Scalar:
    """Returns ``x * y + a`` with one rounding, as eager's kernels of ``addcmul_`` compute it."""
    return call("fma", x, y, a) if a.dtype.is_float else add(mul(x, y), a)


def divided_add(a: Scalar, x: Scalar, y: Scalar, value: float = 1) -> Scalar:
    """Returns ``a + value * (x / y)``, the sum and the factor before it with one rounding, as CUDA's kernels."""
    quotient = divided(x, y)
    return add(a, quotient) if value == 1 else fused(quotient, _converted(value, a.dtype), a)


def _converted(value: float, dtype: DType) -> Scalar:
    """Returns a number as one of a type: integers lose their fraction, as where torch's kernels take a number."""
    return sc.const(float(value) if dtype.is_float else int(value), dtype)


def interpolated(start: Scalar, end: Scalar, weight: Scalar) -> Scalar:
    """Returns ``start + weight * (end - start)``, from the nearer end, so that weights 0 and 1 are exact."""
    span = sub(end, start)
    near_end = sub(end, mul(span, sub(1, weight)))
    return choose(lt(absolute(weight), 0.5), add(start, mul(weight, span)), near_end)


def clamped(a: Scalar, low: Scalar | None = None, high: Scalar | None = None) -> Scalar:
    """Returns ``a`` held between bounds; NaN in any operand wins, and ``high`` wins over ``low``."""
    a = a if low is None else larger(a, low)
    return a if high is None else smaller(a, high)


def larger_number(a: Scalar, b: Scalar) -> Scalar:
    """Returns the larger operand, the other one if one is NaN."""
    return choose(is_nan(a), b, choose(is_nan(b), a, larger(a, b))) if a.dtype.is_float else larger(a, b)


def smaller_number(a: Scalar, b: Scalar) -> Scalar:
    """Returns the smaller operand, the other one if one is NaN."""
    return choose(is_nan(a), b, choose(is_nan(b), a, smaller(a, b))) if a.dtype.is_float else smaller(a, b)


def shifted_left(a: Scalar, b: Scalar) -> Scalar:
    """Returns ``a << b``; 0 for counts that are negative or not below the width."""
    if not a.dtype.is_integer:
        raise Unlowered(f"a shift of {a.dtype}")
    return choose(_is_count(b, a.dtype.bits), call("shl", a, _safe_count(b, a.dtype.bits)), 0)


def shifted_right(a: Scalar, b: Scalar) -> Scalar:
    """Returns ``a >> b``; counts that are negative or too large leave only the sign."""
    if not a.dtype.is_integer:
        raise Unlowered(f"a shift of {a.dtype}")
    signed = a.dtype.kind == "int"
    limit = a.dtype.bits - 1 if signed else a.dtype.bits
    kept = call("shr", a, _safe_count(b, limit))
    return choose(_is_count(b, limit), kept, call("shr", a, limit) if signed else 0)


def _is_count(b: Scalar, limit: int) -> Scalar:
    return both(ge(b, 0), lt(b, limit))


def _safe_count(b: Scalar, limit: int) -> Scalar:
    return choose(_is_count(b, limit), b, 0)


def stepped(a: Scalar, at_zero: Scalar) -> Scalar:
    """Returns the Heaviside step: 0 below zero and for NaN, 1 above, ``at_zero`` at zero."""
    one, zero = sc.const(1, a.dtype), sc.const(0, a.dtype)
    return choose(eq(a, 0), at_zero, choose(is_true(a) if a.dtype is BOOL else gt(a, 0), one, zero))


def log_added(a: Scalar, b: Scalar) -> Scalar:
    """Returns ``log(exp(a) + exp(b))``; equal infinities are their own result."""
    far = neg(absolute(sub(a, b)))
    return choose(both(is_infinite(a), eq(a, b)), a, add(larger(a, b), log1p(exp(far))))


def log2_added(a: Scalar, b: Scalar) -> Scalar:
    """Returns ``log2(2**a + 2**b)``; equal infinities are their own result."""
    far = call("exp2", neg(absolute(sub(a, b))))
    spread = mul(log1p(far), 1 / math.log(2.0))
    return choose(both(is_infinite(a), eq(a, b)), a, add(larger(a, b), spread))


def times_log(a: Scalar, b: Scalar) -> Scalar:
    """Returns ``a * log(b)``: NaN if ``b`` is, else 0 where ``a`` is 0."""
    return choose(is_nan(b), b, choose(eq(a, 0), 0, mul(a, call("log", b))))


def times_log1p(a: Scalar, b: Scalar) -> Scalar:
    """Returns ``a * log1p(b)``: NaN if ``b`` is, else 0 where ``a`` is 0."""
    return choose(is_nan(b), b, choose(eq(a, 0), 0, mul(a, log1p(b))))


def scaled_by_power(a: Scalar, exponent: Scalar) -> Scalar:
    """Returns ``a * 2**exponent``."""
    return mul(a, call("exp2", exponent))


def least_common_multiple(a: Scalar, b: Scalar) -> Scalar:
    """Returns ``|a / gcd(a, b) * b|``; 0 if both are 0.

    The sign is dropped before a type of 8 or 16 bits wraps around, as in eager mode: C++ multiplies in 32 bits.
    """
    divisor, kind = call("gcd", a, b), a.dtype
    factors = call("truncdiv", a, choose(eq(divisor, 0), 1, divisor)), b
    if kind in (I8, I16):
        factors = sc.cast(factors[0], I32), sc.cast(factors[1], I32)
    multiple = sc.cast(magnitude(mul(*factors)), kind)
    return choose(eq(divisor, 0), 0, multiple)


def split_float(a: Scalar) -> tuple[Scalar, Scalar]:
    """Returns the mantissa in [1/2, 1) and the exponent of a number, as i32, from its bits.

    Zeros, infinities and NaN are their own mantissa and have the exponent 0.
    """
    bits, mantissa_bits, integer = (64, 52, I64) if a.dtype is F64 else (32, 23, I32)
    bias = (1 << (bits - mantissa_bits - 2)) - 2
    ends = (1 << (bits - mantissa_bits - 1)) - 1
    is_small = lt(absolute(a), 2.0**-bias)
    shift = mantissa_bits + 1
    scaled = choose(is_small, mul(a, 2.0**shift), a)
    pattern = sc.bitcast(scaled, integer)
    exponent = call("bitand", call("shr", pattern, mantissa_bits), ends)
    special = either(eq(a, 0), eq(exponent, ends))
    kept = call("bitand", pattern, -(1 << (bits - 1)) + (1 << mantissa_bits) - 1)
    mantissa = sc.bitcast(call("bitor", kept, bias << mantissa_bits), a.dtype)
    power = sub(exponent, choose(is_small, sc.const(bias + shift, integer), bias))
    return choose(special, a, mantissa), sc.cast(choose(special, 0, power), I32)


def next_narrow(a: Scalar, towards: Scalar) -> Scalar:
    """Returns the number after ``a`` of a 16-bit type on the way to another one, from its bits."""
    wide, goal = sc.cast(a, F32), sc.cast(towards, F32)
    pattern = sc.bitcast(a, I16)
    grows = ne(lt(wide, goal), call("signbit", wide))
    step = choose(grows, add(pattern, 1), sub(pattern, 1))
    smallest = choose(lt(goal, 0), sc.const(-(1 << 15) + 1, I16), 1)
    found = sc.bitcast(choose(eq(wide, 0), smallest, step), a.dtype)
    found = choose(eq(wide, goal), towards, found)
    return choose(is_nan(wide), a, choose(is_nan(goal), towards, found))


def is_negative(a: Scalar) -> Scalar:
    """Returns the sign bit: also of negative zero and NaN; never for unsigned types."""
    if a.dtype.is_float:
        return call("signbit", a)
    return sc.const(False, BOOL) if a.dtype.kind in ("uint", "bool") else lt(a, 0)


def is_finite(a: Scalar) -> Scalar:
    return inverted(either(is_nan(a), is_infinite(a)))


def is_positive_infinity(a: Scalar) -> Scalar:
    return both(is_infinite(a), gt(a, 0)) if a.dtype.is_float else is_infinite(a)


def is_negative_infinity(a: Scalar) -> Scalar:
    return both(is_infinite(a), lt(a, 0)) if a.dtype.is_float else is_infinite(a)


def are_both_true(a: Scalar, b: Scalar) -> Scalar:
    return both(is_true(a), is_true(b))


def is_either_true(a: Scalar, b: Scalar) -> Scalar:
    return either(is_true(a), is_true(b))


def is_one_true(a: Scalar, b: Scalar) -> Scalar:
    return ne(is_true(a), is_true(b))


def exclusive_or(a: Scalar, b: Scalar) -> Scalar:
    return ne(a, b) if a.dtype is BOOL else call("bitxor", a, b)


def is_false(a: Scalar) -> Scalar:
    return inverted(is_true(a))


def angle(a: Scalar) -> Scalar:
    """Returns the argument of a real number: 0, π if negative, NaN for NaN."""
    return choose(is_nan(a), a, choose(lt(a, 0), sc.const(math.pi, a.dtype), 0))
