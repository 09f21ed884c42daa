"""Calls of higher-order ops (`cond`, a user's Triton kernel, …) that run as they are, each as one step of its program.

Such an op takes functions: graphs that the module holds, other ops, kernels in a table of torch's. A program is data
and has none of these, so its step calls a *place in the captured graph* with the tensors and numbers that the node
takes, one after the other, and gets the tensors that it returns, in one flat tuple:

    cond(pred, true_graph_0, false_graph_0, (x, s0))        the node, 7th of its graph
    extern captured.cond.7(pred, x, size(s0))               the step

What is called is put there where the program is loaded beside its graph (`captured_calls`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ferrite_torch.torch_private.nodes import is_object

USER_KERNELS = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
"""Launches of a user's Triton kernel: as if on copies of what it writes, and in place."""
CONTROL_FLOW = ("cond", "while_loop", "while_loop_stack_output", "scan", "map_impl", "invoke_subgraph")
"""Ops whose functions are compiled with the graph, where they have a form (`graphs.control_flow`)."""
_EFFECTS = "with_effects"


@dataclass(frozen=True, slots=True)
class HigherOrderCall:
    """What a node calls.

    Attributes:
        op: the higher-order op, or the operator that one with effects calls.
        name: its name.
        args, kwargs: its arguments, as nodes.
        fakes: its fake results.
        has_token: whether the call stands inside of ``with_effects(token, op, …)``, which returns a token first.
    """

    op: Any
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    fakes: Any
    has_token: bool = False

    @property
    def is_user_kernel(self) -> bool:
        """Returns whether this launches a user's Triton kernel."""
        return self.name in USER_KERNELS


def call_of_node(node: torch.fx.Node) -> HigherOrderCall:
    """Returns what a node of a higher-order op calls."""
    fakes = node.meta["val"]
    if str(node.target) != _EFFECTS:
        return HigherOrderCall(node.target, str(node.target), node.args, node.kwargs, fakes)
    op = node.args[1]
    return HigherOrderCall(op, str(op), node.args[2:], node.kwargs, tuple(fakes[1:]), has_token=True)


def operands_of(call: HigherOrderCall) -> list[torch.fx.Node]:
    """Returns the nodes whose tensors and numbers a call takes, in order: all but functions and other objects."""
    nodes = dict.fromkeys(leaf for leaf in leaves_of((call.args, call.kwargs)) if isinstance(leaf, torch.fx.Node))
    return [node for node in nodes if not is_object(node) and (node.op != "get_attr" or _is_tensor(node))]


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def leaves_of(value: Any) -> Iterator[Any]:
    """Yields what is nested in tuples, lists, slices and dictionaries, in order."""
    match value:
        case Mapping():
            for item in value.values():
                yield from leaves_of(item)
        case slice():
            yield from leaves_of((value.start, value.stop, value.step))
        case tuple() | list():
            for item in value:
                yield from leaves_of(item)
        case _:
            yield value


def nested_like(value: Any, leaves: Iterator[Any]) -> Any:
    """Returns leaves nested as those of a value are; lists become tuples."""
    match value:
        case Mapping():
            return {key: nested_like(item, leaves) for key, item in value.items()}
        case tuple() | list():
            return tuple(nested_like(item, leaves) for item in value)
    return next(leaves)


def is_returned(fake: Any) -> bool:
    """Returns whether a step has a result for one of an op's: a tensor, or a data-dependent integer (as one)."""
    return isinstance(fake, (torch.Tensor, torch.SymInt))
