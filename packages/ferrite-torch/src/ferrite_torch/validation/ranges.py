"""Numbers among an op's arguments that the type of its operands, or of its result, does not have."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload, schema_of


def has_number_outside(
    op: Overload, operands: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Returns whether a number that an op is given is none of a type that it computes in; what follows, the op knows.

    Many ops compute in a wider type then, and take it.
    """
    numbers = [value for value in _numbers(op, args, kwargs) if type(value) in (int, float)]
    if not numbers:
        return False
    types = {tensor.dtype for tensor in operands}
    wanted = kwargs.get("dtype")
    types |= {wanted} if wanted is not None else set() if operands else {torch.get_default_dtype()}
    return any(not is_number_of(dtype, value) for dtype in types for value in numbers)


def is_number_of(dtype: torch.dtype, value: float) -> bool:
    """Returns whether a type has a number, rounded to its digits; in unsigned ones negative numbers wrap around."""
    if dtype is torch.bool or dtype.is_complex:
        return True
    if dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return math.isfinite(value) and (limits.min or -limits.max) <= value <= limits.max


def _numbers(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    for position, name in _number_arguments(op):
        if position < len(args):
            yield args[position]
        elif name in kwargs:
            yield kwargs[name]


@functools.cache
def _number_arguments(op: Overload) -> tuple[tuple[int, str], ...]:
    """Returns the places and names of an op's arguments that are numbers of whatever type."""
    arguments = enumerate(schema_of(op).arguments)
    return tuple(
        (position, each.name) for position, each in arguments if str(each.type) in ("number", "Optional[number]")
    )
