"""Bounds of integers that are computed of positions, constants, comparisons and random numbers.

Interval arithmetic over the scalars of a graph, through the loops that compute what they read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL
from ferrite_ir.language.graph import Loop, Reduction, Sort
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, is_provably_at_most
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.thresholds import SEARCHES

Extent: TypeAlias = tuple[Size, Size]
"""The least and the greatest value."""


def loop_body(b: Builder, load: Scalar) -> Scalar | None:
    """Returns what a loop of the graph computes at the place of a load from it; None of other loads."""
    made = next((d for d in b.definitions if isinstance(d, Loop) and d.results[0].name == load.source), None)
    if made is None:
        return None
    return sc.substitute_dims(made.bodies[0], dict(zip(made.dims, load.indices, strict=True)))


def extent_of(b: Builder, value: Scalar, depth: int = SEARCHES.range_depth) -> Extent | None:
    """Returns bounds of a number, None where nothing is known."""
    rule = _RULES.get(value.op)
    if rule is None or depth == 0:
        return (0, 1) if value.dtype is BOOL else None
    return rule(b, value, depth - 1)


def _of_constant(b: Builder, value: Scalar, depth: int) -> Extent | None:
    return None if value.dtype.is_float else (int(value.value), int(value.value))


def _of_index(b: Builder, value: Scalar, depth: int) -> Extent | None:
    index = value.args[0]
    return None if index.lo is None or index.hi is None else (index.lo, index.hi)


def _of_load(b: Builder, value: Scalar, depth: int) -> Extent | None:
    body = loop_body(b, value)
    if body is None:
        places = _places_among(b, value.source, depth)
        return (0, 1) if places is None and value.dtype is BOOL else places
    return extent_of(b, body, depth)


def _places_among(b: Builder, name: str, depth: int) -> Extent | None:
    """Returns bounds of the positions that a sort, or an argmax, has as its second result; None of anything else."""
    made = next((d for d in b.definitions if isinstance(d, (Sort, Reduction)) and _second(d) == name), None)
    if isinstance(made, Reduction):
        return extent_of(b, made.bodies[1], depth) if made.combine in ("argmax", "argmin") else None
    return None if made is None else (0, made.along.size - 1)


def _second(made: Sort | Reduction) -> str | None:
    return made.results[1].name if len(made.results) > 1 else None


def _of_draw(b: Builder, value: Scalar, depth: int) -> Extent | None:
    low, high = value.args[2:]
    return (int(low.value), int(high.value) - 1) if low.op == high.op == "const" else None


def _of_cast(b: Builder, value: Scalar, depth: int) -> Extent | None:
    return None if value.args[0].dtype.is_float else extent_of(b, value.args[0], depth)


def _of_choice(b: Builder, value: Scalar, depth: int) -> Extent | None:
    one, other = (extent_of(b, part, depth) for part in value.args[1:])
    return None if one is None or other is None else _union(one, other)


def _of_remainder(b: Builder, value: Scalar, depth: int) -> Extent | None:
    divisor = value.args[1]
    is_known = divisor.op == "const" and not divisor.dtype.is_float and divisor.value > 0
    return (0, int(divisor.value) - 1) if is_known else None


def _union(a: Extent, b: Extent) -> Extent | None:
    low = next((x for x, y in ((a[0], b[0]), (b[0], a[0])) if is_provably_at_most(x, y)), None)
    high = next((x for x, y in ((a[1], b[1]), (b[1], a[1])) if is_provably_at_most(y, x)), None)
    return None if low is None or high is None else (low, high)


def _product(a: Extent, b: Extent) -> Extent | None:
    if not all(isinstance(end, int) for end in (*a, *b)):
        return None
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _arithmetic(rule: Callable[[Extent, Extent], Extent | None]) -> Callable[[Builder, Scalar, int], Extent | None]:
    def extent(b: Builder, value: Scalar, depth: int) -> Extent | None:
        one, other = (extent_of(b, part, depth) for part in value.args)
        return None if one is None or other is None else rule(one, other)

    return extent


_RULES: dict[str, Callable[[Builder, Scalar, int], Extent | None]] = {
    "const": _of_constant,
    "index": _of_index,
    "load": _of_load,
    "randint64": _of_draw,
    "cast": _of_cast,
    "where": _of_choice,
    "masked": _of_choice,
    "mod": _of_remainder,
    "add": _arithmetic(lambda a, b: (a[0] + b[0], a[1] + b[1])),
    "sub": _arithmetic(lambda a, b: (a[0] - b[1], a[1] - b[0])),
    "mul": _arithmetic(_product),
}
