"""The scalar vocabulary: one row per operation, with its arity and the rule for its result type.

Adding an operation: a row here, its meaning in `scalar_semantics.py`, its text in ferrite-triton's table, and a text
test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .dtypes import BOOL, F32, I64, DType

ResultRule = Callable[[tuple[DType, ...]], DType | str]
"""Maps operand types to the result type, or to a message that says what is wrong with the operands."""


def _same(operands: tuple[DType, ...]) -> DType | str:
    first = operands[0]
    if any(operand is not first for operand in operands[1:]):
        return f"operands must have one type, got {', '.join(map(str, operands))}; insert casts"
    return first


def _float(operands: tuple[DType, ...]) -> DType | str:
    result = _same(operands)
    if isinstance(result, DType) and not result.is_float:
        return f"operands must be floats, got {result}; cast to f32 or f64 first"
    return result


def _numeric(operands: tuple[DType, ...]) -> DType | str:
    result = _same(operands)
    return "operands must be numbers, got bool; cast first" if result is BOOL else result


def _integral(operands: tuple[DType, ...]) -> DType | str:
    result = _same(operands)
    if isinstance(result, DType) and not (result.is_integer or result is BOOL):
        return f"operands must be integers or bool, got {result}"
    return result


def _compare(operands: tuple[DType, ...]) -> DType | str:
    result = _same(operands)
    return BOOL if isinstance(result, DType) else result


def _classify(operands: tuple[DType, ...]) -> DType | str:
    return BOOL if operands[0].is_float else f"operand must be a float, got {operands[0]}"


def _negate(operands: tuple[DType, ...]) -> DType | str:
    return BOOL if operands[0] is BOOL else f"operand must be bool, got {operands[0]}"


def _select(operands: tuple[DType, ...]) -> DType | str:
    if operands[0] is not BOOL:
        return f"the condition must be bool, got {operands[0]}"
    return _same(operands[1:])


def _integers(operands: tuple[DType, ...]) -> DType | str:
    result = _same(operands)
    if isinstance(result, DType) and not result.is_integer:
        return f"operands must be integers, got {result}"
    return result


def _required(operands: tuple[DType, ...]) -> DType | str:
    if operands[0] is not BOOL:
        return f"what is required must be bool, got {operands[0]}"
    return operands[1]


def _scaled(operands: tuple[DType, ...]) -> DType | str:
    if not operands[0].is_float or not operands[1].is_integer:
        return f"operands must be (float, integer), got {operands[0]}, {operands[1]}"
    return operands[0]


def _random_float(operands: tuple[DType, ...]) -> DType | str:
    if any(operand is not I64 for operand in operands):
        return f"seed and offset must be i64, got {', '.join(map(str, operands))}"
    return F32


def _random_integer(operands: tuple[DType, ...]) -> DType | str:
    return I64 if all(operand is I64 for operand in operands) else "seed, offset, low and high must be i64"


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One operation of the vocabulary.

    Attributes:
        name: as written in the text form.
        arity: number of scalar operands.
        result: the result type rule.
        cost: rough price in simple instructions; at least 8 marks a transcendental.
        commutes: whether the two operands may be swapped.
    """

    name: str
    arity: int
    result: ResultRule
    cost: int = 1
    commutes: bool = False


def _rows() -> list[ScalarOp]:
    rows = [ScalarOp(name, 2, _numeric, 1, True) for name in ("add", "mul")]
    rows += [ScalarOp(name, 2, _same, 1, True) for name in ("minimum", "maximum")]
    rows += [ScalarOp("sub", 2, _numeric), ScalarOp("div", 2, _float, 4)]
    rows += [ScalarOp(name, 2, _numeric, 8) for name in ("floordiv", "truncdiv", "mod", "fmod")]
    rows += [ScalarOp("fma", 3, _float)]
    rows += [ScalarOp("pow", 2, _numeric, 16)]
    rows += [ScalarOp(name, 2, _float, 16) for name in ("atan2", "hypot")]
    rows += [ScalarOp(name, 2, _float, 2) for name in ("copysign", "nextafter")]
    rows += [ScalarOp("logaddexp", 2, _float, 40, True)]
    rows += [ScalarOp(name, 1, _numeric) for name in ("neg", "abs", "sign")]
    rows += [ScalarOp("relu", 1, _numeric)]
    cheap_math = ("floor", "ceil", "trunc", "round")
    rows += [ScalarOp(name, 1, _float) for name in cheap_math]
    rows += [ScalarOp(name, 1, _float, 4) for name in ("sqrt", "rsqrt", "reciprocal")]
    transcendental = [
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid", "i0",
        "i0e", "i1", "i1e", "j0", "j1", "y0", "y1",
    ]  # fmt: skip
    rows += [ScalarOp(name, 1, _float, 16) for name in transcendental]
    rows += [ScalarOp(name, 1, _float, 60) for name in ("erfcx", "ndtri", "airy_ai", "k0", "k1", "k0e", "k1e")]
    rows += [ScalarOp(name, 2, _float, 400) for name in ("zeta", "igamma", "igammac")]
    chebyshev = ("chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w")
    others = ("hermite_h", "hermite_he", "laguerre_l", "legendre_p")
    rows += [ScalarOp(name, 2, _float, 100) for name in chebyshev + others]
    rows += [ScalarOp("gcd", 2, _integers, 100, True)]
    rows += [ScalarOp(name, 1, _classify) for name in ("isnan", "isinf", "signbit")]
    rows += [ScalarOp("logical_not", 1, _negate), ScalarOp("bitnot", 1, _integral)]
    rows += [ScalarOp(name, 2, _integral, 1, True) for name in ("bitand", "bitor", "bitxor")]
    rows += [ScalarOp(name, 2, _integers) for name in ("shl", "shr")]
    rows += [ScalarOp(name, 2, _compare, 1, True) for name in ("eq", "ne")]
    rows += [ScalarOp(name, 2, _compare) for name in ("lt", "le", "gt", "ge")]
    rows += [ScalarOp("where", 3, _select), ScalarOp("masked", 3, _select), ScalarOp("ldexp", 2, _scaled, 2)]
    rows += [ScalarOp(name, 2, _required) for name in REQUIREMENTS]
    rows += [ScalarOp("rand", 2, _random_float, 40), ScalarOp("randn", 2, _random_float, 60)]
    rows += [ScalarOp("randint64", 4, _random_integer, 40)]
    return rows


REQUIREMENTS = {
    "require_index": "index out of bounds of its axis",
    "require_probability": "probabilities have to be in [0, 1]",
    "require_deviation": "all elements of std have to be >= 0.0",
    "require_weight": "a probability tensor contains either `inf`, `nan` or an element < 0",
    "require_weights": "an invalid multinomial distribution: the sum of its probabilities is not positive",
    "require_unit_input": "all elements of input should be between 0 and 1",
    "require_unit_target": "all elements of target should be between 0 and 1",
    "require_divisor": "ZeroDivisionError: an integer is divided by zero",
    "require_finite_range": "the range of a histogram is not finite",
    "require_repeats": "repeats can not be negative",
    "require_total": "allocated size does not match required size: output_size is not the sum of repeats",
    "require_sorter": "the sorter index is out of range",
    "require_source": "shape mismatch: there are not as many values as places that the mask names",
}
"""Operations ``require_…(condition, value)``, which give the value, and stop the program where the condition is false.

Each with what is then said, after ``refused:`` unless it is about an index."""

OPS: dict[str, ScalarOp] = {row.name: row for row in _rows()}

POLYNOMIALS = (
    "chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w", "hermite_h", "hermite_he", "laguerre_l", "legendre_p",
)  # fmt: skip
"""Orthogonal polynomials of a point and a degree."""
ITERATED = frozenset((*POLYNOMIALS, "gcd", "igamma", "igammac", "zeta"))
"""Operations that are computed in rounds, of which there are as many as their operands ask for."""
RANDOM = ("rand", "randn", "randint64")
"""Functions that draw random numbers: what was drawn is never drawn again at another place."""

# Forms with operands that are not all scalars: see scalar.py.
CONVERSIONS = ("cast", "rounded")
"""Forms that convert to another type: with excess precision in half types, or without."""

SPECIAL_FORMS = ("load", "const", "index", "cast", "rounded", "bitcast")
