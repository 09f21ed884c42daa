"""Numbers that a program makes a tensor of are numbers again, with no tensor behind them.

While a graph is traced, `torch.tensor(3.0)` and the 3 of `mask[1:5] = 3` become tensors on the CPU that the graph's
module holds and that each call copies. What lies on a GPU would wait for each of these copies:

    _tensor_constant0 = get_attr _tensor_constant0
    fresh = lift_fresh_copy(_tensor_constant0)       →    number = scalar_tensor(3.0, dtype=float32, device=cpu)
    copied = copy(rows, fresh)                            copied = copy(rows, number)

Only `lift_fresh_copy` reads such tensors, so nobody can write to them.
"""

from __future__ import annotations

import operator

import torch

from ferrite_torch.torch_private.fake_tensors import without_modes

_FRESH = frozenset(("aten.lift_fresh_copy.default", "aten.lift_fresh.default"))
_KINDS = frozenset(
    (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
)


def write_numbers(module: torch.fx.GraphModule) -> None:
    """Replaces each copy of a 0-d tensor that the module of a graph holds by the number that it has.

    The graph computes the same afterwards, op by op as well.
    """
    graph = module.graph
    for held in graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(str(held.target))(module)
        if not _is_number(value):
            continue
        for node in [user for user in held.users if str(user.target) in _FRESH]:
            with graph.inserting_before(node):
                kind = {"dtype": value.dtype, "device": node.meta.get("val", value).device}
                number = graph.call_function(torch.ops.aten.scalar_tensor.default, (_number_of(value),), kind)
            number.meta = node.meta
            node.replace_all_uses_with(number)
            graph.erase_node(node)
        if not held.users:
            graph.erase_node(held)


def _number_of(value: torch.Tensor) -> bool | int | float:
    with without_modes():  # the modes that graphs are traced in take no true tensors
        return value.item()


def _is_number(value: object) -> bool:
    """Returns whether an attribute of a module is a tensor of the CPU of which one number is all, in a plain type."""
    return (
        type(value) is torch.Tensor
        and value.ndim == 0
        and value.device.type == "cpu"
        and value.dtype in _KINDS
        and not value.requires_grad
    )
