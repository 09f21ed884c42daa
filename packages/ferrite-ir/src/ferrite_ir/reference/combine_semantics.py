"""What every named combine means: how one operand tuple becomes a state, and how two states become one.

Updates combine what they store with what lies there; `stored` says how.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from ferrite_ir.language.combine_functions import LEFT, RIGHT, AnyCombine, CombineFunction, combine_row
from ferrite_ir.language.dtypes import DType
from ferrite_ir.language.scalar import Number

from .points import Point
from .rounding import round_to
from .special_functions import logaddexp
from .tensors import Tensor, filled

State: TypeAlias = tuple[Number, ...]


def lift(combine: AnyCombine, operands: State) -> State:
    """Returns the state that stands for one point. Operands that are a state already stay as they are."""
    row = combine_row(combine)
    if row is None or len(operands) == len(row.state):
        return operands
    (value,) = operands
    return (value, 0.0, 1.0) if combine == "welford" else (value, 1.0)


def merge(combine: AnyCombine, first: State, second: State) -> State:
    """Returns the state of two consecutive groups of points, the first one in front."""
    return _called(combine, first, second) if isinstance(combine, CombineFunction) else _MERGES[combine](first, second)


def _called(function: CombineFunction, first: State, second: State) -> State:
    memory: dict[str, Tensor] = {}
    for side, state in ((LEFT, first), (RIGHT, second)):
        for node, number in zip(function.components(side), state, strict=True):
            memory[node.source] = filled(round_to(number, node.dtype), node.dtype, (), ())
    point = Point(memory, {}, {})
    return tuple(point.scalar(body) for body in function.bodies)


def neutral(combine: str, dtype: DType) -> State:
    """Returns the state of no points at all, of values of a type.

    Raises:
        ValueError: the combine has none (the position of the largest of no values, say).
    """
    zero, one = (0.0, 1.0) if dtype.is_float else (0, 1)
    states: dict[str, State] = {
        "sum": (zero,),
        "prod": (one,),
        "max": (dtype.lowest,),
        "min": (dtype.highest,),
        "any": (False,),
        "all": (True,),
        "xor": (zero,),
        "logaddexp": (-math.inf,),
        "welford": (zero, zero, zero),
        "online_softmax": (-math.inf, zero),
    }
    if combine not in states:
        raise ValueError(f"{combine} of no values has no result")
    return states[combine]


def _is_nan(x: Number) -> bool:
    return x != x  # noqa: PLR0124 - a number that is not itself is NaN


def _each(function: Callable[[Number, Number], Number]) -> Callable[[State, State], State]:
    return lambda a, b: (function(a[0], b[0]),)


def _max(a: Number, b: Number) -> Number:
    return a if _is_nan(a) or a >= b else b


def _min(a: Number, b: Number) -> Number:
    return a if _is_nan(a) or a <= b else b


def _extreme(is_better: Callable[[Number, Number], bool], *, later: bool) -> Callable[[State, State], State]:
    """Returns a combine of (value, index) pairs.

    NaN wins. Ties go to the lowest index, or for running extremes to the later point.
    """

    def combined(a: State, b: State) -> State:
        if _is_nan(a[0]) or _is_nan(b[0]):
            both = _is_nan(a[0]) and _is_nan(b[0])
            return (b if later or b[1] < a[1] else a) if both else (a if _is_nan(a[0]) else b)
        if a[0] == b[0]:
            return b if later or b[1] < a[1] else a
        return a if is_better(a[0], b[0]) else b

    return combined


def _welford(a: State, b: State) -> State:
    """Merges (mean, sum of squared deviations, count).

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    """
    (mean_a, m2_a, weight_a), (mean_b, m2_b, weight_b) = a, b
    weight, delta = weight_a + weight_b, mean_b - mean_a
    share = weight_b / weight if weight else 0.0
    return mean_a + delta * share, m2_a + m2_b + delta * delta * weight_a * share, weight


def _online_softmax(a: State, b: State) -> State:
    """Merges (maximum, sum of exp(x - maximum)).

    Source: Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    top = _max(a[0], b[0])
    if top == -math.inf:
        return top, a[1] + b[1]
    if math.isinf(top) or _is_nan(top):
        return (top if not _is_nan(b[0]) else b[0]), math.nan
    return top, a[1] * math.exp(a[0] - top) + b[1] * math.exp(b[0] - top)


_MERGES: dict[str, Callable[[State, State], State]] = {
    "sum": _each(lambda a, b: a + b),
    "prod": _each(lambda a, b: a * b),
    "max": _each(_max),
    "min": _each(_min),
    "any": _each(lambda a, b: a or b),
    "all": _each(lambda a, b: a and b),
    "xor": _each(lambda a, b: int(a) ^ int(b)),
    "argmax": _extreme(lambda a, b: a > b, later=False),
    "argmin": _extreme(lambda a, b: a < b, later=False),
    "cummax": _extreme(lambda a, b: a > b, later=True),
    "cummin": _extreme(lambda a, b: a < b, later=True),
    "logaddexp": _each(logaddexp),
    "welford": _welford,
    "online_softmax": _online_softmax,
}


def _stored_maximum(old: Number, new: Number) -> Number:
    return old if _is_nan(old) or old > new else new


def _stored_minimum(old: Number, new: Number) -> Number:
    return old if _is_nan(old) or old < new else new


_STORES: dict[str, Callable[[Any, Number], Number]] = {
    "set": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": _stored_minimum,
    "max": _stored_maximum,
}


def stored(mode: str, old: Any, new: Number) -> Any:
    """Returns what an update of a mode makes of an element."""
    return _STORES[mode](old, new)
