"""FX nodes: their example values, the attributes that they read, the names of what they call; nodes that are added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from keyword import iskeyword
from typing import Any

import torch


def example_of(placeholder: torch.fx.Node) -> Any:
    """Returns the fake input that dynamo traced with: only there are sizes symbolic, the inputs it passes are real."""
    return placeholder.meta.get("example_value", placeholder.meta.get("val"))


def values_of_inputs(module: torch.fx.GraphModule) -> list[Any]:
    """Returns what AOTAutograd traced a graph with, for each of its inputs; None where that is not known."""
    return [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]


def nodes_of(module: torch.nn.Module) -> Iterator[torch.fx.Node]:
    """Yields the nodes of captured graphs, those of checkpoints and branches in them included."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def target_name(node: torch.fx.Node) -> str:
    """Returns the name of the method or function that a node calls, "" for a callable without one."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def is_in_place_name(name: str) -> bool:
    """Returns whether a name says that what has it writes to its first operand: ``add_``, but not ``operator.or_``.

    Python's own functions end so where the name without it is a keyword.
    """
    return name.endswith("_") and not name.endswith("__") and not iskeyword(name[:-1])


def is_object(node: torch.fx.Node) -> bool:
    """Returns whether a node makes an object of plain values (``InvokeQuant(codegen_low_precision=True)``)."""
    return node.op == "call_function" and isinstance(node.target, type) and not node.all_input_nodes


def made_object(node: torch.fx.Node) -> Any:
    """Returns the object that such a node makes."""
    assert isinstance(node.target, type), "only classes make objects in graphs"
    return node.target(*node.args, **node.kwargs)


_TRANSPOSES: dict[Any, str] = {
    each: attribute
    for packet, attribute in (("mT", "mT"), ("mH", "mH"), ("numpy_T", "T"), ("matrix_H", "H"))
    for each in (getattr(torch.ops.aten, packet), getattr(torch.ops.aten, packet).default)
}
"""The ops that dynamo writes from torch 2.14 on where a program reads an attribute, with its name."""


def attribute_read(node: torch.fx.Node) -> str | None:
    """Returns the name of the attribute that a node reads, ``x.mT``; None for a node that does something else.

    Up to torch 2.13 dynamo calls ``getattr`` for all attributes; from 2.14 on, for transposes, ops that have no public
    name.
    """
    if node.op != "call_function" or not node.args:
        return None
    if node.target is getattr:
        return str(node.args[1])
    return _TRANSPOSES.get(node.target)


def source_text(node: torch.fx.Node) -> str:
    """Returns the line of the user's program that a node comes from, "" where it is not known.

    Only the text of a stack trace has it.
    """
    lines = str(node.meta.get("stack_trace") or "").splitlines()
    positions = [position for position, line in enumerate(lines) if line.lstrip().startswith("File ")]
    return lines[positions[-1] + 1].strip() if positions and positions[-1] + 1 < len(lines) else ""


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns the arguments of a node with each leaf mapped; torch.fx exports the walk under a private name only."""
    from torch.fx.node import map_aggregate

    return map_aggregate(value, function)


def traced_graph() -> torch.fx.Graph | None:
    """Returns the graph that operations are being recorded in now, None where they are not.

    Only the mode that records knows, and torch gives it no public name.
    """
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    return None if mode is None else mode.tracer.graph


def add_call(function: Callable[..., Any], first: torch.fx.Node, *rest: Any) -> torch.fx.Node:
    """Adds a node that calls a function, with the fake tensor of what that gives; returns it."""
    values = [fake_at(each) if isinstance(each, torch.fx.Node) else each for each in (first, *rest)]
    return with_fake(first.graph.call_function(function, (first, *rest)), function(*values))


def add_method_call(first: torch.fx.Node, name: str, *rest: Any) -> torch.fx.Node:
    """Adds a node that calls a method, as `add_call` does a function."""
    values = [fake_at(each) if isinstance(each, torch.fx.Node) else each for each in rest]
    return with_fake(first.graph.call_method(name, (first, *rest)), getattr(fake_at(first), name)(*values))


def fake_at(node: torch.fx.Node) -> torch.Tensor:
    """Returns the fake tensor of a node that is known to compute one."""
    fake = fake_of(node)
    assert fake is not None, "judged before"
    return fake


def with_fake(node: torch.fx.Node, fake: torch.Tensor) -> torch.fx.Node:
    """Notes what a node that was added computes; returns the node."""
    node.meta["example_value"] = fake
    return node


def argument_of(node: torch.fx.Node, position: int, name: str, default: Any) -> Any:
    """Returns an argument of a node."""
    return node.args[position] if position < len(node.args) else node.kwargs.get(name, default)


def fake_of(node: Any) -> torch.Tensor | None:
    """Returns the fake tensor that a node of dynamo's computes, None where it computes no tensor."""
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def whole_op(node: torch.fx.Node) -> str:
    """Returns the name of the op that a node is a piece of, where a decomposition made it; else an empty one.

    By name: graphs may be copies, with other objects for the same ops.
    """
    name = str(node.meta.get("original_aten") or node.target)
    return "" if name == str(node.target) else name


def module_of(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Returns a module of a graph, with what it reads of another module; Python's code is made of it if it is called.

    Compilers read graphs and never call them; the class that waits with the code is torch's own and has no public home.
    """
    try:
        from torch.fx._lazy_graph_module import _LazyGraphModule
    except ImportError:
        return torch.fx.GraphModule(root, graph)
    return _LazyGraphModule(root, graph)
