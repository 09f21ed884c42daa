"""Rules about conversions."""

from __future__ import annotations

from ferrite_ir.language.dtypes import BF16, BOOL, F8E4M3FN, F16, F32, F64, DType
from ferrite_ir.language.scalar import Scalar, apply, bitcast, cast, const, rebuilt, rounded

from .rule import Book

LARGEST_F8E4M3FN = 448.0

BOOK = Book()
FAST_BOOK = Book()
"""Rules that skip a rounding to a half type between two computations: at least as exact, but not the same bits."""


@BOOK.rule("cast rounded", "cast.f64(cast.f32(h[i])) => cast.f64(h[i])", first="cast")
def _skip_lossless_cast(node: Scalar) -> Scalar | None:
    """Skips the inner one of two conversions if it keeps every value."""
    inner = node.args[0]
    source: Scalar = inner.args[0]
    return rebuilt(node, (source,)) if keeps_values(source.dtype, inner.dtype) else None


@BOOK.rule("rounded", "rounded.bf16(cast.bf16(x[i])) => rounded.bf16(x[i])", first="cast")
def _round_what_was_cast(node: Scalar) -> Scalar | None:
    """Takes the excess precision from a conversion to the same type."""
    inner = node.args[0]
    return rounded(inner.args[0], node.dtype) if inner.dtype is node.dtype else None


@BOOK.rule("cast", "cast.i16(cast.i32(l[i])) => cast.i16(l[i])", first="cast")
def _skip_wider_integer(node: Scalar) -> Scalar | None:
    """Skips an integer cast under one that drops at least as many bits."""
    inner = node.args[0]
    source: Scalar = inner.args[0]
    if (
        all(dtype.is_integer for dtype in (node.dtype, inner.dtype, source.dtype))
        and node.dtype.bits <= inner.dtype.bits
    ):
        return cast(source, node.dtype)
    return None


@FAST_BOOK.rule("cast", "cast.f32(cast.bf16(x[i])) => x[i]", first="cast")
def _skip_rounding(node: Scalar) -> Scalar | None:
    """Skips a rounding to f16 or bf16 whose result is widened again at once: it is kept with excess precision."""
    inner = node.args[0]
    source: Scalar = inner.args[0]
    if inner.dtype not in (F16, BF16) or node.dtype not in (F32, F64) or source.dtype not in (F32, F64):
        return None
    return cast(source, node.dtype)


@BOOK.rule(
    "cast",
    "cast.f8e4m3fn(minimum(maximum(x[i], f32(-448.0)), f32(448.0))) => cast.f8e4m3fn(x[i])",
    first="minimum maximum",
)
def _skip_clamp(node: Scalar) -> Scalar | None:
    """Skips a clamp to no less than what the cast rounds to anyway: the largest number for all that is too large."""
    outer = node.args[0]
    inner = outer.args[0]
    if node.dtype is not F8E4M3FN or {outer.op, inner.op} != {"minimum", "maximum"}:
        return None
    bounds = {clamp.op: clamp.args[1] for clamp in (outer, inner)}
    if any(bound.op != "const" for bound in bounds.values()):
        return None
    is_wide = bounds["minimum"].value >= LARGEST_F8E4M3FN and bounds["maximum"].value <= -LARGEST_F8E4M3FN
    return cast(inner.args[0], node.dtype) if is_wide else None


@BOOK.rule("bitcast", "bitcast.f32(bitcast.i32(x[i])) => x[i]", first="bitcast")
def _skip_bitcast(node: Scalar) -> Scalar | None:
    return bitcast(node.args[0].args[0], node.dtype)


@BOOK.rule("eq ne gt", "ne(cast.i32(b[i]), i32(0)) => b[i]", first="cast")
def _compare_cast_bool(node: Scalar) -> Scalar | None:
    """Compares a number made from a bool with zero."""
    number, zero = node.args
    if number.args[0].dtype is not BOOL or zero.op != "const" or zero.value != 0:
        return None
    truth: Scalar = number.args[0]
    return apply("logical_not", truth) if node.op == "eq" else truth


@BOOK.rule("isnan isinf", "isnan(cast.f32(k[i])) => false", first="cast")
def _integers_are_finite(node: Scalar) -> Scalar | None:
    source = node.args[0].args[0].dtype
    is_whole = source.is_integer or source is BOOL
    return const(False, BOOL) if is_whole and node.args[0].dtype in (BF16, F32, F64) else None


def keeps_values(source: DType, target: DType) -> bool:
    """Returns whether every value of one type is also a value of another, so that casting there loses nothing."""
    if source is target or source is BOOL:
        return target.kind != "opaque"
    if source.is_integer and target.is_integer:
        if source.kind == target.kind:
            return source.bits <= target.bits
        return source.kind == "uint" and source.bits < target.bits
    if source.is_integer and target.is_float:
        return source.bits - (source.kind == "int") <= _MANTISSA.get(target.name, 0)
    return target.name in _WIDER.get(source.name, ())


_MANTISSA = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_WIDER = {
    "f8e4m3fn": ("f16", "bf16", "f32", "f64"),
    "f8e5m2": ("f16", "bf16", "f32", "f64"),
    "f8e4m3fnuz": ("f16", "bf16", "f32", "f64"),
    "f8e5m2fnuz": ("f16", "bf16", "f32", "f64"),
    "f16": ("f32", "f64"),
    "bf16": ("f32", "f64"),
    "f32": ("f64",),
}
