"""What every captured graph goes through before it is looked up or lowered; a second time it changes nothing."""

from __future__ import annotations

import torch

from ferrite_torch.rewrites.equal_nodes import EqualNodes
from ferrite_torch.rewrites.extrema import may_have_extrema
from ferrite_torch.rewrites.numbers.fresh_numbers import write_numbers
from ferrite_torch.rewrites.rounded_half_types import half_extrema, mark_beside_extrema
from ferrite_torch.rewrites.wrapped_calls import unwrap_calls


def prepare_graph(module: torch.fx.GraphModule) -> None:
    """Takes wrapped calls and numbers that a program writes apart, and says which half values have to be rounded."""
    unwrap_calls(module)
    write_numbers(module)
    if may_have_extrema(module.graph):
        equal = EqualNodes(module.graph)
        mark_beside_extrema(half_extrema(module.graph, equal), equal, is_joint=False)
