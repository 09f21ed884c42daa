"""Checks without a message get one: AOTAutograd leaves them out of its graphs, and keeps those that have a message."""

from __future__ import annotations

import torch

from ferrite_torch.torch_private.effects import assertion
from ferrite_torch.torch_private.nodes import target_name

_NAMES = ("_assert_async", "_assert_async.default")
_MESSAGE = "Expected Tensor with single nonzero value, but got zero"
"""What eager mode says."""


def keep_checks(module: torch.fx.GraphModule) -> None:
    """Gives checks of a captured graph a message, those of checkpoints and branches in it included."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            _keep_in(part)


def _keep_in(module: torch.fx.GraphModule) -> None:
    checks = [node for node in module.graph.nodes if node.op == "call_function" and target_name(node) in _NAMES]
    found = [node for node in checks if len(node.args) + len(node.kwargs) == 1]
    for node in found:
        node.target = assertion()
        node.args, node.kwargs = (*node.all_input_nodes, _MESSAGE), {}
    if found:
        module.recompile()
