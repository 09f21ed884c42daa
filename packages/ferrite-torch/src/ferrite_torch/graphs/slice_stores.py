"""Stores of a slice into a tensor whose old contents nobody needs: done where it lies, without touching the rest.

``x[:, 3:5] = y`` reaches us as a whole new tensor. Where the target may be overwritten (a cache that is written back,
an intermediate that dies) only the slice is stored; elsewhere the ordinary lowering makes the new tensor in one pass.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrite_ir.language import index as ix
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Point, Tensor


def slice_scatter(
    builder: Builder,
    target: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """Returns the target with ``[start:end:step]`` of a dim replaced; ``source`` has the shape of that slice."""
    dim %= target.ndim
    size = target.shape[dim]
    first = 0 if start is None else max(0, start + size if start < 0 else start)

    def position(point: Point) -> Point:
        return (*point[:dim], point[dim] * step + min(first, size), *point[dim + 1 :])

    return builder.update(target, "set", source.shape, position, source.at)


def select_scatter(builder: Builder, target: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    """Returns the target with ``target[index]`` along a dim replaced."""
    dim %= target.ndim
    size = target.shape[dim]
    chosen = ix.constant(index + size if index < 0 else index)

    def position(point: Point) -> Point:
        return (*point[:dim], chosen, *point[dim:])

    return builder.update(target, "set", source.shape, position, source.at)


IN_PLACE: dict[str, Callable[..., Tensor]] = {
    "aten.slice_scatter.default": slice_scatter,
    "aten.select_scatter.default": select_scatter,
}
"""Lowerings that win over those of the table where the builder owns their first operand."""
