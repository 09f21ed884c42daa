"""Splits that torch declares to copy, and that do not: `unsafe_chunk`, `unsafe_split`, `unsafe_split_with_sizes`.

Their results are views of the operand, of which autograd is not told. AOTAutograd goes by what they declare: results
would have memory of their own, and a write to one would not reach the operand. In a graph they are the ops of the same
name without ``unsafe``, but for operands that have gradients: autograd refuses writes to views of those ops. Parts of
such an operand stay copies, unless somebody could tell.
"""

from __future__ import annotations

import torch

from ferrite_torch.diagnostics.origins import unsupported
from ferrite_torch.rewrites.aliased_writes import destinations
from ferrite_torch.torch_private.fake_tensors import share_storage
from ferrite_torch.torch_private.nodes import fake_of, target_name

_FUNCTIONS = {
    torch.unsafe_chunk: torch.chunk,
    torch.unsafe_split: torch.split,
    torch.unsafe_split_with_sizes: torch.split_with_sizes,
    torch.ops.aten.unsafe_chunk.default: torch.ops.aten.chunk.default,
    torch.ops.aten.unsafe_split.Tensor: torch.ops.aten.split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default: torch.ops.aten.split_with_sizes.default,
}
_METHODS = {name: name.removeprefix("unsafe_") for name in ("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes")}


def split_as_views(module: torch.fx.GraphModule) -> None:
    """Has splits of a dynamo graph give views, as eager mode's do.

    Raises:
        Unsupported: a part of something that has a gradient is written to, and the whole is read later, or the reverse.
    """
    has_changed = False
    for node in module.graph.nodes:
        table = _FUNCTIONS if node.op == "call_function" else _METHODS if node.op == "call_method" else {}
        if node.target not in table:
            continue
        if not _has_gradient(node):
            node.target = table[node.target]
            has_changed = True
        elif _is_told_apart(node):
            name = target_name(node).partition(".")[0].removeprefix("unsafe_")
            raise unsupported(
                node,
                "a write that reaches the whole and a part of it, of which autograd is not told",
                f"use {name}(), and write to a clone() of the part",
            )
    if has_changed:
        module.recompile()


def _has_gradient(node: torch.fx.Node) -> bool:
    return any(fake is None or fake.requires_grad for fake in map(fake_of, node.all_input_nodes))


def _is_told_apart(split: torch.fx.Node) -> bool:
    """Returns whether a part is read after a write to the whole, or the whole after one to a part."""
    whole = split.all_input_nodes[0]
    written: set[bool] = set()
    nodes = list(split.graph.nodes)
    for node in nodes[nodes.index(split) + 1 :]:
        read = {_is_of_part(each, split) for each in node.all_input_nodes if each is not split and _shares(each, whole)}
        if any((not is_part) in written for is_part in read):
            return True
        written |= {_is_of_part(each, split) for each in destinations(node) if _shares(each, whole)}
    return False


def _is_of_part(node: torch.fx.Node, split: torch.fx.Node) -> bool:
    """Returns whether a tensor in the memory of the whole was made from a part of it."""
    while node.args and isinstance(node.args[0], torch.fx.Node) and node.args[0] is not split:
        if not _shares(node.args[0], node):
            return False
        node = node.args[0]
    return bool(node.args) and node.args[0] is split


def _shares(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    return share_storage(fake_of(node), fake_of(other))
