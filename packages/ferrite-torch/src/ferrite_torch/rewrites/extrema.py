"""Extrema in captured graphs: which values are the largest or smallest of a tensor's elements, and of which."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from ferrite_torch.rewrites.equal_nodes import EqualNodes
from ferrite_torch.torch_private.operators import Overload, arguments_by_name, reshapes

_aten = torch.ops.aten
_EXTREMA = (_aten.amax.default, _aten.amin.default, _aten.max.default, _aten.min.default)
_WITH_POSITIONS = (_aten.max.dim, _aten.min.dim)
"""Ops that return an extremum and where it is."""
_POSITIONS = (_aten.argmax.default, _aten.argmin.default)
_NORMS = (_aten.linalg_vector_norm, _aten.norm)
_SCATTERS = {
    _aten.scatter_reduce.two: ("self", "src"),
    _aten.index_reduce.default: ("self", "source"),
}
"""Ops that choose the largest or smallest of an operand's elements, and of another's that have the same index."""
_GATHERS = (_aten.gather.default, _aten.index_select.default, _aten.index.Tensor)
_CHOOSING = frozenset((*_EXTREMA, *_WITH_POSITIONS, *_POSITIONS, *_SCATTERS, _aten.aminmax.default))
_WIDER = {
    torch.float16: (torch.float32, torch.float64),
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
}
"""The types that have all numbers of another one."""
_STEPS = 12
"""Nodes that are looked through to see where an index comes from."""


def may_have_extrema(graph: torch.fx.Graph) -> bool:
    """Returns whether a graph calls an op that `chosen_from` knows, but for gathers."""
    return any(
        node.target in _CHOOSING or getattr(node.target, "overloadpacket", None) in _NORMS
        for node in graph.nodes
        if node.op == "call_function"
    )


def chosen_from(value: Any, equal: EqualNodes) -> list[torch.fx.Node]:
    """Returns the tensors of which a value, or what it is a view of, is an extremum, or of whose sizes.

    Elements at the position of their own extremum are one.
    """
    return [each for each in _operands(origin(value), equal) if isinstance(each, torch.fx.Node)]


def _operands(node: Any, equal: EqualNodes) -> list[Any]:
    target = getattr(node, "target", None)
    if target is operator.getitem:
        source = node.args[0]
        is_value = source.target in _WITH_POSITIONS and node.args[1] == 0
        return [without_sign(source.args[0])] if is_value or source.target is _aten.aminmax.default else []
    if target in _EXTREMA:
        return [without_sign(node.args[0])]
    if target in _GATHERS:
        elements = without_sign(node.args[0])
        return [elements] if _is_at_own_position(node, elements, equal) else chosen_from(node.args[0], equal)
    given = arguments_by_name(target, node.args, node.kwargs) if isinstance(target, Overload) else {}
    if getattr(target, "overloadpacket", None) in _NORMS:
        order = given["ord"] if "ord" in given else given["p"]
        return [origin(given["self"])] if order in (math.inf, -math.inf) else []
    if target in _SCATTERS and given["reduce"] in ("amax", "amin"):
        return [origin(given[name]) for name in _SCATTERS[target]]
    return []


def _is_at_own_position(gather: torch.fx.Node, elements: Any, equal: EqualNodes) -> bool:
    """Returns whether elements are gathered by an index made from the position of the largest or smallest of them."""
    pending = [node for node in gather.all_input_nodes if node is not gather.args[0]]
    for _ in range(_STEPS):
        if not pending:
            return False
        node = pending.pop()
        if node.op != "call_function":
            continue
        if node.target in (*_POSITIONS, *_WITH_POSITIONS):
            if equal.are_equal(without_sign(node.args[0]), elements):
                return True
            continue
        pending += node.all_input_nodes
    return False


def without_sign(value: Any) -> Any:
    """Returns what a value, or that of which it is the size, is a view of, or is widened from."""
    value = origin(value)
    return origin(value.args[0]) if getattr(value, "target", None) is _aten.abs.default else value


def origin(value: Any) -> Any:
    """Returns what a value is a view of, or is widened from: a conversion that loses nothing keeps the order."""
    while isinstance(value, torch.fx.Node) and (reshapes(value.target) or _widens(value)):
        value = value.args[0]
    return value


def _widens(node: torch.fx.Node) -> bool:
    """Returns whether a program converts floating-point numbers to a type that has them all, on their device.

    Conversions of decompositions are none of the program's: what a softmax computes between two of them is its own.
    """
    if str(node.target) != "aten._to_copy.default" or not isinstance(node.args[0], torch.fx.Node):
        return False
    new, old = (each.meta.get("val") for each in (node, node.args[0]))
    if not isinstance(new, torch.Tensor) or not isinstance(old, torch.Tensor) or new.device != old.device:
        return False
    return new.dtype in _WIDER.get(old.dtype, ())
