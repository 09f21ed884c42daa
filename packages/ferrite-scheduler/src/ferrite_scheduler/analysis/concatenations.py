"""Concatenations as they are written: a chain of choices by where a point lies along one dim.

masked(lt(j, 4), p[i, j], masked(bitand(ge(j, 4), lt(j, 6)), q[i, j - 4], masked(ge(j, 6), r[i, j - 6], 0)))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.graph import Loop
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar, cast
from ferrite_ir.language.sizes import is_static


@dataclass(frozen=True, slots=True)
class Part:
    """What a concatenation is along one of its dims, from ``start`` on, up to and without ``end``."""

    dim: Dim
    start: int
    end: int
    value: Scalar


def parts_of(loop: Loop) -> tuple[Part, ...] | None:
    """Returns the parts of a loop of one result that is a concatenation, in order; None if it is none.

    Their values are those of the loop. What was only widened to be chosen from is the narrow value again.
    """
    (body,), dtype = loop.bodies, loop.results[0].type.dtype
    node = body.args[0] if body.op == "cast" and body.args[0].op == "masked" else body
    found: list[Part] = []
    while node.op == "masked":
        condition, value, node = node.args
        span = _span(condition)
        start = found[-1].end if found else 0
        if span is None or span.start != start or (found and span.dim is not found[0].dim):
            return None
        found.append(Part(span.dim, start, span.end, _as_stored(value, dtype)))
    return tuple(found) if len(found) > 1 and _is_whole(found, node) else None


def _is_whole(found: Sequence[Part], last: Scalar) -> bool:
    """Returns whether parts are all of a concatenation, behind which nothing is chosen."""
    return found[-1].end == found[0].dim.size and last.op == "const"


def _as_stored(value: Scalar, dtype: DType) -> Scalar:
    """Returns a value in the type of a loop, from one that may have been widened."""
    if value.op == "cast" and value.args[0].dtype is dtype:
        return value.args[0]  # type: ignore[no-any-return]
    return value if value.dtype is dtype else cast(value, dtype)


@dataclass(frozen=True, slots=True)
class _Span:
    dim: Dim
    start: int
    end: int


def _span(condition: Scalar) -> _Span | None:
    """Returns between which places along a dim a condition holds; None if it is another one."""
    if condition.op == "bitand":
        low, high = map(_span, condition.args)
        if low is None or high is None or low.dim is not high.dim:
            return None
        return _Span(low.dim, max(low.start, high.start), min(low.end, high.end))
    if condition.op not in ("lt", "ge"):
        return None
    place, limit = condition.args
    dim, number = _dim_of(place), _number_of(limit)
    if dim is None or number is None or not is_static(dim.size):
        return None
    return _Span(dim, 0, number) if condition.op == "lt" else _Span(dim, number, int(dim.size))


def _dim_of(place: Scalar) -> Dim | None:
    """Returns the dim whose place a number is."""
    if place.op != "index" or len(place.args[0].terms) != 1 or place.args[0].const != 0:
        return None
    ((atom, factor),) = place.args[0].terms
    return atom if isinstance(atom, Dim) and factor == 1 else None


def _number_of(limit: Scalar) -> int | None:
    value: Any = limit.args[0] if limit.op == "const" else None
    return value if type(value) is int else None
