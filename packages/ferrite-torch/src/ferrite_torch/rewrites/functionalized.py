"""Ops that a higher-order op wraps, which says how they are called: unwrapped again.

AOTAutograd wraps custom ops that write their operands in ``auto_functionalized``: "as if on copies". Unwrapped, the
graph copies the operands that are written, calls the op on the copies and reads them afterwards. ``out_dtype`` asks for
a wider result than the op has: its operands are widened. These are ordinary nodes, each lowered as what it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from typing import Any

import torch

from ferrite_torch.torch_private.operators import unwrapped_function
from ferrite_torch.torch_private.tracing import trace_on_fakes


def unwrap_functionalized(module: torch.fx.GraphModule) -> None:
    """Replaces each call of ``auto_functionalized`` (either version) and ``out_dtype`` by the op itself, and copies.

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
    made = {copies[inner] for inner in traced.graph.nodes if inner.op == "call_function"}
    replace_results(graph, node, torch.fx.node.map_arg(returned, copies.__getitem__), made)


def replace_results(graph: torch.fx.Graph, node: torch.fx.Node, results: Any, made: Container[Any]) -> None:
    """Has what reads a node read these values, which are nested as its results are; the node is erased.

    Those in ``made`` stand in its place, and take over what it was known to be.
    """
    for reader in list(node.users) if isinstance(results, (tuple, list)) else ():
        if reader.target is not operator.getitem:
            raise TypeError(f"{node.name} is read as a whole by {reader.name}")
        position: Any = reader.args[1]
        replace_results(graph, reader, results[position], made)
    if isinstance(results, torch.fx.Node) and results in made:
        # Views of the old result were traced over its fake, whose storage tells what shares storage with what.
        results.meta["val"] = node.meta.get("val", results.meta.get("val"))
    if node.users:
        node.replace_all_uses_with(results)
    graph.erase_node(node)
