"""Weights of attention with less to compute for each of them.

A weight is made at every point of a tile of scores, between products that tensor cores make meanwhile: each instruction
counts. Scores are sums of products in an order that nobody says, so what is saved may cost a rounding of f32.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from ferrite_ir.language.attend import Attend
from ferrite_ir.language.dtypes import F16, F32
from ferrite_ir.language.index import Dim, Index, atom_dims, constant
from ferrite_ir.language.scalar import Scalar, apply, cast, const, index_value, postorder, rebuilt
from ferrite_ir.language.sizes import is_static

EXACT = 1 << 24
"""Integers up to here are numbers of f32."""
LEAST, MOST = 2.0**-60, 2.0**60
"""Constants that are multiplied with each other are in between, so that weights do not leave what f32 has."""

_Product = tuple[Scalar | None, float]
"""What is left of a value without a constant that it is multiplied by, None for nothing, and this constant."""


def simplified(attend: Attend, row: Dim, along: Dim) -> tuple[Scalar, ...]:
    """Returns the weights of an attention over flat positions, cheaper ones.

    * Constants of a product become one, which stands outside: ``20 * tanh(s * 0.1 / 20)`` is ``tanh(s * 0.005) * 20``.
    * A difference of positions is one of numbers: those of rows are converted once, and those of columns once a round.

    ``row`` and ``along`` are the flat dims of rows and of columns of scores.
    """
    made: dict[Scalar, _Product] = {}
    for node in postorder(attend.weights):
        made[node] = _without_constant(node, made, row, along)
    return tuple(_whole(*made[weight]) for weight in attend.weights)


def _without_constant(node: Scalar, made: dict[Scalar, _Product], row: Dim, along: Dim) -> _Product:
    if node.dtype is F32:
        match node.op:
            case "const" if LEAST < abs(node.value) < MOST:
                return None, float(node.value)
            case "cast" if node.args[0].op == "index":
                return _by_axis(node, row, along), 1.0
            case "mul":
                (left, one), (right, other) = made[node.args[0]], made[node.args[1]]
                if LEAST < abs(one * other) < MOST:
                    return _product(left, right), one * other
            case "div" if (divisor := made[node.args[1]])[0] is None:
                left, one = made[node.args[0]]
                if LEAST < abs(one / divisor[1]) < MOST:
                    return left, one / divisor[1]
    if node.op in ("load", "index", "const"):
        return node, 1.0
    return rebuilt(node, tuple(_whole(*made[operand]) for operand in node.args)), 1.0


def _product(left: Scalar | None, right: Scalar | None) -> Scalar | None:
    if left is None or right is None:
        return right if left is None else left
    return apply("mul", left, right)


def _whole(rest: Scalar | None, factor: float) -> Scalar:
    if rest is None:
        return const(factor, F32)
    return rest if factor == 1.0 else apply("mul", rest, const(factor, F32))


def _by_axis(node: Scalar, row: Dim, along: Dim) -> Scalar:
    """Returns a number made of a position, where one made of two adds up numbers made of either."""
    index, dtype = node.args[0].args[0], node.args[0].dtype
    parts = {name: constant(0) for name in ("row", "along")}
    parts["row"] += index.const
    for atom, coefficient in index.terms:
        dims = atom_dims(atom)
        if {row, along} <= dims:
            return node
        parts["along" if along in dims else "row"] += atom.index * coefficient
    is_exact = all(_is_exact(part) for part in (*parts.values(), index))
    if not is_exact or parts["along"].is_constant or row not in parts["row"].dims:
        return node
    return apply("add", *(cast(index_value(part, dtype), F32) for part in parts.values()))


def _is_exact(index: Index) -> bool:
    """Returns whether all values of an index are numbers of f32."""
    bounds = (index.lo, index.hi)
    return all(bound is not None and is_static(bound) and abs(int(bound)) <= EXACT for bound in bounds)


def is_moderate(weight: Scalar, products: Collection[str]) -> bool:
    """Returns whether nothing that a weight is made of may be near the ends of f32, but what the products are.

    Numbers of half precision with few bits of exponent, and integers, are not.
    """
    for node in postorder((weight,)):
        if node.op == "load" and node.source not in products and node.dtype.is_float and node.dtype is not F16:
            return False
        if node.op == "const" and node.dtype.is_float and MOST < abs(node.value) < math.inf:
            return False
    return True


def grows_with_rows(attend: Attend, row: Dim, along: Dim) -> bool:
    """Returns whether later rows have more columns that count, as a causal mask says of queries.

    Programs of later rows are then to begin first: the last ones that run should be short.
    """
    return sum(_growths(attend.mask, row, along)) > 0


def _growths(mask: Scalar | None, row: Dim, along: Dim) -> Iterator[int]:
    """Yields 1 for each comparison that more columns pass in later rows, -1 for each that fewer do."""
    pending = [] if mask is None else [mask]
    while pending:
        node = pending.pop()
        if node.op in ("logical_and", "bitand"):
            pending += node.args
        elif node.op in ("ge", "gt", "le", "lt") and all(side.op in ("index", "const") for side in node.args):
            left, right = (side.args[0] if side.op == "index" else constant(int(side.value)) for side in node.args)
            above = left - right if node.op in ("ge", "gt") else right - left
            steps = dict(above.terms)
            rows, columns = steps.get(row, 0), steps.get(along, 0)
            if is_static(rows) and is_static(columns) and rows * columns < 0:
                yield 1 if rows > 0 else -1
