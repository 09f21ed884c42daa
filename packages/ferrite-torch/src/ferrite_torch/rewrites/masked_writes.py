"""Writes to the positions of a mask, ``x[mask] = y``, as choices between two tensors where ``y`` has a gradient.

Autograd's rule for the gradient of what is written reads the positions of the mask, and how many these are no graph
knows while it is captured. Where one value goes to all positions, or one for each index of the dims behind the mask, a
choice writes the same, and the sizes of its gradient do not depend on the mask.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ferrite_torch.torch_private.nodes import example_of, target_name

_PUTS = ("index_put", "index_put_")


def choose_by_masks(module: torch.fx.GraphModule) -> None:
    """Makes choices of a dynamo graph's writes to the positions of one mask whose values have a gradient."""
    is_changed = False
    for node in list(module.graph.nodes):
        write = _write(node)  # read only now: its operands may be choices that earlier writes have become
        position = None if write is None else _position(*write[:2])
        if write is not None and position is not None:
            x, _, value = write
            is_changed |= _choose(module.graph, node, x, *position, value)
    if is_changed:
        module.recompile()


def _write(node: Node) -> tuple[Node, Sequence[Any], Node] | None:
    """Returns the tensor, the indices and the values of a write that replaces elements; None for other nodes."""
    if node.target is operator.setitem:
        x, index, value = node.args
        index = index if isinstance(index, (list, tuple)) else (index,)
    elif target_name(node) in _PUTS and len(node.args) == 3 and not any(node.kwargs.values()):
        x, index, value = node.args
    else:
        return None
    if not (isinstance(x, Node) and isinstance(value, Node) and isinstance(index, (list, tuple))):
        return None
    written = example_of(value)
    has_gradient = isinstance(written, torch.Tensor) and written.requires_grad
    is_alike = has_gradient and isinstance(example_of(x), torch.Tensor) and example_of(x).dtype is written.dtype
    return (x, index, value) if is_alike else None


def _position(x: Node, index: Sequence[Any]) -> tuple[Node, int] | None:
    """Returns the mask and the number of dims behind it, where all other indices take whole dims; else None."""
    masks = [(number, item) for number, item in enumerate(index) if _is_mask(item)]
    if len(masks) != 1 or not all(item is Ellipsis or item == slice(None) or _is_mask(item) for item in index):
        return None
    (number, mask), positions, target = masks[0], example_of(masks[0][1]).shape, example_of(x).shape
    behind = len(index) - number - 1 if Ellipsis in index[:number] else len(target) - number - len(positions)
    # A choice would spread a mask of other extents, which is an error here.
    end = len(target) - behind
    return (mask, behind) if tuple(target[end - len(positions) : end]) == tuple(positions) else None


def _is_mask(item: Any) -> bool:
    example = example_of(item) if isinstance(item, Node) else None
    return isinstance(example, torch.Tensor) and example.dtype is torch.bool and example.ndim > 0


def _choose(graph: Graph, node: Node, x: Node, mask: Node, behind: int, value: Node) -> bool:
    """Replaces a write by a choice, unless its values are one for each position; returns whether it did."""
    shape = example_of(value).shape
    own_dim = len(shape) - behind - 1
    if own_dim >= 0 and not _is_one(shape[own_dim]):
        return False
    with graph.inserting_before(node):
        if own_dim >= 0:
            for _ in range(example_of(mask).ndim - 1):
                value = graph.call_method("unsqueeze", (value, own_dim))
        chosen = mask
        for _ in range(behind):
            chosen = graph.call_method("unsqueeze", (chosen, -1))
        found = graph.call_function(torch.where, (chosen, value, x))
        # What is not written in place is a clone, and lies as one.
        written = graph.call_method("clone", (x,)) if target_name(node) == "index_put" else x
        found = graph.call_method("copy_", (written, found))
    found.meta = dict(node.meta)  # what it is for its readers, of which some are writes themselves
    node.replace_all_uses_with(found)
    graph.erase_node(node)
    return True


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
