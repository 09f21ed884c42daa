"""Lowerings of higher-order ops: calls whose functions become part of the graph that they stand in.

All others are steps of their own (`captured_steps`), as those are that a lowering here refuses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ferrite_torch.graphs.combine_graphs import lower_associative_scan
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.torch_private.operators import TAKEN_APART

Lowering = Callable[[Builder, torch.fx.GraphModule, torch.fx.Node, Sequence[Any]], Any]
"""Takes the graph that is made, the module that a node stands in, the node, and its arguments as they were lowered."""


def functions_of(module: torch.fx.GraphModule, node: torch.fx.Node) -> tuple[torch.fx.GraphModule, ...]:
    """Returns the graphs that a call takes as arguments, in order."""
    held = (arg for arg in node.args if isinstance(arg, torch.fx.Node) and arg.op == "get_attr")
    found = (operator.attrgetter(str(arg.target))(module) for arg in held)
    return tuple(each for each in found if isinstance(each, torch.fx.GraphModule))


def _associative_scan(
    b: Builder, module: torch.fx.GraphModule, node: torch.fx.Node, args: Sequence[Any]
) -> tuple[Tensor, ...]:
    functions = functions_of(module, node)
    if len(functions) != 1:
        raise Unlowered("its combine is no graph of the module")
    return lower_associative_scan(b, functions[0], args[1], args[2])


HIGHER_ORDER: dict[str, Lowering] = {"associative_scan": _associative_scan}
"""By name of the op, one for each of `TAKEN_APART`: the functions of those are part of the keys of stored graphs."""

assert HIGHER_ORDER.keys() == TAKEN_APART, "what is read of a graph is in its key"
