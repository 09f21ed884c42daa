"""States of scans: what two of consecutive points come to, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from ferrite_ir.language.combine_functions import AnyCombine, CombineFunction
from ferrite_ir.language.graph import Scan
from ferrite_ir.language.scalar import Scalar, apply, load

from .work import cost_of

State: TypeAlias = tuple[Scalar, ...]

IN_ORDER = frozenset(("prod", "logaddexp"))
"""Combines of which a prefix may be in the range of its type where the same operands in another order are not."""


def merged(combine: AnyCombine, first: State, second: State) -> State:
    """Returns two states of consecutive points made one, as expressions."""
    if isinstance(combine, CombineFunction):
        return combine.joined(first, second)
    return _MERGES[combine](first, second)


def instructions_of(scan: Scan) -> int:
    """Returns how many instructions of a lane it takes to make two states one; 0 where operands are not states yet."""
    if len(scan.results) != len(scan.bodies):
        return 0
    first, second = (tuple(load(f"{v.name}.{n}", [], v.type.dtype) for v in scan.results) for n in (0, 1))
    return cost_of(merged(scan.combine, first, second))


def _simple(operation: str, first: State, second: State) -> State:
    return (apply(operation, first[0], second[0]),)


def _extreme(comparison: str, first: State, second: State) -> State:
    """Returns the better of two (value, position) pairs: NaN is the best, the second wins a tie."""
    is_second = apply(comparison, second[0], first[0])
    if second[0].dtype.is_float:
        is_second = apply("bitor", is_second, apply("isnan", second[0]))
    return tuple(apply("where", is_second, b, a) for a, b in zip(first, second, strict=True))


_MERGES: dict[str, Callable[[State, State], State]] = {
    "sum": partial(_simple, "add"),
    "prod": partial(_simple, "mul"),
    "max": partial(_simple, "maximum"),
    "min": partial(_simple, "minimum"),
    "logaddexp": partial(_simple, "logaddexp"),
    "cummax": partial(_extreme, "ge"),
    "cummin": partial(_extreme, "le"),
}
