"""Tensors that a forward saved and only its backward reads: once dead there, their memory may hold other values.

The gradient of the logits of a language model is written over the logits, the largest tensor of a training step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import torch

from ferrite_torch import torch_private
from ferrite_torch.lower import LoweredModule


def donated_arguments(module: torch.fx.GraphModule) -> frozenset[int]:
    """Returns the positions of the arguments of a backward graph that are its own: nothing else is in their storage."""
    storages = [torch_private.storage_key(fake) if isinstance(fake, torch.Tensor) else None for fake in _fakes(module)]
    tenants = Counter(storages)
    given = (place for place in torch_private.donated_inputs() if place < len(storages))
    return frozenset(place for place in given if storages[place] is not None and tenants[storages[place]] == 1)


def _fakes(module: torch.fx.GraphModule) -> Iterator[object]:
    for node in module.graph.find_nodes(op="placeholder"):
        fake = node.meta.get("val")
        yield fake if isinstance(fake, torch.Tensor) and fake.layout == torch.strided else None


def donated_names(lowered: LoweredModule, arguments: Iterable[int]) -> frozenset[str]:
    """Returns the inputs of a lowered graph that these arguments of its module are."""
    wanted = set(arguments)
    inputs = lowered.graph.inputs[len(lowered.constants) :]
    return frozenset(
        value.name  # integers come after these
        for value, position in zip(inputs, lowered.selection, strict=False)
        if position in wanted and value.type.dtype.kind != "opaque" and not value.type.device
    )
