"""What every scalar operation means: a table of Python functions on Python numbers, and the rounding of their results.

A function gets numbers of the operands' types and returns a number that is then rounded to the result type, so that a
float operation is correctly rounded up to the accuracy of the double-precision function behind it.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.ops import CONVERSIONS, REQUIREMENTS
from ferrite_ir.language.scalar import Number, Scalar

from . import multiprecision, orthogonal_polynomials, philox, special_functions
from .rounding import convert, next_float, reinterpret, round_to

Meaning: TypeAlias = Callable[..., Number]


def apply_reference(node: Scalar, operands: tuple[Number, ...]) -> Number:
    """Returns the value of an operation of `ops.OPS` for operands of its operand types.

    Args:
        node: the operation (its own operands give their types only).
        operands: their values.
    """
    return apply_operation(node.op, operands, node.args[0].dtype, node.dtype)


def apply_operation(op: str, operands: tuple[Number, ...], operand: DType, result: DType) -> Number:
    """Returns the value of the operation of `ops.OPS` with this name.

    Args:
        op: its name.
        operands: their values.
        operand: the type of the first of them.
        result: the type of the value.
    """
    context = {"dtype": operand} if op in _TYPED else {}
    return round_to(MEANINGS[op](*operands, **context), result)


def _is_nan(x: Number) -> bool:
    return x != x  # noqa: PLR0124 - a number that is not itself is NaN


def _add(x: Number, y: Number) -> Number:
    return x + y


def _mul(x: Number, y: Number) -> Number:
    return x * y


def _div(x: float, y: float) -> float:
    if y != 0:
        return x / y
    if x == 0 or _is_nan(x) or _is_nan(y):
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1.0, y)


def _floordiv(x: Number, y: Number) -> Number:
    if isinstance(x, float):
        return _div(x, float(y)) if y == 0 or math.isinf(x) else _python_float(operator.floordiv, x, float(y))
    return x // y if y else 0


def _python_float(function: Callable[[float, float], float], x: float, y: float) -> float:
    return math.nan if _is_nan(x) or _is_nan(y) else function(x, y)


def _truncdiv(x: Number, y: Number) -> Number:
    if isinstance(x, float):
        return _whole(math.trunc, _div(x, float(y)))
    if y == 0:
        return 0
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def _mod(x: Number, y: Number) -> Number:
    if isinstance(x, float):
        return math.nan if y == 0 or math.isinf(x) else _python_float(operator.mod, x, float(y))
    return x % y if y else 0


def _fmod(x: Number, y: Number) -> Number:
    if isinstance(x, float):
        return math.nan if y == 0 or math.isinf(x) else math.fmod(x, y)
    if y == 0:
        return 0
    rest = abs(x) % abs(y)
    return -rest if x < 0 else rest


def _pow(x: Number, y: Number) -> Number:
    if not isinstance(x, float):
        return _integer_pow(int(x), int(y))
    try:
        return math.pow(x, y)
    except OverflowError:
        is_odd = y == math.floor(y) and y % 2 == 1
        return math.copysign(math.inf, x) if is_odd else math.inf
    except ValueError:
        if x != 0:
            return math.nan
        is_odd = y == math.floor(y) and y % 2 == 1
        return math.copysign(math.inf, x) if is_odd else math.inf


def _integer_pow(x: int, y: int) -> int:
    if y >= 0:
        return pow(x, y, 1 << 64) if y > 64 else x**y
    return {1: 1, -1: 1 if y % 2 == 0 else -1}.get(x, 0)


def _minimum(x: Number, y: Number) -> Number:
    if x == y:  # of two zeros the negative one, so that the order of operands does not matter
        return x if math.copysign(1.0, x) < 0 else y
    return x if _is_nan(x) or x < y else y


def _maximum(x: Number, y: Number) -> Number:
    if x == y:
        return y if math.copysign(1.0, x) < 0 else x
    return x if _is_nan(x) or x > y else y


def _relu(x: Number) -> Number:
    return max(x, 0)


def _sign(x: Number) -> Number:
    return (x > 0) - (x < 0)


def _whole(function: Callable[[float], Number], x: float) -> Number:
    """Applies a rounding to an integer, which Python refuses for infinities and NaN, and keeps the sign of zero."""
    return math.copysign(float(function(x)), x) if math.isfinite(x) else x


def _sqrt(x: float) -> float:
    return math.nan if x < 0 else math.sqrt(x)


def _rsqrt(x: float) -> float:
    return _div(1.0, _sqrt(x))


def _reciprocal(x: float) -> float:
    return _div(1.0, x)


def _total(
    function: Callable[[float], float], overflow: float = math.inf, poles: dict[float, float] | None = None
) -> Meaning:
    """Returns a function of math that gives NaN outside of its domain, and infinities where Python raises."""

    def total(x: float) -> float:
        if _is_nan(x):
            return x
        if poles is not None and x in poles:
            return poles[x]
        try:
            return function(x)
        except OverflowError:
            return math.copysign(overflow, x) if overflow is _ODD else overflow
        except ValueError:
            return math.nan

    return total


_ODD = float("inf")
"""Overflow of an odd function: infinite, with the sign of the argument (told from a plain infinity by identity)."""


def _sigmoid(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    small = math.exp(x)
    return small / (1.0 + small)


def _lgamma(x: float) -> float:
    if _is_nan(x):
        return x
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return math.inf


def _log_at(base: Callable[[float], float]) -> Meaning:
    return _total(base, poles={0.0: -math.inf})


def _hypot(x: float, y: float) -> float:
    return math.inf if math.isinf(x) or math.isinf(y) else math.hypot(x, y)


class RequirementError(ValueError):
    """What an operation requires of its operands does not hold."""


def _required(message: str, condition: Number, value: Number) -> Number:
    if not condition:
        raise RequirementError(message)
    return value


def _ldexp(x: float, y: int) -> float:
    try:
        return math.ldexp(x, max(-10_000, min(10_000, y)))
    except OverflowError:
        return math.copysign(math.inf, x)


def _shl(x: int, y: int, dtype: DType) -> int:
    return x << y if 0 <= y < dtype.bits else 0


def _shr(x: int, y: int, dtype: DType) -> int:
    return x >> (y if 0 <= y < dtype.bits else dtype.bits)


def _bitnot(x: Number) -> Number:
    return not x if isinstance(x, bool) else ~int(x)


def _nextafter(x: float, y: float, dtype: DType) -> float:
    return next_float(x, y, dtype)


def _fma(x: float, y: float, z: float, dtype: DType) -> float:
    """Returns ``x * y + z`` as a number whose rounding to the type is the one rounding of the exact result.

    That is the exact result rounded to odd in f64: the neighbour with an odd last bit, unless it is a number itself
    (Boldo and Melquiond, Emulation of FMA and Correctly-Rounded Sums, 2008).
    """
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return x * y + z  # the sign of zero
    try:
        nearest = float(exact)
    except OverflowError:
        return math.copysign(math.inf, exact)
    if dtype.bits == 64 or Fraction(nearest) == exact:
        return nearest
    (bits,) = struct.unpack("<Q", struct.pack("<d", nearest))
    return nearest if bits & 1 else math.nextafter(nearest, math.inf if exact > nearest else -math.inf)


def _where(condition: Number, yes: Number, no: Number) -> Number:
    return yes if condition else no


_TYPED = frozenset(("shl", "shr", "nextafter", "fma", "hermite_h", "hermite_he"))
"""Operations whose meaning depends on the width of their operands."""


_MATH: dict[str, Meaning] = {
    "exp": _total(math.exp),
    "exp2": _total(math.exp2),
    "expm1": _total(math.expm1),
    "log": _log_at(math.log),
    "log2": _log_at(math.log2),
    "log10": _log_at(math.log10),
    "log1p": _total(math.log1p, poles={-1.0: -math.inf}),
    "sin": _total(math.sin),
    "cos": _total(math.cos),
    "tan": _total(math.tan),
    "asin": _total(math.asin),
    "acos": _total(math.acos),
    "atan": _total(math.atan),
    "sinh": _total(math.sinh, _ODD),
    "cosh": _total(math.cosh),
    "tanh": _total(math.tanh),
    "asinh": _total(math.asinh),
    "acosh": _total(math.acosh),
    "atanh": _total(math.atanh, poles={1.0: math.inf, -1.0: -math.inf}),
    "erf": _total(math.erf),
    "erfc": _total(math.erfc),
    "erfinv": special_functions.erfinv,
    "lgamma": _lgamma,
    "digamma": special_functions.digamma,
    "sigmoid": _total(_sigmoid),
    "i0": special_functions.i0,
    "i0e": special_functions.i0e,
    "i1": special_functions.i1,
    "i1e": special_functions.i1e,
}

_RARE = (
    "j0", "j1", "y0", "y1", "k0", "k1", "k0e", "k1e", "airy_ai", "erfcx", "ndtri", "zeta", "igamma", "igammac",
)  # fmt: skip
_POLYNOMIALS = (
    "chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w", "hermite_h", "hermite_he", "laguerre_l", "legendre_p",
)  # fmt: skip

MEANINGS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "mul": _mul,
    "sub": operator.sub,
    "div": _div,
    "floordiv": _floordiv,
    "truncdiv": _truncdiv,
    "mod": _mod,
    "fmod": _fmod,
    "pow": _pow,
    "minimum": _minimum,
    "maximum": _maximum,
    "atan2": math.atan2,
    "hypot": _hypot,
    "copysign": math.copysign,
    "nextafter": _nextafter,
    "logaddexp": special_functions.logaddexp,
    "fma": _fma,
    "neg": operator.neg,
    "abs": abs,
    "sign": _sign,
    "relu": _relu,
    "floor": partial(_whole, math.floor),
    "ceil": partial(_whole, math.ceil),
    "trunc": partial(_whole, math.trunc),
    "round": partial(_whole, round),
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    **_MATH,
    **{name: getattr(multiprecision, name) for name in _RARE},
    **{name: getattr(orthogonal_polynomials, name) for name in _POLYNOMIALS},
    "gcd": math.gcd,
    "isnan": _is_nan,
    "isinf": math.isinf,
    "signbit": lambda x: math.copysign(1.0, x) < 0,
    "logical_not": operator.not_,
    "bitnot": _bitnot,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "bitxor": operator.xor,
    "shl": _shl,
    "shr": _shr,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "where": _where,
    "masked": _where,
    "ldexp": _ldexp,
    "rand": philox.rand,
    "randn": philox.randn,
    "randint64": philox.randint64,
    **{name: partial(_required, message) for name, message in REQUIREMENTS.items()},
}
"""The meaning of every operation of `ops.OPS`, by name."""


def constant_result(node: Scalar) -> Number | None:
    """Returns the value of an operation or conversion of constants.

    None where an operand is not constant, or an integer is divided by zero.
    """
    operands = node.operands
    if not operands or any([operand.op != "const" for operand in operands]):  # noqa: C419 - a list is faster for so few
        return None
    values = tuple([operand.value for operand in operands])
    if node.op in CONVERSIONS:
        return convert(values[0], operands[0].dtype, node.dtype)
    if node.op == "bitcast":
        return reinterpret(values[0], operands[0].dtype, node.dtype)
    if node.op in ("floordiv", "truncdiv", "mod", "fmod") and values[1] == 0 and not node.dtype.is_float:
        return None
    if node.op in REQUIREMENTS and not values[0]:
        return None
    return apply_reference(node, values)
