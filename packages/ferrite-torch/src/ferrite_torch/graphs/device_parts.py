"""Graphs on several GPUs: what each computes between copies is a graph of its own, which is compiled for it.

    a = mm(x, w)               cuda:0   part 0: a, b
    b = relu(a)                cuda:0
    c = _to_copy(b, cuda:1)             a call of torch's, which waits for the streams of both
    d = mm(c, v)               cuda:1   part 1: d

A part has a *level*: one more than that of what it waits for on another device. So no two parts wait for each other,
and what a device computes of nothing but its own values is one graph. A draw of random numbers waits for those of the
same device before it, as in eager mode. Between parts stand calls of torch's: copies, and ops that have tensors of
several devices; those that write to their operands come last, as AOTAutograd puts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from ferrite_torch.calls.compiled_graph import CompiledGraph
from ferrite_torch.devices.placement import tensors_of
from ferrite_torch.errors import Unsupported
from ferrite_torch.rewrites.aliased_writes import destinations
from ferrite_torch.torch_private.fake_tensors import storage_key
from ferrite_torch.torch_private.operators import Overload, schema_of
from ferrite_torch.torch_private.seeded_ops import is_random
from ferrite_torch.torch_private.symbolic_shapes import is_symbolic

CompilePart = Callable[[GraphModule, Sequence[Any]], CompiledGraph]
"""``compile_part(graph, fakes)`` returns a graph compiled that takes a list of what these fakes stand for."""


class Place(NamedTuple):
    """Where a part is: its device, and its level."""

    device: str
    level: int


_MOVES = frozenset(("_to_copy", "copy_", "clone", "copy"))
"""Ops that compute nothing, but move what another op has."""


def compile_parts(
    module: GraphModule, compile_part: CompilePart, tell: Callable[[Node], None] = lambda _: None
) -> GraphModule:
    """Returns a graph that computes the same, in which what a device computes is calls of compiled graphs.

    Args:
        module: the graph.
        compile_part: compiles what one device computes.
        tell: is told of each op that computes something, and is called by torch between parts: on the CPU, or of
            tensors on several devices.

    Raises:
        Unsupported: sizes are symbolic, or something is neither computed by one device nor a plain op.
    """
    nodes = list(module.graph.nodes)
    if is_symbolic(node.meta.get("val") for node in nodes):
        raise Unsupported("a graph of symbolic sizes on several devices, which needs torch.compile(…, dynamic=False)")
    places, levels = _placed(nodes)
    parts: dict[Place, list[Node]] = {}
    for node, place in places.items():
        parts.setdefault(place, []).append(node)
    graph, made = Graph(), dict[Node, Node]()
    for node in nodes:
        if node.op in ("placeholder", "get_attr"):
            made[node] = graph.node_copy(node, made.__getitem__)
    rest = [node for node in levels if node not in places]
    writing = list(_writing(nodes))
    for node in rest:
        if isinstance(node.target, Overload) and str(node.target).split(".")[1] not in _MOVES:
            tell(node)
    for level in sorted({*levels.values()}):
        for number, (place, members) in enumerate(parts.items()):
            if place.level == level:
                _call_part(module, graph, made, (f"part_{number}", members), compile_part)
        for node in rest:
            if levels[node] == level and node not in writing:
                made[node] = graph.node_copy(node, made.__getitem__)
    for node in (*writing, module.graph.output_node()):
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.lint()
    return GraphModule(module, graph)


def place_of(node: Node) -> str | None:
    """Returns the accelerator that computes a node from its own tensors and numbers of the CPU; None for others."""
    if not isinstance(node.target, Overload) or schema_of(node.target).is_mutable:
        return None
    made = {str(fake.device) for fake in tensors_of(node)}
    given = {fake for each in node.all_input_nodes for fake in tensors_of(each)}
    others = {str(fake.device) for fake in given if fake.ndim or fake.device.type != "cpu"} - made
    return made.pop() if len(made) == 1 and not others and made != {"cpu"} else None


def _placed(nodes: Iterable[Node]) -> tuple[dict[Node, Place], dict[Node, int]]:
    """Returns the places of what devices compute, and the levels of all that is called.

    Raises:
        Unsupported: a node is no plain op.
    """
    places: dict[Node, Place] = {}
    levels: dict[Node, int] = {}
    drawn: dict[str | None, Node] = {}
    for node in nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        (*_, first) = (None, *node.all_input_nodes[:1])
        if _takes_one_result(node) and first is not None:
            levels[node] = levels.get(first, 0)
            if first in places:
                places[node] = places[first]
            continue
        if node.op != "call_function" or not isinstance(node.target, Overload):
            raise Unsupported(f"a graph on several devices with {node.target}, which calls other graphs or functions")
        device, before = place_of(node), node.all_input_nodes
        if is_random(node.target):
            before += [drawn[device]] if device in drawn else []
            drawn[device] = node
        levels[node] = max((_level_for(device, each, places, levels) for each in before), default=0)
        if device is not None:
            places[node] = Place(device, levels[node])
    return places, levels


def _level_for(device: str | None, operand: Node, places: dict[Node, Place], levels: dict[Node, int]) -> int:
    """Returns the least level of what a device, or torch, computes of an operand."""
    if operand not in levels:
        return 0
    is_own = operand in places and places[operand].device == device
    return levels[operand] + (device is not None and not is_own)


def _writing(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yields the ops that write to their operands.

    Raises:
        Unsupported: something else reads, behind one of them, what lies in the memory of an operand.
    """
    written: dict[Any, Node] = {}
    for node in nodes:
        if isinstance(node.target, Overload) and schema_of(node.target).is_mutable:
            written |= {storage_key(fake): node for each in destinations(node) for fake in tensors_of(each)}
            yield node
        elif node.op == "call_function":
            read = (storage_key(fake) for each in node.all_input_nodes for fake in tensors_of(each))
            before = next((written[each] for each in read if each in written), None)
            if before is not None:
                raise Unsupported(f"a graph on several devices in which {node.target} comes behind {before.target}")


def _takes_one_result(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _call_part(
    module: GraphModule, graph: Graph, made: dict[Node, Node], part: tuple[str, list[Node]], compile_part: CompilePart
) -> None:
    """Writes the call of a part, and what others take of its results."""
    name, members = part
    inside = set(members)
    given = list(dict.fromkeys(each for node in members for each in node.all_input_nodes if each not in inside))
    results = [node for node in members if any(user not in inside for user in node.users)]
    results = [node for node in results if isinstance(node.meta.get("val"), torch.Tensor)]
    if not any(fake.ndim for node in given for fake in tensors_of(node)):  # nothing says to a program where it runs
        for node in members:
            made[node] = graph.node_copy(node, made.__getitem__)
        return
    compiled = compile_part(_alone(module, members, given, results), [node.meta["val"] for node in given])
    module.add_module(name, _Part(compiled))
    call = graph.call_module(name, tuple(made[node] for node in given))
    for position, node in enumerate(results):
        made[node] = graph.call_function(_item, (call, position))
        made[node].meta = dict(node.meta)


def _alone(module: GraphModule, members: Sequence[Node], given: Sequence[Node], results: Sequence[Node]) -> GraphModule:
    """Returns a part as a graph of its own."""
    graph, made = Graph(), dict[Node, Node]()
    for node in given:
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
    for node in members:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[node] for node in results))
    return GraphModule(module, graph)


def _item(results: Sequence[Any], position: int) -> Any:
    return results[position]


class _Part(torch.nn.Module):
    """A compiled graph as a module that takes its arguments one by one."""

    def __init__(self, compiled: CompiledGraph) -> None:
        super().__init__()
        self.compiled = compiled

    def forward(self, *arguments: Any) -> Any:
        return self.compiled(list(arguments))
