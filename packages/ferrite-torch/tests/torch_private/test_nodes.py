"""What the nodes of captured graphs say, however a version of torch writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from ferrite_torch.torch_private.nodes import attribute_read


def captured(function: Callable[..., Any], *inputs: torch.Tensor) -> GraphModule:
    found: list[GraphModule] = []

    def keep(module: GraphModule, _: object) -> Callable[..., Any]:
        found.append(module)
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep, fullgraph=True)(*inputs)
    return found[0]


def test_attributes_are_read_by_name() -> None:
    module = captured(lambda x: (x.mT + 1, x.mH + 1, x.T + 1, x.H + 1, x.real + 1), torch.ones(2, 3))
    found = list(filter(None, map(attribute_read, module.graph.nodes)))
    assert found == ["mT", "mH", "T", "H", "real"]


def test_other_calls_read_no_attribute() -> None:
    module = captured(lambda x: torch.sin(x).transpose(0, 1) @ x, torch.ones(2, 3))
    assert not any(map(attribute_read, module.graph.nodes))
