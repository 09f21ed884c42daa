"""Rules of booleans, comparisons, selections, minima and maxima."""

from __future__ import annotations

import math

from ferrite_ir.language.dtypes import BOOL
from ferrite_ir.language.ops import REQUIREMENTS
from ferrite_ir.language.scalar import Scalar, apply, const, postorder

from .rule import Book, ends_nothing

BOOK = Book()


@BOOK.rule("where masked", "where(true, x[i], y[i]) => x[i]", first="const")
def _decided(node: Scalar) -> Scalar | None:
    return node.operands[1 if node.args[0].value else 2]


@BOOK.rule(" ".join(REQUIREMENTS), "require_index(true, x[i]) => x[i]", first="const")
def _required(node: Scalar) -> Scalar | None:
    """Drops what holds; what cannot hold stays, and is said when the program runs."""
    return node.args[1] if node.args[0].value else None


@BOOK.rule("where masked", "where(b[i], x[i], x[i]) => x[i]")
def _same_either_way(node: Scalar) -> Scalar | None:
    return node.args[1] if node.args[1] is node.args[2] else None


@BOOK.rule("where", "where(logical_not(b[i]), x[i], y[i]) => where(b[i], y[i], x[i])", first="logical_not")
def _swap_branches(node: Scalar) -> Scalar | None:
    condition, yes, no = node.args
    return apply("where", condition.args[0], no, yes)


@BOOK.rule("where", "where(b[i], true, false) => b[i]", second="const")
def _condition_itself(node: Scalar) -> Scalar | None:
    condition, yes, no = node.args
    if node.dtype is not BOOL or no.op != "const":
        return None
    return condition if yes.value else apply("logical_not", condition)


@BOOK.rule(
    "where masked",
    "where(b[i], where(b[i], x[i], y[i]), f32(0.0)) => where(b[i], x[i], f32(0.0))",
    second="where masked",
)
def _decided_inside(node: Scalar) -> Scalar | None:
    """Drops an inner choice by the condition that holds already."""
    condition, yes, no = node.args
    if yes.args[0] is not condition:
        return None
    # The inner value keeps its guard: where becomes masked if either of the two is.
    guarded = "masked" if "masked" in (node.op, yes.op) else "where"
    return apply(guarded, condition, yes.args[1], no)


@BOOK.rule("where masked", "where(b[i], x[i], where(b[i], y[i], f32(0.0))) => where(b[i], x[i], f32(0.0))")
def _decided_outside(node: Scalar) -> Scalar | None:
    condition, yes, no = node.args
    if no.op in ("where", "masked") and no.args[0] is condition:
        return apply(node.op, condition, yes, no.args[2])
    return None


@BOOK.rule("masked", "masked(b[i], f32(2.0), x[i]) => where(b[i], f32(2.0), x[i])")
def _nothing_to_guard(node: Scalar) -> Scalar | None:
    guarded = node.args[1]
    if guarded.loads or any(part.op in REQUIREMENTS for part in postorder((guarded,))):
        return None
    return apply("where", *node.args)


@BOOK.rule(
    "masked",
    "masked(gt(y[i], f32(0.0)), masked(lt(index.i64(i), i64(3)), x[i], f32(0.0)), f32(0.0)) => "
    "masked(bitand(gt(y[i], f32(0.0)), lt(index.i64(i), i64(3))), x[i], f32(0.0))",
    second="masked",
)
def _join_guards(node: Scalar) -> Scalar | None:
    """Joins two guards with one alternative; the inner condition is then evaluated everywhere, so it must not load."""
    condition, inner, other = node.args
    if inner.args[2] is not other or other.op != "const" or inner.args[0].loads or inner.args[0] is condition:
        return None
    return apply("masked", apply("bitand", condition, inner.args[0]), inner.args[1], other)


@BOOK.rule("logical_not", "logical_not(logical_not(b[i])) => b[i]", first="logical_not")
def _not_twice(node: Scalar) -> Scalar | None:
    return node.operands[0].operands[0]


@BOOK.rule("logical_not", "logical_not(eq(x[i], y[i])) => ne(x[i], y[i])", first="eq ne lt le gt ge")
def _negate_comparison(node: Scalar) -> Scalar | None:
    """Holds for an order only without NaN, so for floats only of equality."""
    inner = node.args[0]
    if inner.op not in ("eq", "ne") and inner.args[0].dtype.is_float:
        return None
    return apply(_OPPOSITE[inner.op], *inner.args)


_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


@BOOK.rule("bitnot", "bitnot(b[i]) => logical_not(b[i])")
def _not_of_bool(node: Scalar) -> Scalar | None:
    inner = node.args[0]
    if node.dtype is BOOL:
        return apply("logical_not", inner)
    return inner.args[0] if inner.op == "bitnot" else None


@BOOK.rule("bitand bitor bitxor", "bitand(b[i], true) => b[i]", second="const")
def _bits_with_constant(node: Scalar) -> Scalar | None:
    left, right = node.operands
    zero, ones = right.value == 0, right.value == (1 if node.dtype is BOOL else -1)
    if node.op == "bitxor":
        return left if zero else apply("logical_not", left) if ones and node.dtype is BOOL else None
    if (zero and node.op == "bitor") or (ones and node.op == "bitand"):
        return left
    return right if (zero or ones) and (node.dtype is BOOL or ends_nothing(left)) else None


@BOOK.rule("bitand bitor minimum maximum", "maximum(x[i], x[i]) => x[i]")
def _same_twice(node: Scalar) -> Scalar | None:
    return node.args[0] if node.args[0] is node.args[1] else None


@BOOK.rule("bitxor", "bitxor(b[i], b[i]) => false")
def _xor_with_itself(node: Scalar) -> Scalar | None:
    left, right = node.args
    return const(0, node.dtype) if left is right and (node.dtype is BOOL or ends_nothing(left)) else None


@BOOK.rule("lt gt", "lt(x[i], x[i]) => false")
def _less_than_itself(node: Scalar) -> Scalar | None:
    return const(False, BOOL) if node.args[0] is node.args[1] else None


@BOOK.rule("eq le ge ne", "eq(k[i], k[i]) => true")
def _equal_to_itself(node: Scalar) -> Scalar | None:
    """Holds without NaN only."""
    left, right = node.args
    return const(node.op != "ne", BOOL) if left is right and not left.dtype.is_float else None


@BOOK.rule("eq ne", "eq(b[i], false) => logical_not(b[i])", second="const")
def _compare_bool(node: Scalar) -> Scalar | None:
    left, right = node.args
    if left.dtype is not BOOL:
        return None
    return left if right.value is (node.op == "eq") else apply("logical_not", left)


@BOOK.rule("minimum maximum", "maximum(x[i], f32(-inf)) => x[i]", second="const")
def _unbounded(node: Scalar) -> Scalar | None:
    left, right = node.args
    neutral = math.inf if node.op == "minimum" else -math.inf
    return left if node.dtype.is_float and right.value == neutral else None


@BOOK.rule("minimum maximum", "minimum(minimum(x[i], f32(3.0)), f32(2.0)) => minimum(x[i], f32(2.0))", second="const")
def _join_bounds(node: Scalar) -> Scalar | None:
    """Joins two constant bounds, unless one is NaN or both are zeros (of which the sign would be lost)."""
    inner, outer = node.args
    if inner.op != node.op or inner.args[1].op != "const":
        return None
    a, b = inner.args[1].value, outer.value
    if a != a or b != b or (a == b == 0 and a is not b):  # noqa: PLR0124 - a number that is not itself is NaN
        return None
    kept = min(a, b) if node.op == "minimum" else max(a, b)
    return apply(node.op, inner.args[0], const(kept, node.dtype))


@BOOK.rule(
    "where",
    "where(le(abs(minimum(maximum(x[i], f32(-2.0)), f32(2.0))), f32(3.0)), "
    "minimum(maximum(x[i], f32(-2.0)), f32(2.0)), f32(nan)) => minimum(maximum(x[i], f32(-2.0)), f32(2.0))",
    first="le",
)
def _in_range_anyway(node: Scalar) -> Scalar | None:
    """Drops a test that makes NaN of what is too large where a clamp has made sure that nothing is.

    Casts to float8_e4m3fn have such a test; quantisation clamps before them.
    """
    (magnitude, limit), value, other = node.args[0].args, node.args[1], node.args[2]
    if magnitude.op != "abs" or magnitude.args[0] is not value or limit.op != "const" or other.op != "const":
        return None
    is_nan = other.value != other.value
    return value if is_nan and _largest_magnitude(value) <= limit.value else None


def _largest_magnitude(value: Scalar) -> float:
    """Returns the largest magnitude that a number between two constants can have; infinity for anything else."""
    inner = value.args[0] if value.op in ("minimum", "maximum") else value
    if {value.op, inner.op} != {"minimum", "maximum"} or value.args[1].op != "const" or inner.args[1].op != "const":
        return math.inf
    bounds = (float(value.args[1].value), float(inner.args[1].value))
    return math.inf if any(math.isnan(bound) for bound in bounds) else max(map(abs, bounds))
