"""Tensors saved for backward lie as the compiled forward likes; here is what keeps its partners informed.

A compiled forward reports the strides of its outputs to AOTAutograd, the backward is compiled for the strides that it
is told of, and where either runs eagerly instead, tensors are copied into the layout that the other side counts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from ferrite_ir.graph import Graph, Output, View
from ferrite_torch.builder import ints

Layouts: TypeAlias = Mapping[int, tuple[int, ...]]
"""Strides, by the position of an argument or a result."""


def changed_layouts(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[dict[int, tuple[int, ...]], ...]:
    """Returns the layouts of those inputs that lie otherwise than a graph was traced with, and the traced ones."""
    given: dict[int, tuple[int, ...]] = {}
    traced: dict[int, tuple[int, ...]] = {}
    placeholders = module.graph.find_nodes(op="placeholder")
    for position, (node, value) in enumerate(zip(placeholders, inputs, strict=False)):
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and isinstance(value, torch.Tensor) and value.layout == torch.strided:
            now, then = ints(value.stride()), ints(fake.stride())
            if now != then:
                given[position], traced[position] = now, then
    return given, traced


def strides_of(outputs: Iterable[Output]) -> list[tuple[int, ...] | None]:
    """Returns the strides of each output of a graph, None for those that are no tensors."""
    return [output.strides if isinstance(output, View) else None for output in outputs]


def changed_outputs(before: Graph, after: Graph) -> Layouts:
    """Returns the layouts of those outputs of a graph that passes have changed."""
    pairs = zip(strides_of(before.outputs), strides_of(after.outputs), strict=True)
    return {place: new for place, (old, new) in enumerate(pairs) if new is not None and new != old}


def in_layouts(
    function: Callable[[list[Any]], Any], arguments: Layouts | None = None, results: Layouts | None = None
) -> Callable[[list[Any]], Any]:
    """Returns a boxed function whose arguments and results are copied into these layouts where they lie otherwise."""
    if not arguments and not results:
        return function

    def call(values: list[Any]) -> Any:
        for position, strides in (arguments or {}).items():
            values[position] = _laid_out(values[position], strides)
        if not results:
            return function(values)
        returned = list(function(values))
        for position, strides in results.items():
            returned[position] = _laid_out(returned[position], strides)
        return tuple(returned)

    return call


def _laid_out(value: Any, strides: tuple[int, ...]) -> Any:
    if not isinstance(value, torch.Tensor) or value.stride() == strides:
        return value
    copy = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return copy.copy_(value)
