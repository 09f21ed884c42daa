"""Lambda lifting: tensors that the functions of control flow hold become operands of the call.

`torch.tensor([…])` in a branch, or an index that is a list, is a constant of the branch. Of a graph with its inputs
alone no kernel can be made before such a tensor has come in from outside, as those do that a graph itself holds:

    cond(p, f, g, (x,))      f(x): mul(x, self.c)      →      c = self.held_0
                             g(x): neg(x)                     cond(p, f, g, (x, c))     f(x, c): mul(x, c)
                                                                                        g(x, c): neg(x)

One number stays where it is: it is made anew by the kernel that reads it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import fake_of, is_fake, mode_of


def lift_held_tensors(module: torch.fx.GraphModule) -> None:
    """Makes operands of the tensors that functions of control flow hold, those of nested functions included.

    The graph computes the same afterwards, op by op as well.
    """
    lifted: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for node in list(module.graph.nodes):
        with_operands = _WITH_OPERANDS.get(str(node.target)) if node.op == "call_function" else None
        functions = [value for value in node.args if _is_function(module, value)] if with_operands else []
        if with_operands is None or not functions:
            continue
        targets = tuple(str(function.target) for function in functions)
        if targets not in lifted:
            lifted[targets] = _lifted(module, targets)
        names, tensors = lifted[targets]
        if tensors:
            _call_with(module, node, dict(zip(functions, names, strict=True)), tensors, with_operands)


def hold(module: torch.fx.GraphModule, value: Any) -> str:
    """Returns the name under which a module holds a tensor, a function or a plain object from now on."""
    name = next(name for name in (f"held_{number}" for number in count()) if not hasattr(module, name))
    if isinstance(value, torch.Tensor):
        module.register_buffer(name, value, persistent=False)
    else:
        setattr(module, name, value)
    return name


def _lifted(module: torch.fx.GraphModule, targets: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Returns the names under which functions and the tensors that they held are now held by their caller."""
    functions = [operator.attrgetter(target)(module) for target in targets]
    for function in functions:
        lift_held_tensors(function)
    held = [_held_tensors(function) for function in functions]
    if not any(held):
        return list(targets), []
    parameters = [(position, path) for position, paths in enumerate(held) for path in paths]
    tensors = [held[position][path] for position, path in parameters]
    names = []
    for position, function in enumerate(functions):
        own = [path if holder == position else None for holder, path in parameters]
        names.append(hold(module, _with_parameters(function, own, tensors)))
    return names, [hold(module, tensor) for tensor in tensors]


def _is_function(module: torch.fx.GraphModule, value: Any) -> bool:
    is_attribute = isinstance(value, torch.fx.Node) and value.op == "get_attr"
    return is_attribute and isinstance(operator.attrgetter(str(value.target))(module), torch.fx.GraphModule)


def _held_tensors(function: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """Returns the tensors that a function reads from its module, by path: all but single numbers of the CPU."""
    found = {str(node.target): node for node in function.graph.find_nodes(op="get_attr")}
    values = {path: operator.attrgetter(path)(function) for path in found}
    return {
        path: value
        for path, value in values.items()
        if isinstance(value, torch.Tensor) and not is_fake(value) and (value.numel() != 1 or value.device.type != "cpu")
    }


def _with_parameters(
    function: torch.fx.GraphModule, own: list[str | None], tensors: list[torch.Tensor]
) -> torch.fx.GraphModule:
    """Returns a copy of a function that is given tensors behind its other operands; it held those that have a path."""
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    output = graph.output(graph.graph_copy(function.graph, copies))
    output.meta = dict(function.graph.output_node().meta)
    first = next((node for node in graph.nodes if node.op != "placeholder"), output)
    by_path: dict[str, list[torch.fx.Node]] = {}
    for node in graph.find_nodes(op="get_attr"):
        by_path.setdefault(str(node.target), []).append(node)
    known = len(graph.find_nodes(op="placeholder"))
    with mode_of(function.graph) as mode:
        for number, (path, tensor) in enumerate(zip(own, tensors, strict=True), known):
            with graph.inserting_before(first):
                parameter = graph.placeholder(f"held_{number}")
            parameter.meta["val"] = fake_of(tensor, mode)
            for node in by_path.get(path, []) if path else []:
                node.replace_all_uses_with(parameter)
                graph.erase_node(node)
    return torch.fx.GraphModule(function, graph)


def _call_with(
    module: torch.fx.GraphModule,
    node: torch.fx.Node,
    names: Mapping[torch.fx.Node, str],
    tensors: list[str],
    with_operands: Callable[..., tuple[Any, ...]],
) -> None:
    """Has a node call functions under other names, with tensors that the graph holds behind its other operands."""
    with module.graph.inserting_before(node), mode_of(module.graph) as mode:
        held = []
        for name in tensors:
            held.append(module.graph.get_attr(name))
            held[-1].meta["val"] = fake_of(getattr(module, name), mode)
        functions = {function: module.graph.get_attr(name) for function, name in names.items()}
    args = tuple(functions.get(value, value) if isinstance(value, torch.fx.Node) else value for value in node.args)
    node.args = with_operands(args, held)
    for function in names:
        if not function.users:
            module.graph.erase_node(function)


def _in_last(args: tuple[Any, ...], more: list[torch.fx.Node]) -> tuple[Any, ...]:
    return (*args[:-1], (*args[-1], *more))


_WITH_OPERANDS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "cond": _in_last,
    "while_loop": _in_last,
    "while_loop_stack_output": _in_last,
    "scan": _in_last,
    "map_impl": _in_last,
    "invoke_subgraph": lambda args, more: (*args, *more),
}
"""How tensors join the operands of an op that are the same for all of its functions; by name of the op."""
