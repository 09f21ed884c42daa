"""Lowerings of higher-order ops: calls whose functions become part of the graph that they stand in.

All others are steps of their own (`captured_steps`), as those are that a lowering here refuses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ferrite_torch.graphs.functions.combine_graphs import lower_associative_scan
from ferrite_torch.graphs.functions.flex_attention import BlockMask, UsersFunction, lower_attention, lower_gradients
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.products.attention import Operands
from ferrite_torch.lowering.products.attention_gradients import Outer
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.torch_private.operators import INLINED

CAPTURED_GRADIENTS = 3
"""Place among the gradients of attention of those of captured tensors, which torch announces for all of them."""

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


def _flex_attention(
    b: Builder, module: torch.fx.GraphModule, node: torch.fx.Node, args: Sequence[Any]
) -> tuple[Tensor, ...]:
    score, blocks = node.args[3:5]
    return lower_attention(b, _attended(module, score, blocks, args))


def _flex_attention_backward(
    b: Builder, module: torch.fx.GraphModule, node: torch.fx.Node, args: Sequence[Any]
) -> tuple[Any, ...]:
    out, power, grad_out, grad_power = args[3:7]
    score, derivative, blocks = node.args[7:10]
    if grad_out is None:
        raise Unlowered("its result has no gradient")
    lists = [user for user in node.users if user.args[1] == CAPTURED_GRADIENTS]
    wanted = {place for found in lists for reader in found.users if isinstance(place := reader.args[1], int)}
    given = _attended(module, score, blocks, (*args[:3], None, *args[9:]), _function(module, derivative))
    return lower_gradients(b, given, Outer(out, power, grad_out, grad_power), sorted(wanted))


def _attended(
    module: torch.fx.GraphModule,
    score: Any,
    blocks: Any,
    args: Sequence[Any],
    derivative: torch.fx.GraphModule | None = None,
) -> Operands:
    """Returns what scores are made of.

    Args:
        module: that the call stands in.
        score: the node of the score modification.
        blocks: the tuple of the block mask, its function as a node.
        args: queries, keys, values, something, the block mask, the scale, options, and what functions have captured.
        derivative: of the score modification, where gradients are wanted.
    """
    query, key, value, _, lists, scale, _, *captured = args
    scores, masks = (*captured, (), ())[:2]
    mask = BlockMask.of(lists, _function(module, blocks[-1]), masks)
    function = UsersFunction(_function(module, score), derivative, scores, mask)
    return Operands(query, key, value, scale, function)


def _function(module: torch.fx.GraphModule, arg: Any) -> torch.fx.GraphModule:
    """Returns the graph that an argument of a node names.

    Raises:
        Unlowered: it names none.
    """
    found = None
    if isinstance(arg, torch.fx.Node) and arg.op == "get_attr":
        found = operator.attrgetter(str(arg.target))(module)
    if not isinstance(found, torch.fx.GraphModule):
        raise Unlowered("a function that it takes is no graph of the module")
    return found


HIGHER_ORDER: dict[str, Lowering] = {
    "associative_scan": _associative_scan,
    "flex_attention": _flex_attention,
    "flex_attention_backward": _flex_attention_backward,
}
"""By name of the op, one for each of `INLINED`: the functions of those are part of the keys of stored graphs."""

assert HIGHER_ORDER.keys() == INLINED, "what is read of a graph is in its key"
