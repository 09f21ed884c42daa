"""What the captured steps of a program call: functions of flat tensors and numbers, made from the graph at hand."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ferrite_torch.calls.higher_order import (
    HigherOrderCall,
    call_of_node,
    is_returned,
    leaves_of,
    operands_of,
)
from ferrite_torch.diagnostics.announcements import announce
from ferrite_torch.diagnostics.origins import origins_of
from ferrite_torch.torch_private import user_kernels
from ferrite_torch.torch_private.nodes import is_object, made_object

FlatCall = Callable[..., tuple[Any, ...]]


def bind_captured(module: torch.fx.GraphModule, positions: Iterable[tuple[str, int, str]]) -> dict[str, FlatCall]:
    """Returns what the captured steps of a program call, by their targets, and says once what runs so.

    Args:
        module: the graph that the program was compiled from, or one with the same key.
        positions: the target of each step, the position of its node in the graph, and why it is a step of its own.
    """
    nodes = list(module.graph.nodes)
    return {target: _bound(module, nodes[position], reason) for target, position, reason in positions}


def _bound(module: torch.fx.GraphModule, node: torch.fx.Node, reason: str) -> FlatCall:
    call = call_of_node(node)
    announce(f"{origins_of(node)[0].description}: {what_runs(call)}{f': {reason}' if reason else ''}", REMEDY)
    attributes = {
        held: operator.attrgetter(str(held.target))(module) for held in node.all_input_nodes if held.op == "get_attr"
    }
    attributes |= {held: made_object(held) for held in node.all_input_nodes if is_object(held)}
    return _launch_of(call, attributes) if call.is_user_kernel else _flat(call, attributes)


REMEDY = "nothing, unless its time matters; the rest of the graph is compiled"


def what_runs(call: HigherOrderCall) -> str:
    """Returns the sentence that says of a call that it is a step of its own."""
    if call.is_user_kernel:
        return "a Triton kernel of the program's own runs as it is, as a step between compiled kernels"
    return f"the higher-order op {call.name} has no lowering and runs as torch runs it, as a step between kernels"


def _flat(call: HigherOrderCall, attributes: Mapping[torch.fx.Node, Any]) -> FlatCall:
    operands = operands_of(call)
    fakes = list(leaves_of(call.fakes))
    returned = [is_returned(fake) for fake in fakes]
    truths = [isinstance(node.meta.get("val"), torch.SymBool) for node in operands]

    def run(*values: Any) -> tuple[Any, ...]:
        given = [bool(value) if truth else value for value, truth in zip(values, truths, strict=True)]
        found = {**attributes, **dict(zip(operands, given, strict=True))}
        args = torch.fx.node.map_arg(tuple(call.args), found.__getitem__)
        kwargs = torch.fx.node.map_arg(dict(call.kwargs), found.__getitem__)
        result = call.op(*args, **kwargs)
        if call.has_token and not isinstance(result, tuple):
            result = (result,)
        leaves = [
            _absent(fake) if leaf is None else _as_declared(leaf, fake)
            for leaf, fake, wanted in zip(leaves_of(result), fakes, returned, strict=True)
            if wanted
        ]
        return tuple(_apart(leaves, values))

    return run


def _absent(fake: Any) -> torch.Tensor:
    """Returns zeros where an op gives nothing though its fake results have a tensor, as gradients that nobody asks for.

    What has no gradient has one of zeros.
    """
    if not all(isinstance(size, int) for size in (*fake.shape, *fake.stride())):
        return torch.zeros((), dtype=fake.dtype, device=fake.device)
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device).zero_()


def _as_declared(leaf: Any, fake: Any) -> Any:
    """Returns a result in the type that torch has told of it, which is what reads it counts on.

    Some ops give another: attention of float64 its logarithms in float64, where float32 is told.
    """
    return leaf.to(fake.dtype) if isinstance(leaf, torch.Tensor) and isinstance(fake, torch.Tensor) else leaf


def _apart(results: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Returns results as tensors that share memory with no operand and with no other result.

    A branch may return what it was given; the program that called it counts on a tensor of its own.
    """
    taken = {_address(value) for value in values if isinstance(value, torch.Tensor)} - {0}
    found: list[Any] = []
    for result in results:
        tensor = result if isinstance(result, torch.Tensor) else torch.tensor(int(result))
        address = _address(tensor)
        if address in taken:
            tensor = tensor.clone()
        elif address:
            taken.add(address)
        found.append(tensor)
    return found


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _launch_of(call: HigherOrderCall, attributes: Mapping[torch.fx.Node, Any]) -> FlatCall:
    """Returns a launch in place; the program has made the copies that are to be written."""
    kernel = user_kernels.find_kernel(call.kwargs["kernel_idx"])
    constants = user_kernels.find_constants(call.kwargs["constant_args_idx"])
    numbers = {node: position for position, node in enumerate(operands_of(call))}
    held = dict(call.kwargs["kwargs"])
    grids = [tuple(grid) for grid in call.kwargs["grid"]]
    descriptors = dict(call.kwargs["tma_descriptor_metadata"])
    mutated = tuple(call.kwargs.get("tensors_to_clone", held))

    def run(*values: Any) -> tuple[Any, ...]:
        def at(item: Any) -> Any:
            if not isinstance(item, torch.fx.Node):
                return item
            return values[numbers[item]] if item in numbers else attributes[item]

        given = {name: at(value) for name, value in held.items()}
        placed = [tuple(at(size) for size in grid) for grid in grids]
        described = torch.fx.node.map_arg(descriptors, at) if descriptors else descriptors
        user_kernels.launch(kernel, placed, described, {**constants, **given}, mutated)
        return ()

    return run
