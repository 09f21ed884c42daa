"""Bitwidth reduction: 64-bit integer arithmetic is done in 32 bits where every value provably fits.

By interval arithmetic on expressions, forwards alone, as in Stephenson, Babb, Amarasinghe, "Bitwidth analysis with
application to silicon compilation" (2000).
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from ferrite_ir.language import index as ix
from ferrite_ir.language.dtypes import BOOL, F32, F64, I32, I64, DType
from ferrite_ir.language.graph import Graph
from ferrite_ir.language.index import Index
from ferrite_ir.language.index_substitution import with_indirects
from ferrite_ir.language.ops import REQUIREMENTS
from ferrite_ir.language.scalar import Scalar, apply, cast, const, index_value, load, rebuilt, unsettled
from ferrite_ir.reference.rounding import round_to

from .fold_constants import folded
from .rewriting import map_scalars, with_definitions

Range: TypeAlias = tuple[int, int] | None
"""Inclusive bounds of an integer value, None where nothing is known."""
Span: TypeAlias = tuple[float, float] | None
"""Inclusive bounds of a floating-point value that is no NaN, None where nothing is known."""

_LOW, _HIGH = -(1 << 31), (1 << 31) - 1
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Narrow:
    """Narrows i64 arithmetic to i32.

    That are comparisons, selections and conversions of index values and of small stored integers. Types of results
    never change, only the way to them.
    """

    name: ClassVar[str] = "narrow"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with narrower arithmetic."""
        change = _narrower()
        return with_definitions(graph, [map_scalars(d, change.scalar, change.index) for d in graph.definitions])


def type_range(dtype: DType) -> Range:
    """Returns the bounds of an integer type (or bool), None for other types."""
    return (int(dtype.lowest), int(dtype.highest)) if dtype is BOOL or dtype.is_integer else None


class _Narrower:
    """Rewrites expressions; remembers bounds and results of every node, which depend on the node alone."""

    __slots__ = ("_ranges", "_small", "_spans", "_wide")

    def __init__(self) -> None:
        self._wide: dict[Scalar, Scalar] = {}
        self._small: dict[Scalar, Scalar | None] = {}
        self._ranges: dict[Scalar, Range] = {}
        self._spans: dict[Scalar, Span] = {}

    def scalar(self, root: Scalar) -> Scalar:
        """Returns the expression with narrower arithmetic inside, of the same type."""
        for node in unsettled(root, self._wide):
            self._visit(node)
        return self._wide[root]

    def index(self, index: Index) -> Index:
        """Returns an index with narrower arithmetic in its indirect parts."""
        return with_indirects(index, self._indirect)

    def _indirect(self, part: ix.Indirect) -> Index:
        value = self.scalar(part.value)
        bounds = self._ranges.get(part.value)
        wraps = part.wraps and (bounds is None or bounds[0] < 0)
        return ix.indirect(self._small.get(part.value) or value, part.size, wraps)

    def _visit(self, node: Scalar) -> None:
        if node.dtype is I64:
            self._ranges[node] = bounds = _without_overflow(self._bounds(node))
            self._small[node] = self._as_small(node) if bounds and bounds[0] >= _LOW and bounds[1] <= _HIGH else None
        elif node.dtype in (F32, F64) and (span := self._span(node)) is not None:
            self._spans[node] = span
        self._wide[node] = self._as_wide(node)

    def _as_wide(self, node: Scalar) -> Scalar:
        if node.op in ("load", "index", "const"):
            if not node.below:
                return node
            indices = [self.index(index) for index in node.indices]
            return load(node.source, indices, node.dtype) if node.op == "load" else index_value(indices[0], node.dtype)
        if node.dtype is I64:
            small = self._small[node]
            if small is not None and node.op in _ARITHMETIC:
                return cast(small, I64)
        elif any([arg.dtype is I64 for arg in node.args]) and node.op in _BOUNDARIES:  # noqa: C419
            if node.op in _COMPARED and (is_true := self._decided(node)) is not None:
                return const(is_true, BOOL)
            operands = [self._small.get(arg) for arg in node.args]
            if None not in operands and any(arg.op != "const" for arg in node.args):
                return cast(operands[0], node.dtype) if node.op == "cast" else apply(node.op, *operands)  # type: ignore[arg-type]
        new = tuple([self._wide[arg] for arg in node.args])
        if new == node.args:
            return node
        made = rebuilt(node, new)
        if node.op in REQUIREMENTS:
            return new[1] if _holds(new[0]) else made
        return folded(made) or made if node.dtype is BOOL else made

    def _decided(self, node: Scalar) -> bool | None:
        """Returns what a comparison of integers gives for all values that they may have, None if that varies."""
        first, second = (self._ranges.get(arg) for arg in node.args)
        if first is None or second is None:
            return None
        least, most = (_COMPARED[node.op](*ends) for ends in ((first[1], second[0]), (first[0], second[1])))
        return least if least == most else None

    def _as_small(self, node: Scalar) -> Scalar | None:
        """Returns the i32 form of an i64 node whose value fits, None if a part of it does not fit."""
        match node.op:
            case "const":
                return const(node.value, I32)
            case "index":
                return index_value(self.index(node.args[0]), I32)
            case "cast":
                return cast(self._wide[node.args[0]], I32)
            case "where":
                yes, no = (self._small[arg] for arg in node.args[1:])
                return None if yes is None or no is None else apply("where", self._wide[node.args[0]], yes, no)
            case op if op in REQUIREMENTS:
                condition, value = self._wide[node.args[0]], self._small[node.args[1]]
                return value if value is None or _holds(condition) else apply(op, condition, value)
        if node.op not in _ARITHMETIC:
            return None
        operands = [self._small.get(arg) for arg in node.args]
        return None if None in operands else apply(node.op, *operands)  # type: ignore[arg-type]

    def _bounds(self, node: Scalar) -> Range:
        match node.op:
            case "const":
                return node.value, node.value
            case "index":
                index = node.args[0]
                return (index.lo, index.hi) if type(index.lo) is int and type(index.hi) is int else None
            case "cast":
                return self._cast_bounds(node.args[0])
            case "where":
                return _union(self._ranges[node.args[1]], self._ranges[node.args[2]])
            case op if op in REQUIREMENTS:
                return self._ranges[node.args[1]]
        rule = _ARITHMETIC.get(node.op)
        operands: list[Any] = [self._ranges.get(arg) for arg in node.args]
        return None if rule is None or None in operands else rule(*operands)

    def _span(self, node: Scalar) -> Span:
        """Returns the bounds of a float: of its operands' bounds, by operations that grow with each of them.

        Additions and products are taken to be rounded twice, as a compiler may round them once, together.
        """
        match node.op:
            case "const":
                value = float(round_to(node.value, node.dtype))
                return (value, value) if math.isfinite(value) else None
            case "cast":
                source = node.args[0]
                if not source.dtype.is_float:
                    return _as_floats(self._cast_bounds(source))
                wide = self._spans.get(source)
                return wide if wide is None or source.dtype.bits <= node.dtype.bits else _widened(wide)
        rule = _ARITHMETIC.get(node.op) if node.op in _ROUNDED else _EXACT.get(node.op)
        operands: list[Any] = [self._spans.get(arg) for arg in node.args]
        if rule is None or None in operands:
            return None
        span: Span = rule(*operands)
        return _widened(span) if node.op in _ROUNDED else span

    def _cast_bounds(self, source: Scalar) -> Range:
        if source.dtype.is_float:
            span = self._spans.get(source)
            return None if span is None else (math.trunc(span[0]), math.trunc(span[1]))
        if source.dtype is I64:
            return self._ranges.get(source)
        if source.dtype is I32 and source.op == "index":
            index = source.args[0]
            return (index.lo, index.hi) if type(index.lo) is int and type(index.hi) is int else type_range(I32)
        return type_range(source.dtype)


@lru_cache(maxsize=1)
def _narrower() -> _Narrower:
    return _Narrower()


def _holds(condition: Scalar) -> bool:
    return condition.op == "const" and bool(condition.value)


def _as_floats(bounds: Range) -> Span:
    """Returns the bounds of integers as those of what they are rounded to."""
    return None if bounds is None else _widened((float(bounds[0]), float(bounds[1])))


def _widened(span: Span) -> Span:
    """Returns bounds of what two roundings to 24 bits make of values between some bounds; None for too large ones.

    What is no normal number may be rounded to zero, or away from it by more than its share.
    """
    if span is None or not -_OVERFLOWING < span[0] <= span[1] < _OVERFLOWING:
        return None
    low, high = span[0] - abs(span[0]) * _ROUNDINGS, span[1] + abs(span[1]) * _ROUNDINGS
    if 0 < abs(low) < _NORMAL:
        low = 0.0 if low > 0 else -_NORMAL
    if 0 < abs(high) < _NORMAL:
        high = 0.0 if high < 0 else _NORMAL
    return low, high


def _without_overflow(bounds: Range) -> Range:
    """Returns bounds of 64-bit integers; None where some of them wrap around."""
    return bounds if bounds and bounds[0] >= _LOWEST and bounds[1] <= _HIGHEST else None


def _union(a: Range, b: Range) -> Range:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _products(a: tuple[int, int], b: tuple[int, int]) -> Range:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _quotients(a: tuple[int, int], b: tuple[int, int]) -> Range:
    if b[0] <= 0:
        return None
    quotients = [x // y for x in a for y in b]
    return min(quotients), max(quotients)


def _remainders(a: tuple[int, int], b: tuple[int, int]) -> Range:
    return (0, b[1] - 1) if b[0] > 0 else None


def _absolute(a: tuple[int, int]) -> Range:
    high = max(abs(a[0]), abs(a[1]))
    return (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))), high


_ARITHMETIC: dict[str, Any] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _products,
    "neg": lambda a: (-a[1], -a[0]),
    "abs": _absolute,
    "relu": lambda a: (max(0, a[0]), max(0, a[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "floordiv": _quotients,
    "mod": _remainders,
}
"""Bounds of the results of integer operations from those of their operands, before they wrap around."""

_ROUNDED = frozenset(("add", "sub", "mul"))
_EXACT: dict[str, Any] = {name: _ARITHMETIC[name] for name in ("neg", "abs", "relu", "minimum", "maximum")}
_EXACT |= {
    name: lambda a, function=function: (float(function(a[0])), float(function(a[1])))
    for name, function in (("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc))
}
"""The same of floating-point values by operations that round nothing."""
_ROUNDINGS = 2.0**-22
"""What two roundings to 24 bits may add to a value, relative to it, and more."""
_OVERFLOWING = 2.0**100
_NORMAL = 2.0**-126
"""The least positive normal number of 32 bits."""

_COMPARED: dict[str, Any] = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}

_BOUNDARIES = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "cast"))
