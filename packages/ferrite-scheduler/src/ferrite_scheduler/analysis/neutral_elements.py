"""Operands that change no result of a combine."""

from __future__ import annotations

from collections.abc import Iterable

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.scalar import Scalar, const


def neutral_state(combine: str, dtypes: Iterable[DType]) -> tuple[Scalar, ...]:
    """Returns the neutral operands of a combine for operands of these types (lifted or state form)."""
    first, *rest = dtypes
    match combine:
        case "max" | "argmax" | "logaddexp" | "online_softmax":
            value = const(first.lowest, first)
        case "min" | "argmin":
            value = const(first.highest, first)
        case "prod" | "all":
            value = const(1, first)
        case _:
            value = const(0, first)
    if combine in ("argmax", "argmin"):
        return value, *(const(dtype.highest, dtype) for dtype in rest)
    return value, *(const(0, dtype) for dtype in rest)
