"""Splits that torch declares to copy, and that do not: `unsafe_chunk`, `unsafe_split`, `unsafe_split_with_sizes`.

Their results are views of the operand, of which autograd is not told. AOTAutograd goes by what they declare: results
would have memory of their own, and a write to one would not reach the operand. In a graph they are the ops of the same
name without ``unsafe``, but for operands that have gradients: autograd refuses writes to views of those ops.
"""

from __future__ import annotations

import torch

from ferrite_torch.torch_private.nodes import fake_of

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
    """Has splits of a dynamo graph give views, as eager mode's do."""
    has_changed = False
    for node in module.graph.nodes:
        table = _FUNCTIONS if node.op == "call_function" else _METHODS if node.op == "call_method" else {}
        if node.target in table and not _has_gradient(node):
            node.target = table[node.target]
            has_changed = True
    if has_changed:
        module.recompile()


def _has_gradient(node: torch.fx.Node) -> bool:
    return any(fake is None or fake.requires_grad for fake in map(fake_of, node.all_input_nodes))
