"""Results that are views of inputs as a type of another size, through symbolic sizes: made after the compiled graph.

    return x * 2, x.view(torch.uint8).unflatten(0, (-1, 2))

A result that is a view of an input is made anew from that input in each call: by the views that led to it or, where
their sizes are symbols, by one ``as_strided``, which counts in elements of the input's type. Here such a result is
taken out of the graph, and the views that led to it, with the sizes that they name, become a graph of their own. That
runs on the inputs of each call as eager mode runs it: views launch nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_torch.diagnostics.origins import unsupported
from ferrite_torch.rewrites.aliased_writes import changes_metadata, destinations, strided_fake, views_on_the_way
from ferrite_torch.torch_private.fake_tensors import storage_key
from ferrite_torch.torch_private.nodes import example_of, nodes_of, target_name
from ferrite_torch.torch_private.operators import Overload
from ferrite_torch.torch_private.symbolic_shapes import present_value

_REPLAYED_NAMES = (
    "transpose t mT swapaxes swapdims permute movedim moveaxis select getitem squeeze unsqueeze detach alias"
)
_REPLAYED = frozenset(_REPLAYED_NAMES.split())
"""Views without sizes among their arguments."""

_PLACES_CHANGE = frozenset(("set_", "resize_", "resize_as_"))
"""Ops after which an input is not where it was; `changes_metadata` tells those that only lay it out anew."""

_HOMES = ("torch", "_operator", "math", "builtins")
"""Modules of functions that do nothing but what they return: calling them once more is the same."""


@dataclass(frozen=True, slots=True)
class ViewResults:
    """Results that were taken out of a captured graph.

    Attributes:
        positions: where they stand among the results of the program, ascending.
        make: returns them, of the graph's inputs.
    """

    positions: tuple[int, ...]
    make: Callable[..., Sequence[torch.Tensor]]

    def added_to(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that gives what the graph compiled without these results does, and these among it."""

        def call(*inputs: Any) -> tuple[Any, ...]:
            results = list(compiled(*inputs))
            for position, view in zip(self.positions, self.make(*inputs), strict=True):
                results.insert(position, view)
            return tuple(results)

        return call


def take_view_results(module: torch.fx.GraphModule, *, takes_inputs: bool) -> ViewResults | None:
    """Takes the results out of a captured graph that AOTAutograd cannot make; None where there are none.

    Args:
        module: the graph, which is changed.
        takes_inputs: whether what is compiled is called with the graph's own inputs, one by one.

    Raises:
        Unsupported: such a result depends on more than views and sizes of inputs; the message names op and line.
    """
    output = module.graph.output_node()
    fakes = map(strided_fake, module.graph.find_nodes(op="placeholder"))
    inputs = {storage_key(fake): fake for fake in fakes if fake is not None}
    lost = {node: whole for node in output.all_input_nodes if (whole := _lost_from(node, inputs)) is not None}
    if not lost:
        return None
    needed: set[torch.fx.Node] = set()
    for node, whole in lost.items():
        is_made = takes_inputs and _keeps_places(module, whole) and _is_made_of_inputs(node, inputs, needed)
        if not is_made:
            raise unsupported(
                node,
                f"a result that is a view of an input of {whole.dtype} as {example_of(node).dtype}, through sizes that "
                "differ between calls: torch makes it with elements of the wrong size",
                "return a clone() of it, or compile with dynamic=False",
            )
    returned: Sequence[Any] = output.args[0]  # type: ignore[assignment]  # dynamo returns a tuple
    positions = tuple(position for position, node in enumerate(returned) if node in lost)
    make = _graph_of(module, needed, [returned[position] for position in positions])
    output.args = (tuple(node for node in returned if node not in lost),)
    for node in reversed(module.graph.nodes):
        if node in needed and not node.users and node.op != "placeholder":
            module.graph.erase_node(node)
    module.recompile()
    return ViewResults(positions, make)


def _lost_from(result: torch.fx.Node, inputs: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """Returns the input, by its storage, of which a result is a view of another size, not made again view by view."""
    fake = strided_fake(result)
    whole = None if fake is None else inputs.get(storage_key(fake))
    if fake is None or whole is None or whole.element_size() == fake.element_size():
        return None
    return None if all(map(_is_replayed, views_on_the_way(result))) else whole


def _is_replayed(view: torch.fx.Node) -> bool:
    """Returns whether a view has no symbols among its arguments."""
    made = example_of(view)
    tensors = made if isinstance(made, (tuple, list)) else (made,)
    if all(isinstance(each, torch.Tensor) and _is_static(each) for each in tensors):
        return True
    if len(view.all_input_nodes) > 1:
        return False
    is_of_type = target_name(view) == "view" and len(view.args) == 2 and isinstance(view.args[1], torch.dtype)
    return is_of_type or target_name(view).partition(".")[0] in _REPLAYED


def _is_static(fake: torch.Tensor) -> bool:
    return all(type(number) is int for number in (*fake.shape, *fake.stride(), fake.storage_offset()))


def _keeps_places(module: torch.fx.GraphModule, whole: torch.Tensor) -> bool:
    """Returns whether views of an input are, after the graph has run, what they are where the program makes them."""
    if any(_changes_places(node) for node in nodes_of(module)):
        return False
    # A view made without gradients has none, whatever the input has.
    return not (whole.requires_grad and any(target_name(node) == "_set_grad_enabled" for node in nodes_of(module)))


def _is_made_of_inputs(result: torch.fx.Node, inputs: Mapping[int, torch.Tensor], needed: set[torch.fx.Node]) -> bool:
    """Returns whether a result is made by views, and sizes, of inputs; adds what makes it to ``needed``."""
    stack = [result]
    while stack:
        node = stack.pop()
        if node in needed:
            continue
        if node.op != "placeholder" and not _is_view_or_size(node, inputs):
            return False
        needed.add(node)
        stack.extend(node.all_input_nodes)
    return True


def _changes_places(node: torch.fx.Node) -> bool:
    return changes_metadata(node) or target_name(node).partition(".")[0] in _PLACES_CHANGE


def _is_view_or_size(node: torch.fx.Node, inputs: Mapping[int, torch.Tensor]) -> bool:
    if node.op not in ("call_function", "call_method") or next(destinations(node), None) is not None:
        return False
    if isinstance(node.target, Overload):
        if node.target.namespace not in ("aten", "prims", "prim"):
            return False
    elif callable(node.target) and (getattr(node.target, "__module__", None) or "").partition(".")[0] not in _HOMES:
        return False
    return _lies_in(example_of(node), inputs)


def _lies_in(value: Any, inputs: Mapping[int, torch.Tensor]) -> bool:
    """Returns whether all tensors of a value lie in inputs, and all of its numbers are known when a call begins."""
    if isinstance(value, (tuple, list)):
        return all(_lies_in(each, inputs) for each in value)
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and storage_key(value) in inputs
    return type(value) is int or (isinstance(value, torch.SymInt) and present_value(value) is not None)


def _graph_of(
    module: torch.fx.GraphModule, needed: set[torch.fx.Node], results: Sequence[torch.fx.Node]
) -> Callable[..., Any]:
    """Returns a function of a captured graph's inputs that computes some of its nodes."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    made: Callable[..., Any] = torch.fx.GraphModule(module, graph, "ViewResults").forward
    return made
