"""Elements that are compared with their own largest or smallest one are not computed anew for it in backward.

The gradient of a maximum goes to the elements that equal it, in parts of one by their number. Where a kernel contracts
a product and a sum that another one rounds apart, none is equal, and the parts are those of zero.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from ferrite_torch.capture.equal_nodes import EqualNodes
from ferrite_torch.torch_private.operators import Overload, arguments_by_name, makes_view

_aten = torch.ops.aten
_EXTREMA = (_aten.amax.default, _aten.amin.default, _aten.max.default, _aten.min.default)
_NORMS = (_aten.linalg_vector_norm, _aten.norm)
_SCATTERS = {
    _aten.scatter_reduce.two: ("self", "src"),
    _aten.index_reduce.default: ("self", "source"),
}
"""Ops that choose the largest or smallest of an operand's elements, and of another's that have the same index."""
_GATHERS = (_aten.gather.default, _aten.index_select.default)


def save_extrema(graph: torch.fx.Graph) -> None:
    """Marks what extrema of a joint graph are taken of, and compared with, as not to be computed in backward.

    Forward then saves the elements, or what the comparison gives.
    """
    compared: list[tuple[list[Any], Any]] = []
    for node in graph.find_nodes(op="call_function", target=_aten.eq.Tensor):
        first, second = node.args
        for extremum, elements in ((first, second), (second, first)):
            chosen = _chosen_from(_origin(extremum))
            if chosen:
                compared.append((chosen, _without_sign(elements)))
    if not compared:
        return
    equal = EqualNodes(graph)
    for chosen, elements in compared:
        for each in chosen:
            if isinstance(each, torch.fx.Node) and equal.are_equal(each, elements):
                for same in equal.of(each):
                    same.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _chosen_from(value: Any) -> list[Any]:
    """Returns what a value is an extremum of, or of the sizes of; nothing if it is none."""
    target = getattr(value, "target", None)
    if target in _EXTREMA:
        return [_without_sign(value.args[0])]
    if target in _GATHERS:
        return _chosen_from(_origin(value.args[0]))
    given = arguments_by_name(target, value.args, value.kwargs) if isinstance(target, Overload) else {}
    if getattr(target, "overloadpacket", None) in _NORMS:
        order = given["ord"] if "ord" in given else given["p"]
        return [_origin(given["self"])] if order in (math.inf, -math.inf) else []
    if target in _SCATTERS and given["reduce"] in ("amax", "amin"):
        return [_origin(given[name]) for name in _SCATTERS[target]]
    return []


def _without_sign(value: Any) -> Any:
    """Returns what a value, or its absolute value, is a view of."""
    value = _origin(value)
    return _origin(value.args[0]) if getattr(value, "target", None) is _aten.abs.default else value


def _origin(value: Any) -> Any:
    """Returns what a value is a view of."""
    while isinstance(value, torch.fx.Node) and makes_view(value.target):
        value = value.args[0]
    return value
