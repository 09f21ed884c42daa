"""Tensors saved for backward lie as the compiled forward likes; here is what keeps its partners informed.

A compiled forward reports the strides of its outputs to AOTAutograd, the backward is compiled for the strides that it
is told of, and where either runs eagerly instead, tensors are copied into the layout that the other side counts on.
Layouts are agreed upon in numbers: a tensor that was traced with symbolic strides, or would get such, keeps those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ferrite_ir.language.graph import Graph, Output, View
from ferrite_ir.language.sizes import is_static
from ferrite_torch.calls.layouts import Layouts
from ferrite_torch.sizes.symbolic_sizes import steps_of

__all__ = ["Layouts", "changed_layouts", "changed_outputs", "strides_of"]


def changed_layouts(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[dict[int, tuple[int, ...]], ...]:
    """Returns the layouts of those inputs that lie otherwise than a graph was traced with, and the traced ones."""
    given: dict[int, tuple[int, ...]] = {}
    traced: dict[int, tuple[int, ...]] = {}
    placeholders = module.graph.find_nodes(op="placeholder")
    for position, (node, value) in enumerate(zip(placeholders, inputs, strict=False)):
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and isinstance(value, torch.Tensor) and value.layout == torch.strided:
            now, then = steps_of(value), steps_of(fake)
            if now != then:
                given[position], traced[position] = now, then
    return given, traced


def strides_of(outputs: Iterable[Output]) -> list[tuple[int, ...] | None]:
    """Returns the strides of each output of a graph, None for those that are no tensors or have symbolic strides.

    Those lie as they were traced.
    """
    return [o.strides if isinstance(o, View) and all(map(is_static, o.strides)) else None for o in outputs]


def changed_outputs(module: torch.fx.GraphModule, graph: Graph) -> Layouts:
    """Returns the layouts of those outputs of a compiled graph that lie otherwise than the graph was traced with."""
    returned = module.graph.output_node().args[0]
    nodes = returned if isinstance(returned, (tuple, list)) else (returned,)
    changed: dict[int, tuple[int, ...]] = {}
    for position, (node, output) in enumerate(zip(nodes, graph.outputs, strict=True)):
        fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if isinstance(output, View) and isinstance(fake, torch.Tensor):
            pairs = zip(output.shape, output.strides, steps_of(fake), strict=True)
            if any(new != old for size, new, old in pairs if size not in (0, 1)):
                changed[position] = output.strides
    return changed
