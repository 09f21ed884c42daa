"""Boxed functions between partners that lay out tensors differently: what is copied into which strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

Layouts: TypeAlias = Mapping[int, tuple[int, ...]]
"""Strides, by the position of an argument or a result."""


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
    return copied(value, strides)


def copied(value: torch.Tensor, strides: tuple[int, ...] | None = None) -> torch.Tensor:
    """Returns a copy of a tensor with these strides, or with its own."""
    strides = value.stride() if strides is None else strides
    copy = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return copy.copy_(value)
