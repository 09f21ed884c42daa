"""Elements that are compared with their own largest or smallest one are not computed anew for it in backward.

The gradient of a maximum goes to the elements that equal it, in parts of one by their number. Where a kernel contracts
a product and a sum that another one rounds apart, none is equal, and the parts are those of zero. Half values have more
roundings that may differ, and programs compare them in other ways as well: by a difference, or a quotient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from ferrite_torch.rewrites.equal_nodes import EqualNodes
from ferrite_torch.rewrites.extrema import chosen_from, without_sign


def save_extrema(
    graph: torch.fx.Graph, halves: Mapping[torch.fx.Node, Sequence[torch.fx.Node]], equal: EqualNodes
) -> None:
    """Marks what extrema of a joint graph are taken of as not to be computed in backward.

    Of half types (``halves``) all are, of others those that are compared for equality. Forward then saves the elements,
    if backward reads them, or what the comparison gives.
    """
    chosen = [each for elements in halves.values() for each in elements]
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.eq.Tensor):
        first, second = node.args
        chosen += _compared(first, second, equal) + _compared(second, first, equal)
    for each in chosen:
        for same in equal.of(each):
            same.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _compared(extremum: Any, elements: Any, equal: EqualNodes) -> list[torch.fx.Node]:
    """Returns what a value is an extremum of if that is what it is compared with."""
    return [each for each in chosen_from(extremum, equal) if equal.are_equal(each, without_sign(elements))]
