"""Ops that a higher-order op wraps, which says how they are called: unwrapped again.

AOTAutograd wraps custom ops that write their operands in ``auto_functionalized``: "as if on copies". Unwrapped, the
graph copies the operands that are written, calls the op on the copies and reads them afterwards. A region that writes
to its operands is called so, too: its ops take the place of the call. ``out_dtype`` asks for a wider result than the op
has: its operands are widened. These are ordinary nodes, each lowered as what it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from ferrite_torch.rewrites.functions.held_tensors import hold
from ferrite_torch.torch_private.operators import inlined, unwrapped_function
from ferrite_torch.torch_private.tracing import trace_on_fakes


def unwrap_functionalized(module: torch.fx.GraphModule) -> None:
    """Replaces each call of ``auto_functionalized`` (either version) and ``out_dtype`` by the op itself, and copies.

    The graph computes the same afterwards, op by op as well.
    """
    pending = list(module.graph.nodes)
    while pending:
        node = pending.pop()
        dense = unwrapped_function(node)
        if dense is not None:
            pending += _unwrap(module, node, dense)


def _unwrap(module: torch.fx.GraphModule, node: torch.fx.Node, dense: Callable[..., Any]) -> list[torch.fx.Node]:
    """Puts what a call of a wrapped op means in the place of the call; returns the nodes of that."""
    graph = module.graph
    operands = [value for value in node.all_input_nodes if value.meta.get("val") is not None]
    fakes = [value.meta["val"] for value in operands]
    held = {value: operator.attrgetter(str(value.target))(module) for value in node.all_input_nodes if _is_held(value)}

    def call(*values: Any) -> Any:
        found = held | dict(zip(operands, values, strict=True))
        op, *args = torch.fx.node.map_arg(node.args, found.get)
        return dense(inlined(op), *args, **torch.fx.node.map_arg(node.kwargs, found.get))

    traced = _without_writes(call, fakes) if held else trace_on_fakes(call, fakes)
    placeholders = traced.graph.find_nodes(op="placeholder")
    copies = dict(zip(placeholders, operands, strict=True))
    with graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op in ("get_attr", "call_function"):
                copies[inner] = graph.node_copy(inner, copies.__getitem__)
                copies[inner].meta = {**node.meta, "val": inner.meta.get("val")}
            if inner.op == "get_attr":
                copies[inner].target = hold(module, operator.attrgetter(str(inner.target))(traced))
    returned: Any = traced.graph.output_node().args[0]
    made = [copies[inner] for inner in traced.graph.nodes if inner.op == "call_function"]
    replace_results(graph, node, torch.fx.node.map_arg(returned, copies.__getitem__), made)
    return made


def _without_writes(call: Callable[..., Any], fakes: Sequence[Any]) -> torch.fx.GraphModule:
    """Returns what a region means: its function ends with writes to its parameters, which become values.

    Where torch has no such form for a write (to a view of a view that `as_strided` made), or for a region in a region,
    it stays: an op that writes.
    """
    try:
        return trace_on_fakes(torch.func.functionalize(call), fakes)
    except (RuntimeError, AttributeError):  # the latter where `functionalize` does not know the op that calls a region
        return trace_on_fakes(call, fakes)


def _is_held(node: torch.fx.Node) -> bool:
    return node.op == "get_attr" and node.meta.get("val") is None


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
