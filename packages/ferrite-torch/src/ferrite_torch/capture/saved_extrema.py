"""Elements that are compared with their own largest or smallest one are not computed anew for it in backward.

The gradient of a maximum goes to the elements that equal it, in parts of one by their number. Where a kernel contracts
a product and a sum that another one rounds apart, none is equal, and the parts are those of zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

_aten = torch.ops.aten
_EXTREMA = (_aten.amax.default, _aten.amin.default, _aten.max.default, _aten.min.default)
_VIEWS = {getattr(_aten, name) for name in ("alias", "detach", "expand", "squeeze", "unsqueeze", "view", "reshape")}


def save_extrema(graph: torch.fx.Graph) -> None:
    """Marks what extrema of a joint graph are taken of, and compared with, as not to be computed in backward.

    Forward then saves the elements, or what the comparison gives.
    """
    for node in graph.find_nodes(op="call_function", target=_aten.eq.Tensor):
        operands = [_origin(operand) for operand in node.args]
        for extremum, elements in (operands, operands[::-1]):
            if getattr(extremum, "target", None) in _EXTREMA and _origin(extremum.args[0]) is elements:
                elements.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _origin(value: Any) -> Any:
    """Returns what a value is a view of."""
    while isinstance(value, torch.fx.Node) and getattr(value.target, "overloadpacket", None) in _VIEWS:
        value = value.args[0]
    return value
