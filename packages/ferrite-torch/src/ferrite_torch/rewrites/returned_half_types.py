"""Half values that a forward returns, and that its backward may compute anew, are rounded there as well.

The caller sees such a value as it lies in memory; a backward that computes it again from what was saved would see it
with excess precision: finite, say, where the one that was returned has overflowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload, schema_of

RETURNED = "is_returned"
"""The metadata of a node, in the forward and in the backward, whose half result the forward returns."""
_HALVES = (torch.float16, torch.bfloat16)
_COPIES = frozenset(("aten.clone.default", "aten.contiguous.default"))


def mark_returned_half_types(results: Sequence[Any]) -> None:
    """Marks the nodes of a joint graph whose half values, or views or copies of them, are results of the forward."""
    for result in results:
        node = result
        while isinstance(node, torch.fx.Node) and node.op == "call_function" and _is_half(node):
            node.meta[RETURNED] = True
            node = node.args[0] if _hands_on(node) else None


def _is_half(node: torch.fx.Node) -> bool:
    fake = node.meta.get("val")
    return isinstance(fake, torch.Tensor) and fake.dtype in _HALVES


def _hands_on(node: torch.fx.Node) -> bool:
    """Returns whether a node gives a view or a copy of its first operand."""
    if not isinstance(node.target, Overload) or not node.args:
        return False
    returns = schema_of(node.target).returns
    return str(node.target) in _COPIES or (len(returns) == 1 and returns[0].alias_info is not None)
