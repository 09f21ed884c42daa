"""Where the nodes of a graph compute: on the one device of its kernels, or elsewhere."""

from __future__ import annotations

import torch

from ferrite_torch.errors import Unsupported

_NUMBERS = frozenset(("aten._to_copy.default", "prims.convert_element_type.default", "aten.scalar_tensor.default"))
"""Ops that make a 0-d tensor of another one, or of a number, which is their first argument."""


def graph_device(module: torch.fx.GraphModule) -> str:
    """Returns the device type that the kernels of a graph run on: the only accelerator in it, else the CPU.

    Raises:
        Unsupported: two accelerators, or two devices of one type.
    """
    accelerators = accelerators_of(module)
    if len(accelerators) > 1:
        raise Unsupported(f"a graph on several devices: {', '.join(map(str, accelerators))}")
    return accelerators[0].type if accelerators else "cpu"


def accelerators_of(module: torch.fx.GraphModule) -> tuple[torch.device, ...]:
    """Returns the devices other than the CPU that a graph has tensors on, in the order in which it comes to them."""
    found = dict.fromkeys(fake.device for node in module.graph.nodes for fake in tensors_of(node))
    return tuple(device for device in found if device.type != "cpu")


def is_made_on(device: str, node: torch.fx.Node) -> bool:
    """Returns whether all tensors that a node makes are on a type of device."""
    return all(fake.device.type == device for fake in tensors_of(node))


def is_number_for(device: str, node: torch.fx.Node) -> bool:
    """Returns whether a node makes or casts a 0-d tensor of the CPU for operations on a type of device alone.

    Such are the floats that dynamo keeps symbolic, say the constant of a norm, and numbers that a program writes. The
    kernels that read them cast them as well, where each extern call would cost the host as much as dozens of launches.
    """
    if str(node.target) not in _NUMBERS or any(fake.ndim or fake.device.type == device for fake in tensors_of(node)):
        return False
    return all(
        (tensors_of(user) and is_made_on(device, user)) or (user.op != "output" and is_number_for(device, user))
        for user in node.users
    )


def tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """Returns the fake tensors that a node makes."""
    fakes = node.meta.get("val")
    listed = fakes if isinstance(fakes, (tuple, list)) else (fakes,)
    return [fake for fake in listed if isinstance(fake, torch.Tensor)]
