"""Results of extern calls that lie on the CPU although torch's fake tensors say otherwise."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ferrite_torch.torch_private.seeded_ops import HOST_RESULTS


def correct_devices(graph: torch.fx.Graph) -> None:
    """Moves the fake results of the calls in `HOST_RESULTS` to the CPU, before a joint graph is split in two.

    After the split the backward graph has them as inputs, and nothing would tell where they came from.
    """
    for node in graph.nodes:
        positions = HOST_RESULTS.get(str(node.target)) if node.op == "call_function" else None
        if not positions:
            continue
        node.meta["val"] = _moved(node.meta["val"], positions)
        for user in node.users:
            if user.target is operator.getitem and user.args[1] in positions:
                user.meta["val"] = node.meta["val"][user.args[1]]


def _moved(fakes: Any, positions: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(
        fake.to("cpu") if position in positions and isinstance(fake, torch.Tensor) else fake
        for position, fake in enumerate(fakes)
    )
