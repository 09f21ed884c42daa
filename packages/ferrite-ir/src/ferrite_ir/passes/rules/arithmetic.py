"""Rules of arithmetic. Those on floats hold for every bit pattern, signed zeros, infinities and NaN included."""

from __future__ import annotations

import math

from ferrite_ir.language.dtypes import BOOL
from ferrite_ir.language.ops import OPS
from ferrite_ir.language.scalar import Scalar, apply, const, is_constant
from ferrite_ir.reference.rounding import wrap

from .rule import Book, ends_nothing

BOOK = Book()

_COMMUTING = " ".join(name for name, row in OPS.items() if row.commutes)


@BOOK.rule(_COMMUTING, "add(f32(2.0), x[i]) => add(x[i], f32(2.0))", first="const")
def _constant_to_the_right(node: Scalar) -> Scalar | None:
    """Applies so that the other rules need to look for constants in one place only."""
    left, right = node.args
    return None if right.op == "const" else apply(node.op, right, left)


@BOOK.rule("add", "add(x[i], f32(-0.0)) => x[i]", second="const")
def _add_zero(node: Scalar) -> Scalar | None:
    """Drops ``+ 0``; of floats only ``-0.0``, since ``-0.0 + 0.0`` is ``0.0``, or where the other is never ``-0.0``."""
    left, right = node.args
    if right.value != 0:
        return None
    return left if not node.dtype.is_float or _is_negative_zero(right) or _is_never_negative_zero(left) else None


@BOOK.rule("sub", "sub(x[i], f32(0.0)) => x[i]", second="const")
def _subtract_zero(node: Scalar) -> Scalar | None:
    left, right = node.args
    return left if right.value == 0 and not _is_negative_zero(right) else None


@BOOK.rule("sub", "sub(f32(-0.0), x[i]) => neg(x[i])", first="const")
def _subtract_from_zero(node: Scalar) -> Scalar | None:
    """Negates; of floats only from ``-0.0``, since ``0.0 - 0.0`` is ``0.0``."""
    left, right = node.args
    if left.value != 0 or (node.dtype.is_float and not _is_negative_zero(left)):
        return None
    return apply("neg", right)


@BOOK.rule("sub", "sub(gcd(index.i32(i), i32(4)), gcd(index.i32(i), i32(4))) => i32(0)")
def _subtract_from_itself(node: Scalar) -> Scalar | None:
    """Holds for integers only: ``inf - inf`` is NaN. Nothing is left out that may end the program (`ends_nothing`)."""
    left, right = node.args
    return const(0, node.dtype) if left is right and node.dtype.is_integer and ends_nothing(left) else None


@BOOK.rule("mul", "mul(gcd(index.i32(i), i32(4)), i32(0)) => i32(0)", second="const")
def _multiply_by_zero(node: Scalar) -> Scalar | None:
    """Holds for integers only: ``inf * 0`` is NaN and ``-1 * 0.0`` is ``-0.0``; see `ends_nothing`."""
    left, right = node.args
    return right if node.dtype.is_integer and right.value == 0 and ends_nothing(left) else None


@BOOK.rule("mul div", "mul(x[i], f32(1.0)) => x[i]", second="const")
def _multiply_by_one(node: Scalar) -> Scalar | None:
    return node.args[0] if node.args[1].value == 1 else None


@BOOK.rule("floordiv truncdiv", "floordiv(k[i], i32(1)) => k[i]", second="const")
def _divide_integer_by_one(node: Scalar) -> Scalar | None:
    return node.args[0] if node.dtype.is_integer and node.args[1].value == 1 else None


@BOOK.rule("mod fmod", "mod(gcd(index.i32(i), i32(4)), i32(1)) => i32(0)", second="const")
def _remainder_by_one(node: Scalar) -> Scalar | None:
    """See `ends_nothing`."""
    left, right = node.args
    return const(0, node.dtype) if node.dtype.is_integer and right.value == 1 and ends_nothing(left) else None


@BOOK.rule("mul div", "mul(x[i], f32(-1.0)) => neg(x[i])", second="const")
def _multiply_by_minus_one(node: Scalar) -> Scalar | None:
    return apply("neg", node.args[0]) if node.args[1].value == -1 else None


@BOOK.rule("div", "div(x[i], f32(8.0)) => mul(x[i], f32(0.125))", second="const")
def _divide_by_power_of_two(node: Scalar) -> Scalar | None:
    """Multiplies by the inverse where it is exact: both round the same real number."""
    left, right = node.args
    value = right.value
    if (
        value == 0
        or not math.isfinite(value)
        or abs(math.frexp(value)[0]) != 0.5
        or not 2.0**-100 < abs(value) < 2.0**100
    ):
        return None
    return apply("mul", left, const(1.0 / value, node.dtype)) if node.dtype.bits >= 32 else None


@BOOK.rule("div", "div(f32(1.0), x[i]) => reciprocal(x[i])", first="const")
def _one_over(node: Scalar) -> Scalar | None:
    return apply("reciprocal", node.args[1]) if node.args[0].value == 1 else None


@BOOK.rule("neg", "neg(neg(x[i])) => x[i]", first="neg")
def _negate_twice(node: Scalar) -> Scalar | None:
    return node.operands[0].operands[0]


@BOOK.rule("neg", "neg(sub(k[i], j[i])) => sub(j[i], k[i])", first="sub")
def _negate_difference(node: Scalar) -> Scalar | None:
    """Holds for integers only: ``-(x - x)`` is ``-0.0``."""
    left, right = node.args[0].args
    return apply("sub", right, left) if node.dtype.is_integer else None


@BOOK.rule("add", "add(x[i], neg(y[i])) => sub(x[i], y[i])", second="neg")
def _add_negated(node: Scalar) -> Scalar | None:
    return apply("sub", node.args[0], node.args[1].args[0])


@BOOK.rule("add", "add(neg(x[i]), y[i]) => sub(y[i], x[i])", first="neg")
def _add_to_negated(node: Scalar) -> Scalar | None:
    return apply("sub", node.args[1], node.args[0].args[0])


@BOOK.rule("sub", "sub(x[i], neg(y[i])) => add(x[i], y[i])", second="neg")
def _subtract_negated(node: Scalar) -> Scalar | None:
    return apply("add", node.args[0], node.args[1].args[0])


@BOOK.rule("mul div", "mul(neg(x[i]), neg(y[i])) => mul(x[i], y[i])", first="neg")
def _multiply_negated(node: Scalar) -> Scalar | None:
    left, right = node.args
    return apply(node.op, left.args[0], right.args[0]) if right.op == "neg" else None


@BOOK.rule("mul div", "mul(neg(x[i]), f32(2.0)) => mul(x[i], f32(-2.0))", first="neg")
def _multiply_negated_by_constant(node: Scalar) -> Scalar | None:
    left, right = node.args
    return (
        apply(node.op, left.args[0], const(-right.value, node.dtype))
        if right.op == "const" and node.dtype.is_float
        else None
    )


@BOOK.rule("abs", "abs(neg(x[i])) => abs(x[i])", first="neg abs")
def _absolute_of_negated(node: Scalar) -> Scalar | None:
    inner = node.args[0]
    return inner if inner.op == "abs" else apply("abs", inner.args[0])


@BOOK.rule("relu", "relu(relu(x[i])) => relu(x[i])", first="relu abs exp sigmoid")
def _relu_of_nonnegative(node: Scalar) -> Scalar | None:
    return node.args[0] if node.dtype.is_float else None


@BOOK.rule("add mul", "add(add(k[i], i32(3)), i32(4)) => add(k[i], i32(7))", second="const")
def _join_integer_constants(node: Scalar) -> Scalar | None:
    """Holds for integers only: they wrap, so their sums and products may be regrouped."""
    inner, outer = node.args
    if not node.dtype.is_integer or inner.op != node.op or inner.args[1].op != "const":
        return None
    a, b = inner.args[1].value, outer.value
    return apply(node.op, inner.args[0], const(wrap(a + b if node.op == "add" else a * b, node.dtype), node.dtype))


@BOOK.rule("sub", "sub(k[i], i32(3)) => add(k[i], i32(-3))", second="const")
def _subtract_constant(node: Scalar) -> Scalar | None:
    """Adds the negated constant instead (integers), so that constants can be joined."""
    left, right = node.args
    if node.dtype.kind != "int":
        return None
    return apply("add", left, const(wrap(-right.value, node.dtype), node.dtype))


@BOOK.rule("pow", "pow(x[i], f32(2.0)) => mul(x[i], x[i])", second="const")
def _power(node: Scalar) -> Scalar | None:
    """Spells small powers out, as eager PyTorch does (its square root of ``-0.0`` and ``-inf`` included)."""
    base, exponent = node.args
    value = exponent.value
    if value == 0 and not ends_nothing(base):
        return None
    if value in (0, 1):
        return base if value == 1 else const(1, node.dtype)
    if value in (2, 3):
        square = apply("mul", base, base)
        return square if value == 2 else apply("mul", square, base)
    if not node.dtype.is_float:
        return None
    if value in _ROOTS:
        return apply(_ROOTS[value], base)
    return apply("reciprocal", apply("mul", base, base)) if value == -2 else None


_ROOTS = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


@BOOK.rule("shl shr", "shl(k[i], i32(0)) => k[i]", second="const")
def _shift_by_zero(node: Scalar) -> Scalar | None:
    return node.args[0] if node.args[1].value == 0 else None


def _is_negative_zero(node: Scalar) -> bool:
    return is_constant(node, 0) and isinstance(node.value, float) and math.copysign(1.0, node.value) < 0


def _is_never_negative_zero(node: Scalar) -> bool:
    match node.op:
        case "exp" | "exp2" | "abs" | "sigmoid" | "rand":
            return True
        case "cast":
            return node.args[0].dtype.is_integer or node.args[0].dtype is BOOL
        case "mul":
            return bool(node.args[0] is node.args[1])
        case "const":
            return not _is_negative_zero(node)
    return not node.dtype.is_float
