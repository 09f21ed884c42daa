"""Custom ops that write their operands, which AOTAutograd wraps in ``auto_functionalized``: unwrapped again.

The wrapper says "as if on copies". Unwrapped, the graph copies the operands that are written, calls the op on the
copies and reads them afterwards: ordinary nodes, each lowered as what it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ferrite_torch.torch_private.operators import unwrapped_function
from ferrite_torch.torch_private.tracing import trace_on_fakes


def unwrap_functionalized(module: torch.fx.GraphModule) -> None:
    """Replaces each call of ``auto_functionalized`` (either version) in a graph by copies and the op itself.

    The graph computes the same afterwards, op by op as well.
    """
    for node in list(module.graph.nodes):
        dense = unwrapped_function(node)
        if dense is not None:
            _unwrap(module.graph, node, dense)


def _unwrap(graph: torch.fx.Graph, node: torch.fx.Node, dense: Callable[..., Any]) -> None:
    operands = [value for value in node.all_input_nodes if value.meta.get("val") is not None]
    fakes = [value.meta["val"] for value in operands]

    def call(*values: Any) -> Any:
        found = dict(zip(operands, values, strict=True))
        return dense(*torch.fx.node.map_arg(node.args, found.get), **torch.fx.node.map_arg(node.kwargs, found.get))

    traced = trace_on_fakes(call, fakes)
    placeholders = traced.graph.find_nodes(op="placeholder")
    copies = dict(zip(placeholders, operands, strict=True))
    with graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "get_attr":
                raise TypeError(f"{node.args[0]} holds a constant")
            if inner.op == "call_function":
                copies[inner] = graph.node_copy(inner, copies.__getitem__)
                copies[inner].meta = {**node.meta, "val": inner.meta.get("val")}
    returned: Any = traced.graph.output_node().args[0]
    _replace_results(graph, node, [copies[item] if isinstance(item, torch.fx.Node) else item for item in returned])


def _replace_results(graph: torch.fx.Graph, node: torch.fx.Node, results: list[Any]) -> None:
    for reader in list(node.users):
        if reader.target is not operator.getitem:
            raise TypeError(f"{node.name} is read as a whole by {reader.name}")
        position: Any = reader.args[1]
        new = results[position]
        if isinstance(new, torch.fx.Node):
            # Views of the old result were traced over its fake, whose storage tells what shares storage with what.
            new.meta["val"] = reader.meta.get("val", new.meta.get("val"))
        reader.replace_all_uses_with(new)
        graph.erase_node(reader)
    graph.erase_node(node)
