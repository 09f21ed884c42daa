"""Whose the memory of a graph's arguments is: the graph's own once they are dead, or the caller's to the end.

What a forward saved and only its backward reads may hold other values there: the gradient of the logits of a language
model is written over the logits, the largest tensor of a training step. All arguments of a forward graph are held by
the frame that calls it, those of a backward graph that are parameters by their modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import torch

from ferrite_ir.language.graph import Value
from ferrite_torch.graphs.lowered_module import LoweredModule
from ferrite_torch.torch_private.fake_tensors import storage_key
from ferrite_torch.torch_private.graph_positions import Positions


def donated_arguments(module: torch.fx.GraphModule, positions: Positions) -> frozenset[int]:
    """Returns the positions of the arguments of a backward graph that are its own: nothing else is in their storage."""
    storages = [storage_key(fake) if isinstance(fake, torch.Tensor) else None for fake in _fakes(module)]
    tenants = Counter(storages)
    given = positions.donated
    return frozenset(
        position for position in given if storages[position] is not None and tenants[storages[position]] == 1
    )


def _fakes(module: torch.fx.GraphModule) -> Iterator[object]:
    for node in module.graph.find_nodes(op="placeholder"):
        fake = node.meta.get("val")
        yield fake if isinstance(fake, torch.Tensor) and fake.layout == torch.strided else None


def held_arguments(module: torch.fx.GraphModule, kind: str, positions: Positions) -> frozenset[int]:
    """Returns the positions of the arguments of a graph of this kind that its caller holds while it runs."""
    if kind == "backward":
        return positions.held
    return frozenset(range(len(module.graph.find_nodes(op="placeholder"))))


def donated_names(lowered: LoweredModule, arguments: Iterable[int]) -> frozenset[str]:
    """Returns the inputs of a lowered graph that these arguments of its module are, of those on the graph's device."""
    return frozenset(
        value.name
        for value in _inputs_of(lowered, arguments)
        if value.type.dtype.kind != "opaque" and not value.type.device
    )


def held_names(lowered: LoweredModule, arguments: Iterable[int]) -> frozenset[str]:
    """Returns the inputs of a lowered graph that these arguments of its module are, and its constants."""
    constants = lowered.graph.inputs[: len(lowered.constants)]
    return frozenset(value.name for value in (*constants, *_inputs_of(lowered, arguments)))


def _inputs_of(lowered: LoweredModule, arguments: Iterable[int]) -> Iterator[Value]:
    wanted = set(arguments)
    inputs = lowered.graph.inputs[len(lowered.constants) :]
    for value, position in zip(inputs, lowered.selection, strict=False):  # integers come after these
        if position in wanted:
            yield value
