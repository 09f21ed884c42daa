"""Element types and numbers as Triton text."""

from __future__ import annotations

import math
import struct
from typing import TypeAlias

from ferrite_ir.language.dtypes import BOOL, F32, F64, DType
from ferrite_triton.errors import UnsupportedDefinition
from ferrite_triton.tile.operations import is_negative_zero

from .printed import ATOM, LOOSE

Number: TypeAlias = "bool | int | float"

_SMALLEST_NORMAL, _LARGEST = 2.0**-126, (2 - 2**-23) * 2.0**127  # of float32

TRITON_TYPES: dict[str, str] = {
    "bool": "tl.int1",
    "i8": "tl.int8",
    "i16": "tl.int16",
    "i32": "tl.int32",
    "i64": "tl.int64",
    "u8": "tl.uint8",
    "u16": "tl.uint16",
    "u32": "tl.uint32",
    "u64": "tl.uint64",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "f32": "tl.float32",
    "f64": "tl.float64",
    "f8e4m3fn": "tl.float8e4nv",
    "f8e5m2": "tl.float8e5",
    "f8e4m3fnuz": "tl.float8e4b8",
    "f8e5m2fnuz": "tl.float8e5b16",
}


def type_text(dtype: DType) -> str:
    """Returns the Triton name of an element type.

    Raises:
        UnsupportedDefinition: kernels do not compute with this type.
    """
    found = TRITON_TYPES.get(dtype.name)
    if found is None:
        raise UnsupportedDefinition(f"kernels do not compute with {dtype}; keep its uses in extern calls")
    return found


def number_text(value: Number, dtype: DType) -> str:
    """Returns a number as text; where a literal meets a tile of type ``dtype`` it takes that type."""
    if dtype is BOOL:
        return "True" if value else "False"
    if not dtype.is_float:
        return str(int(value))
    number = float(value)
    if math.isnan(number):
        return 'float("nan")'
    if math.isinf(number):
        return 'float("inf")' if number > 0 else 'float("-inf")'
    return repr(number)


def survives_bare(value: Number, dtype: DType) -> bool:
    """Returns whether a bare literal that meets a tile of type ``dtype`` takes its type and keeps its value.

    Some versions of Triton make a float a float32 on its own first, or a float64 if it is out of the normal range.
    """
    if not isinstance(value, float) or value == 0.0 or not math.isfinite(value):
        return True
    if not _SMALLEST_NORMAL <= abs(value) <= _LARGEST:
        return False
    if dtype is not F64:
        return True
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return bool(rounded == value)


def full_text(value: Number, dtype: DType) -> str:
    """Returns a number as a scalar tile of its type: for calls, where a bare literal would get a type of its own."""
    if is_negative_zero(value) and dtype.bits in (16, 32, 64):
        (bits,) = struct.unpack("<q", struct.pack("<Q", (1 << 64) - (1 << (dtype.bits - 1))))
        return f"tl.full([], {bits}, tl.int{dtype.bits}).to({type_text(dtype)}, bitcast=True)"
    return f"tl.full([], {number_text(value, dtype)}, {type_text(dtype)})"


def lowest_text(dtype: DType) -> str:
    """Returns the literal that no number of the type is below: what a maximum starts from."""
    return number_text(dtype.lowest, dtype)


def highest_text(dtype: DType) -> str:
    """Returns the literal that no number of the type is above: what a minimum starts from."""
    return number_text(dtype.highest, dtype)


INVERTIBLE = 2.0**100
"""Divisors of f32 up to here, and from its reciprocal on, have reciprocals that correct a quotient."""


def divided_text(a: str, b: str, divisor: Number | None, dtype: DType) -> tuple[str, int]:
    """Returns the exact quotient of texts, and how strongly it binds; by a known number it takes fewer instructions.

    Triton's own division of f32 is off by up to 2 ulp; that of f64 is exact.
    """
    if divisor is not None and 1 <= divisor <= 1 / _SMALLEST_NORMAL and math.frexp(divisor)[0] == 0.5:  # a power of two
        return f"{a} * {number_text(1.0 / divisor, dtype)}", LOOSE
    if dtype.bits != F32.bits:
        return f"{a} / {b}", LOOSE
    if divisor is None or not 1 / INVERTIBLE <= abs(divisor) <= INVERTIBLE:
        return f"fmath.quotient({a}, {b})", ATOM
    narrow = _rounded(divisor)
    return f"fmath.divide_by({a}, {full_text(narrow, F32)}, {full_text(_rounded(1.0 / narrow), F32)})", ATOM


def _rounded(value: float) -> float:
    """Returns the number of f32 that is nearest to a value."""
    (narrow,) = struct.unpack("<f", struct.pack("<f", value))
    return float(narrow)
