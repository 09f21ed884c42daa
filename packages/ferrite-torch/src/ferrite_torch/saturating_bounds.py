"""Bounds of integers that their type does not have: ``clamp(x, 0, 300)`` of eight bits is ``clamp(x, 0, 127)``.

So it is from torch 2.15 on; torch before refuses such bounds, or takes them modulo 256. Which it is, an element tells.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ferrite_torch.torch_private.fake_tensors import without_modes
from ferrite_torch.torch_private.operators import Overload

aten = torch.ops.aten

_BOUNDED = (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.hardtanh.default)
"""Ops whose arguments but the first are bounds."""


def rules_for_bounds() -> Iterator[tuple[Overload, Callable[..., Any]]]:
    """Yields the ops that take bounds, each with a decomposition that leaves bounds that a type has to the op."""
    for op in _BOUNDED:
        yield op, functools.partial(_within_type, op)


def _within_type(op: Overload, x: torch.Tensor, *bounds: Any, **named: Any) -> Any:
    given: dict[Any, Any] = {**dict(enumerate(bounds)), **named}
    kinds = (int, float) if op is aten.hardtanh.default else (int,)  # floats make the result of a clamp one of floats
    held = {key: _held(bound, x.dtype, kinds) for key, bound in given.items()}
    if all(held[key] is given[key] for key in given) or not _saturates():
        return NotImplemented
    return op(x, *(held[place] for place in range(len(bounds))), **{name: held[name] for name in named})


def _held(bound: Any, dtype: torch.dtype, kinds: tuple[type, ...]) -> Any:
    """Returns the number of an integer type that is nearest to a bound; the bound itself if it is one."""
    if type(bound) not in kinds or dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return bound
    limits = torch.iinfo(dtype)
    return bound if limits.min <= bound <= limits.max else max(limits.min, min(bound, limits.max))


@functools.cache
def _saturates() -> bool:
    with without_modes():
        return int(torch.zeros((), dtype=torch.uint8).clamp_min(-1)) == 0
