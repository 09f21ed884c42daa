"""Bounds of integers that are computed: of positions, constants, comparisons, random numbers, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ferrite_ir import scalar as sc
from ferrite_ir.dtypes import BOOL
from ferrite_ir.graph import Loop
from ferrite_ir.scalar import Scalar
from ferrite_ir.sizes import Size, is_provably_at_most
from ferrite_torch.builder import Builder

Extent: TypeAlias = tuple[Size, Size]
"""The least and the greatest value."""
DEEPEST = 32
"""Operations and loops, one inside the other, that are looked through."""


def loop_body(b: Builder, load: Scalar) -> Scalar | None:
    """Returns what a loop of the graph computes at the place of a load from it; None of other loads."""
    made = next((d for d in b.definitions if isinstance(d, Loop) and d.results[0].name == load.source), None)
    if made is None:
        return None
    return sc.substitute_dims(made.bodies[0], dict(zip(made.dims, load.indices, strict=True)))


def extent_of(b: Builder, value: Scalar, depth: int = DEEPEST) -> Extent | None:
    """Returns bounds of a number, None where nothing is known."""
    if depth == 0:
        return None
    match value.op:
        case "const":
            return (int(value.value), int(value.value)) if not value.dtype.is_float else None
        case "index":
            index = value.args[0]
            return None if index.lo is None or index.hi is None else (index.lo, index.hi)
        case "load":
            body = loop_body(b, value)
            return _of_type(value) if body is None else extent_of(b, body, depth - 1)
        case "randint64":
            low, high = value.args[2:]
            return (int(low.value), int(high.value) - 1) if low.op == high.op == "const" else None
        case "cast" if not value.args[0].dtype.is_float:
            return extent_of(b, value.args[0], depth - 1)
        case "where" | "masked":
            return _union(*(extent_of(b, part, depth - 1) for part in value.args[1:]))
    rule = _RULES.get(value.op)
    if rule is None:
        return _of_type(value)
    parts = [extent_of(b, part, depth - 1) for part in value.args]
    return None if None in parts else rule(*parts)  # type: ignore[arg-type]


def _of_type(value: Scalar) -> Extent | None:
    return (0, 1) if value.dtype is BOOL else None


def _union(a: Extent | None, b: Extent | None) -> Extent | None:
    if a is None or b is None:
        return None
    low = a[0] if is_provably_at_most(a[0], b[0]) else b[0]
    high = b[1] if is_provably_at_most(a[1], b[1]) else a[1]
    holds = is_provably_at_most(low, a[0]) and is_provably_at_most(low, b[0])
    return (low, high) if holds and is_provably_at_most(a[1], high) and is_provably_at_most(b[1], high) else None


def _product(a: Extent, b: Extent) -> Extent | None:
    ends = (*a, *b)
    if not all(isinstance(end, int) for end in ends):
        return None
    products = [x * y for x in a for y in b]
    return min(products), max(products)


_RULES: dict[str, Callable[[Extent, Extent], Extent | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
}
