"""Bounds of ``clamp`` that the integers it is given cannot reach.

torch 2.15 leaves them out, and refuses those that no integer of the type meets; earlier versions wrap them around or
refuse them. A lowering has them as constants of the type, which wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import without_modes
from ferrite_torch.torch_private.operators import Overload

aten = torch.ops.aten


def rules_for_integer_bounds() -> Iterator[tuple[Overload, Callable[..., Any]]]:
    """Yields the ops with bounds, each with a decomposition that leaves out those that no integer passes, as torch."""
    if leaves_out_bounds():
        yield aten.clamp.default, _clamp
        yield aten.clamp_min.default, _clamp_min
        yield aten.clamp_max.default, _clamp_max
        yield aten.hardtanh.default, _hardtanh


@lru_cache(maxsize=1)
def leaves_out_bounds() -> bool:
    """Returns whether this torch leaves out bounds that no integer of a type passes; it asks torch."""
    with without_modes():
        return bool(torch.ones((), dtype=torch.uint8).clamp(min=-1) == 1)


def is_converted(x: torch.Tensor, bound: Any) -> bool:
    """Returns whether a torch that does not leave out bounds converts one to the type of its operand.

    It does so with numbers below zero as bounds of unsigned integers, down to the greatest one with a minus sign.
    """
    if _is_any_bound(x, bound) or leaves_out_bounds():
        return True
    limits = torch.iinfo(x.dtype)
    return bool((limits.min or -limits.max) <= bound <= limits.max)


def _clamp(x: torch.Tensor, low: Any = None, high: Any = None) -> Any:
    kept = _reached(x, low, is_low=True), _reached(x, high, is_low=False)
    if kept == (low, high):
        return NotImplemented
    return aten.clamp.default(x, *kept) if kept != (None, None) else x.clone()


def _clamp_min(x: torch.Tensor, low: Any) -> Any:
    return NotImplemented if _reached(x, low, is_low=True) is low else x.clone()


def _clamp_max(x: torch.Tensor, high: Any) -> Any:
    return NotImplemented if _reached(x, high, is_low=False) is high else x.clone()


def _hardtanh(x: torch.Tensor, low: Any = -1, high: Any = 1) -> Any:
    if _is_any_bound(x, int(low)):
        return NotImplemented
    bounds = int(low), int(high)
    kept = _reached(x, bounds[0], is_low=True), _reached(x, bounds[1], is_low=False)
    return NotImplemented if kept == bounds else _clamp(x, *bounds)


def _reached(x: torch.Tensor, bound: Any, *, is_low: bool) -> Any:
    """Returns a bound, None for one that all integers of a type keep."""
    if _is_any_bound(x, bound):
        return bound
    limits = torch.iinfo(x.dtype)
    is_passed = bound < limits.min if is_low else bound > limits.max
    return None if is_passed else bound


def _is_any_bound(x: torch.Tensor, bound: Any) -> bool:
    """Returns whether a bound is none that an integer type may not hold."""
    return x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool or type(bound) is not int
