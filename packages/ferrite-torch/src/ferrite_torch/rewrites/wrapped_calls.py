"""Higher-order ops that only wrap what they call: what they call takes their place.

`strict_mode`, `hints_wrapper`, `invoke_quant` and `local_map` say something about a function (to who reads the graph,
or to a compiler that has other precisions) and compute what it computes. In its caller it fuses with what is around it:

    x_1 = mul(x, 2)                                 x_1 = mul(x, 2)
    hints = hints_wrapper(f, (x_1,), {}, hints=…)    →    sin = sin(x_1)
    y = relu(hints[0])                              y = relu(sin)

`auto_functionalized` and `out_dtype` wrap an op; `functionalized` has these. Tensors that functions hold are lifted out
of them (`functions.held_tensors`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ferrite_torch.rewrites.functionalized import replace_results, unwrap_functionalized
from ferrite_torch.rewrites.functions.held_tensors import lift_held_tensors
from ferrite_torch.torch_private.nodes import is_object


def unwrap_calls(module: torch.fx.GraphModule) -> None:
    """Replaces each call that is wrapped, in a graph but not in the functions that it names, by what it calls.

    The graph computes the same afterwards, op by op as well.
    """
    pending = list(module.graph.nodes)
    while pending:
        node = pending.pop()
        operands = _OPERANDS.get(str(node.target)) if node.op == "call_function" else None
        if operands is not None:
            pending += _inline(module, node, operands)
    unwrap_functionalized(module)
    lift_held_tensors(module)


def _all_but_the_first(args: Sequence[Any]) -> Sequence[Any]:
    return args[1:]


def _listed(args: Sequence[Any]) -> Sequence[Any]:
    """Returns the operands of a function that is given them as one tuple, and nothing by name."""
    _, listed, *named = args
    assert not any(named), "torch passes nothing by name"
    return list(listed)


_OPERANDS: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    "strict_mode": _listed,
    "hints_wrapper": _listed,
    "invoke_quant": _all_but_the_first,
    "invoke_quant_packed": _all_but_the_first,
    "local_map_hop": _all_but_the_first,
}
"""How the operands of a function stand among the arguments of the op, behind the function; by name of the op."""


def _inline(
    module: torch.fx.GraphModule, node: torch.fx.Node, operands_in: Callable[..., Sequence[Any]]
) -> list[torch.fx.Node]:
    """Puts the nodes of the function that an op calls in the place of the op; returns them."""
    path = str(getattr(node.args[0], "target", ""))
    function, operands = operator.attrgetter(path)(module), operands_in(node.args)
    parameters = function.graph.find_nodes(op="placeholder")
    copies: dict[torch.fx.Node, Any] = dict(zip(parameters, operands, strict=True))
    made: list[torch.fx.Node] = []
    with module.graph.inserting_before(node):
        for inner in function.graph.nodes:
            if inner.op in ("placeholder", "output"):
                continue
            copies[inner] = module.graph.node_copy(inner, copies.__getitem__)
            made.append(copies[inner])
            if inner.op == "get_attr":
                copies[inner].target = f"{path}.{inner.target}"
    returned = torch.fx.node.map_arg(function.graph.output_node().args[0], copies.__getitem__)
    before = node.all_input_nodes
    replace_results(module.graph, node, returned, made)
    for operand in before:
        if is_object(operand) and not operand.users:
            module.graph.erase_node(operand)
    return made
