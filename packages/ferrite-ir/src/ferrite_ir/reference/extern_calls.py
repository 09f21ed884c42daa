"""Extern calls that the evaluator knows: enough for tests, in plain Python over tensors of lists."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ferrite_ir.language.dtypes import dtype_named
from ferrite_ir.language.scalar import Number

from .combine_semantics import stored
from .points import EvaluationError
from .rounding import round_to
from .tensors import Nested, Tensor, empty

ExternFunction = Callable[..., Any]
"""An extern call: gets a `Tensor` for each view and the other arguments as they are; returns what each result is, a
`Tensor` (which may share storage with an operand) or nested lists; a tuple for several results, None for none."""


def _mm(left: Tensor, right: Tensor) -> Nested:
    rows, columns = left.shape[-2:], right.shape[-2:]
    if rows[1] != columns[0]:
        raise EvaluationError(f"mm of {list(left.shape)} and {list(right.shape)}")
    a, b = left.nested(), right.nested()
    return [[math.fsum(row[k] * b[k][j] for k in range(rows[1])) for j in range(columns[1])] for row in a]


def _addmm(summand: Tensor, left: Tensor, right: Tensor) -> Nested:
    """Returns a matrix (no row to be repeated) plus a product."""
    pairs = zip(summand.nested(), _mm(left, right), strict=True)
    return [[a + b for a, b in zip(row, other, strict=True)] for row, other in pairs]


def _into(function: Callable[..., Nested]) -> ExternFunction:
    """Returns what writes the matrix that a function returns to a tensor that it is given."""

    def call(*operands: Tensor, out: Tensor) -> Tensor:
        rows: Any = function(*operands)
        for i, j in out.points():
            out.write((i, j), round_to(rows[i][j], out.dtype))
        return out

    return call


def _copy(target: Tensor, source: Tensor) -> Tensor:
    for point in target.points():
        target.write(point, round_to(source.read(point) or 0, target.dtype))
    return target


def _sort(x: Tensor, *, stable: bool, dim: int, descending: bool) -> tuple[Nested, Nested]:
    """Returns the numbers of a vector in ascending order, and where they were."""
    if len(x.shape) != 1 or dim != 0 or not stable or descending:
        raise EvaluationError("only a vector is sorted, stably and upwards")
    values: Any = x.nested()
    order = sorted(range(len(values)), key=values.__getitem__)
    return [values[position] for position in order], order


def _reduce_segments(
    positions: Tensor, source: Tensor, base: Tensor | Number, *, rows: int, mode: str, wraps: bool, **_: int
) -> Nested:
    """Returns rows with those of another matrix combined into them; a place that is no row's is none."""
    width = source.shape[1]
    start = base.nested() if isinstance(base, Tensor) else [[base] * width for _ in range(rows)]
    found: list[list[Any]] = [list(row) for row in start]
    for number, position in enumerate(positions.nested()):
        row = position + rows if wraps and position < 0 else position
        if 0 <= row < rows:
            new = source.nested()[number]
            found[row] = [stored(mode, old, value) for old, value in zip(found[row], new, strict=True)]
    return found


EXTERNS: dict[str, ExternFunction] = {
    "ferrite.alias": lambda x: x,
    "ferrite.after": lambda x, earlier: x,
    "ferrite.seed": lambda count, *_: list(range(count)),
    "aten.clone.default": lambda x, **_: x.nested(),
    "aten.mm.default": _mm,
    "aten.addmm.default": _addmm,
    "aten.mm.out": _into(_mm),
    "aten.addmm.out": _into(_addmm),
    "aten.sort.stable": _sort,
    "ferrite.reduce_segments": _reduce_segments,
    "aten.copy_.default": lambda target, source, *_: _copy(target, source),
    "aten.empty_strided.default": lambda shape, strides, dtype, **_: empty(dtype_named(dtype.value), shape, strides),
}
"""Extern calls that the evaluator knows: enough for tests. Seeds are 0, 1, 2, …"""
