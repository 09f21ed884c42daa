"""Operands that change no result of a combine."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ferrite_ir.dtypes import BOOL, DType
from ferrite_ir.scalar import Scalar, const


def neutral_state(combine: str, dtypes: Iterable[DType]) -> tuple[Scalar, ...]:
    """Returns the neutral operands of a combine for operands of these types (lifted or state form)."""
    first, *rest = dtypes
    match combine:
        case "max" | "argmax" | "logaddexp" | "online_softmax":
            value = const(lowest(first), first)
        case "min" | "argmin":
            value = const(highest(first), first)
        case "prod" | "all":
            value = const(1, first)
        case _:
            value = const(0, first)
    if combine in ("argmax", "argmin"):
        return value, *(const(highest(dtype), dtype) for dtype in rest)
    return value, *(const(0, dtype) for dtype in rest)


def lowest(dtype: DType) -> float | int:
    """Returns the number that no other number of a type is below."""
    if dtype.is_float:
        return -math.inf
    if dtype is BOOL or dtype.kind == "uint":
        return 0
    return -(1 << (dtype.bits - 1))


def highest(dtype: DType) -> float | int:
    """Returns the number that no other number of a type is above."""
    if dtype.is_float:
        return math.inf
    if dtype is BOOL:
        return 1
    return (1 << (dtype.bits - (dtype.kind == "int"))) - 1
