"""Online softmax: a maximum and the sum of exponentials relative to it become one reduction of rows read repeatedly.

In a tile that holds the whole row the two reductions cost nothing; a loop over the row would pass twice. The joined
reduction keeps a running maximum and scales the sum when it moves.

Source: Milakov, Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ferrite_ir.language.dtypes import F32, F64
from ferrite_ir.language.graph import Definition, Graph, Loop, Reduction, TensorType, Value
from ferrite_ir.language.index import Dim, Index, constant
from ferrite_ir.language.powers_of_two import next_power_of_two
from ferrite_ir.language.scalar import Scalar, apply, const, load, substitute_dims
from ferrite_ir.language.sizes import is_static, product
from ferrite_scheduler.analysis.nodes import make_node
from ferrite_scheduler.model.intermediates import new_value
from ferrite_scheduler.model.policy import Policy

from .reductions.split_reductions import is_outer


@dataclass(frozen=True, slots=True)
class Pair:
    """A sum of exponentials, and the maximum that they are relative to.

    Attributes:
        top: the reduction of the maximum.
        sum: the reduction of the exponentials.
        maximum: how the sum's body reads the maximum.
        is_safe: whether an infinite maximum counts as zero there, as ``logsumexp`` is written.
    """

    top: Reduction
    sum: Reduction
    maximum: Scalar
    is_safe: bool


def join_softmax(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with such reductions joined; the same object where there are none."""
    reductions = [definition for definition in graph.definitions if isinstance(definition, Reduction)]
    maxima = {reduction.results[0].name: reduction for reduction in reductions if _is_maximum(reduction)}
    if not maxima:
        return graph
    types = {name: value.type for name, value in graph.values.items()}
    pairs: dict[str, Pair] = {}
    for reduction in reductions:
        pair = _pair_of(reduction, maxima)
        if pair is not None and pair.top.results[0].name not in pairs and _is_looped(pair.top, types, policy):
            pairs[pair.top.results[0].name] = pair
    if not pairs:
        return graph
    sums = {pair.sum.results[0].name: pair for pair in pairs.values()}
    definitions: list[Definition] = []
    raw: dict[str, Value] = {}
    for definition in graph.definitions:
        name = definition.results[0].name if isinstance(definition, Reduction) else None
        if name in pairs:
            top = pairs[name].top
            mass = raw[name] = new_value(f"{pairs[name].sum.results[0].name}_raw", top.results[0].type, types)
            definitions.append(replace(top, results=(*top.results, mass), combine="online_softmax"))
        elif name in sums:
            definitions.append(_sum_of(sums[name], raw[sums[name].top.results[0].name]))
        else:
            definitions.append(definition)
    return replace(graph, definitions=tuple(definitions))


def _is_maximum(reduction: Reduction) -> bool:
    return reduction.combine == "max" and reduction.bodies[0].dtype in (F32, F64)


def _is_looped(reduction: Reduction, types: dict[str, TensorType], policy: Policy) -> bool:
    """Returns whether the reduction axis is too long for a tile, or of a size that only the call knows."""
    points = product(dim.size for dim in reduction.reduction_dims)
    if not is_static(points):
        return True
    limit = policy.persistent_elements
    if is_outer(make_node(0, reduction, types, {})):
        limit = policy.persistent_elements_outer
    return next_power_of_two(points) > limit


def _pair_of(reduction: Reduction, maxima: dict[str, Reduction]) -> Pair | None:
    """Returns the maximum that belongs to a sum of exponentials, or None if the reduction is something else."""
    body = reduction.bodies[0]
    if reduction.combine != "sum" or body.op != "exp" or body.args[0].op != "sub":
        return None
    value, shift = body.args[0].args
    maximum = _guarded(shift)
    top = None if maximum.op != "load" else maxima.get(maximum.source)
    if top is None:
        return None
    mapping = _dims_of(top, reduction, maximum)
    if mapping is None or substitute_dims(top.bodies[0], mapping) is not value:
        return None
    return Pair(top, reduction, maximum, maximum is not shift)


def _guarded(shift: Scalar) -> Scalar:
    """Returns ``m`` for ``where(abs(m) == inf, 0, m)``, else the expression itself."""
    if shift.op != "where":
        return shift
    maximum = shift.args[2]
    same = _or_zero_if_infinite(maximum) is shift
    return maximum if same else shift


def _or_zero_if_infinite(value: Scalar) -> Scalar:
    infinite = apply("eq", apply("abs", value), const(math.inf, value.dtype))
    return apply("where", infinite, const(0, value.dtype), value)


def _dims_of(top: Reduction, reduction: Reduction, maximum: Scalar) -> dict[Dim, Index] | None:
    """Returns what stands for each dim of the maximum in the sum, or None where they are different rows."""
    mapping: dict[Dim, Index] = {}
    own = {dim.index: dim for dim in reduction.dims}
    for dim, index in zip(top.dims, maximum.indices, strict=True):
        if dim.size == 1:
            mapping[dim] = constant(0)
        elif index in own:
            mapping[dim] = own.pop(index).index
        else:
            return None
    if any(dim.size != 1 for dim in own.values()):
        return None
    mine = [dim for dim in reduction.reduction_dims if dim.size != 1]
    theirs = [dim for dim in top.reduction_dims if dim.size != 1]
    if [dim.size for dim in mine] != [dim.size for dim in theirs]:
        return None
    mapping.update((dim, constant(0)) for dim in top.reduction_dims if dim.size == 1)
    mapping.update((old, new.index) for old, new in zip(theirs, mine, strict=True))
    return mapping


def _sum_of(pair: Pair, mass: Value) -> Loop:
    """Returns the sum as it was written, from the joined one: rows whose maximum is infinite have their own values."""
    dtype = mass.type.dtype
    raw, infinity = load(mass.name, pair.maximum.indices, dtype), const(math.inf, dtype)
    if pair.is_safe:  # exp(inf - 0) and exp(-inf - 0)
        lowest = apply("where", apply("eq", pair.maximum, const(-math.inf, dtype)), const(0, dtype), raw)
        body = apply("where", apply("eq", pair.maximum, infinity), infinity, lowest)
    else:  # exp(inf - inf)
        body = apply("where", apply("eq", apply("abs", pair.maximum), infinity), const(math.nan, dtype), raw)
    return Loop(pair.sum.results, pair.sum.dims, (body,), pair.sum.origins)
