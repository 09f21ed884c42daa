"""Rounds Python numbers to the element types, as a conversion on the device does."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ferrite_ir.language.dtypes import BOOL, DType
from ferrite_ir.language.scalar import Number


def round_to(value: Number, dtype: DType) -> Number:
    """Returns a result of arithmetic in a type as a number of that type.

    Floats rounded to nearest even, integers wrapped.
    """
    if dtype.is_float:
        return _FLOATS[dtype.name](float(value))
    return bool(value) if dtype is BOOL else wrap(int(value), dtype)


def convert(value: Number, source: DType, target: DType) -> Number:
    """Returns what ``cast`` gives.

    Floats become integers by truncation; beyond the range of the 32-bit (for i64 and u64: 64-bit) type they saturate
    there, and NaN gives 0, before narrower types wrap. That is what GPUs do; the language leaves it open.
    """
    if target is BOOL:
        return value != 0
    if source.is_float and target.is_integer:
        return wrap(_saturated(float(value), target), target)
    if target.name == "bf16" and source.name == "f64":
        value = _round_f32(float(value))
    return round_to(value, target)


def wrap(value: int, dtype: DType) -> int:
    """Returns an integer reduced to the width of an integer type (two's complement for signed ones)."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def _saturated(value: float, target: DType) -> int:
    if math.isnan(value):
        return 0
    bits = 64 if target.bits == 64 else 32
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if target.kind == "int" else (0, (1 << bits) - 1)
    if math.isinf(value):
        return high if value > 0 else low
    return max(low, min(high, int(value)))


def reinterpret(value: Number, source: DType, target: DType) -> Number:
    """Returns what ``bitcast`` gives: the bits of a value of one type, read as another of the same width."""
    bits = to_bits(value, source)
    return from_bits(bits, target)


def to_bits(value: Number, dtype: DType) -> int:
    """Returns the bit pattern of a value of a type, as a nonnegative integer.

    Raises:
        ValueError: the type has no defined patterns here (opaque types).
    """
    if not dtype.is_float:
        return int(value) & ((1 << dtype.bits) - 1)
    if dtype.name in _STRUCTS:
        code, integer = _STRUCTS[dtype.name]
        return int(struct.unpack(integer, struct.pack(code, value))[0])
    if dtype.name == "bf16":
        return to_bits(value, _F32) >> 16
    matches = [bits for bits in range(256) if _is_same(from_bits(bits, dtype), float(value))]
    if not matches:
        raise ValueError(f"{value!r} is no {dtype}")
    return matches[0]


def from_bits(bits: int, dtype: DType) -> Number:
    """Returns the value of a type that has this bit pattern."""
    if dtype is BOOL:
        return bits != 0
    if not dtype.is_float:
        return wrap(bits, dtype)
    if dtype.name in _STRUCTS:
        code, integer = _STRUCTS[dtype.name]
        return float(struct.unpack(code, struct.pack(integer, bits))[0])
    if dtype.name == "bf16":
        return from_bits(bits << 16, _F32)
    return _EIGHT_BITS[dtype.name].decode(bits)


def _is_same(a: Number, b: float) -> bool:
    return (a != a and b != b) or (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))  # noqa: PLR0124


def next_float(value: float, towards: float, dtype: DType) -> float:
    """Returns the neighbour of a float of a type in the direction of another."""
    if math.isnan(value) or math.isnan(towards):
        return math.nan
    if value == towards:
        return towards
    if value == 0:
        return math.copysign(float(from_bits(1, dtype)), towards)
    step = 1 if (towards > value) == (value > 0) else -1
    return float(from_bits(to_bits(value, dtype) + step, dtype))


_F32 = DType("f32", 32, "float")
_STRUCTS = {"f64": ("<d", "<Q"), "f32": ("<f", "<I"), "f16": ("<e", "<H")}


def _round_f64(value: float) -> float:
    return value


def _round_packed(code: str, value: float) -> float:
    """Returns a number as `struct` stores it under a format code."""
    try:
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


_round_f32: Callable[[float], float] = partial(_round_packed, "<f")
_round_f16: Callable[[float], float] = partial(_round_packed, "<e")


def _round_bf16(value: float) -> float:
    if math.isnan(value) or math.isinf(value):
        return value
    bits = to_bits(_round_f32(value), _F32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(from_bits(bits, _F32))


@dataclass(frozen=True, slots=True)
class _EightBits:
    """An 8-bit float format.

    Attributes:
        mantissa, bias: bits of the mantissa, and the exponent bias.
        largest: the largest finite value.
        overflow: what larger values become.
        has_negative_zero: False for the formats whose pattern 0x80 is NaN.
    """

    mantissa: int
    bias: int
    largest: float
    overflow: float
    has_negative_zero: bool

    def round(self, value: float) -> float:
        """Returns the nearest value of the format, ties to even."""
        if math.isnan(value) or math.isinf(value):
            return math.copysign(self.overflow, value) if math.isinf(value) else value
        if value == 0:
            return value if self.has_negative_zero else 0.0
        exponent = max(math.frexp(value)[1] - 1, 1 - self.bias) - self.mantissa
        rounded = math.ldexp(round(math.ldexp(value, -exponent)), exponent)
        if abs(rounded) > self.largest:
            return math.copysign(self.overflow, value)
        return math.copysign(rounded, value) if rounded or self.has_negative_zero else 0.0

    def decode(self, bits: int) -> float:
        """Returns the value with this bit pattern."""
        if bits == 0x80 and not self.has_negative_zero:
            return math.nan
        sign = -1.0 if bits & 0x80 else 1.0
        exponent, fraction = (bits & 0x7F) >> self.mantissa, bits & ((1 << self.mantissa) - 1)
        if exponent == 0:
            return sign * math.ldexp(fraction, 1 - self.bias - self.mantissa)
        value = math.ldexp(fraction + (1 << self.mantissa), exponent - self.bias - self.mantissa)
        if value <= self.largest:
            return sign * value
        is_infinite = math.isinf(self.overflow) and fraction == 0
        return sign * math.inf if is_infinite else math.nan


_EIGHT_BITS = {
    "f8e4m3fn": _EightBits(3, 7, 448.0, 448.0, has_negative_zero=True),
    "f8e5m2": _EightBits(2, 15, 57344.0, math.inf, has_negative_zero=True),
    "f8e4m3fnuz": _EightBits(3, 8, 240.0, math.nan, has_negative_zero=False),
    "f8e5m2fnuz": _EightBits(2, 16, 57344.0, math.nan, has_negative_zero=False),
}

_FLOATS: Mapping[str, Callable[[float], float]] = {
    "f64": _round_f64,
    "f32": _round_f32,
    "f16": _round_f16,
    "bf16": _round_bf16,
} | {name: format_.round for name, format_ in _EIGHT_BITS.items()}
