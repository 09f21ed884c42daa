"""Random ops with a seed, run by themselves: where one direction of a graph runs eagerly, its numbers are the same."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ferrite_torch.options import Options
from ferrite_torch.torch_private.fake_tensors import fake_mode
from ferrite_torch.torch_private.operators import Overload


def run_seeded(op: Overload, *args: Any, **named: Any) -> Any:
    """Returns the results of a random op with a seed, computed by the kernel that a compiled graph has for it."""
    from ferrite_torch.pipeline import compile_graph  # noqa: PLC0415  # the layers that compile: rarely needed here

    mode, graph = fake_mode(), torch.fx.Graph()
    values: list[torch.Tensor] = []

    def entered(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(values)}")
        node.meta["val"] = mode.from_tensor(value)
        values.append(value)
        return node

    nodes = tuple(entered(arg) for arg in args), {name: entered(value) for name, value in named.items()}
    call = graph.call_function(op, *nodes)
    with mode:
        fakes = torch.fx.node.map_arg(nodes, lambda node: node.meta["val"])
        call.meta["val"] = op(*fakes[0], **fakes[1])
    several = isinstance(call.meta["val"], (tuple, list))
    parts = [_part(graph, call, position) for position in range(len(call.meta["val"]))] if several else [call]
    graph.output(tuple(parts))
    results = compile_graph(torch.fx.GraphModule({}, graph), "inference", Options())(values)
    return tuple(results) if several else results[0]


def _part(graph: torch.fx.Graph, call: torch.fx.Node, position: int) -> torch.fx.Node:
    part = graph.call_function(operator.getitem, (call, position))
    part.meta["val"] = call.meta["val"][position]
    return part
