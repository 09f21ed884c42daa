"""Symbolic integers that are too large for what takes them: eager refuses them, and kernels would wrap them around.

    k: int                          the graph is compiled for all k
    x + k * k                       eager computes in integers of any size, and passes 64 bits
    torch.full((3,), k, dtype=torch.int32)

What is compared becomes a condition of the graph: a call with other integers is compiled anew, and refused then.
Numbers that are no symbols are for the op itself to judge (`dtypes`); integers that depend on data are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload, schema_of
from ferrite_torch.torch_private.symbolic_shapes import is_unbacked_number, may_need_more_bits
from ferrite_torch.validation.registry import arguments_of

_FILLS = {
    "full": "fill_value",
    "full_like": "fill_value",
    "new_full": "fill_value",
    "scalar_tensor": "s",
    "fill": "value",
    "masked_fill": "value",
    "index_fill": "value",
    "constant_pad_nd": "value",
    "add": "alpha",
    "sub": "alpha",
    "addcmul": "value",
    "addcdiv": "value",
}
"""Ops that convert a number to the type of their result, with its name."""
_LIMITS, _HALF = torch.iinfo(torch.int64), torch.finfo(torch.float16)


def width_problem(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns what is wrong with the symbolic integers that an op is given, None if nothing."""
    numbers = list(_symbolic((*args, *kwargs.values())))
    if not numbers:
        return None
    if not all(_LIMITS.min <= number <= _LIMITS.max for number in numbers if may_need_more_bits(number)):
        return "int too big to convert"
    name = schema_of(op).name.removeprefix("aten::").removesuffix("_")
    if name not in _FILLS:
        return None
    given = arguments_of(op, args, kwargs)
    number, dtype = given.get(_FILLS[name]), _result_type(given)
    if not isinstance(number, torch.SymInt) or is_unbacked_number(number) or dtype is torch.int64:
        return None
    return None if _holds(dtype, number) else f"value cannot be converted to type {dtype} without overflow"


def _symbolic(values: Any) -> Iterator[torch.SymInt]:
    for value in values:
        if isinstance(value, torch.SymInt):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _symbolic(value)


def _holds(dtype: torch.dtype, number: torch.SymInt) -> bool:
    """Returns whether a type has an integer of 64 bits, in unsigned types up to its sign; asks no other question."""
    if dtype is torch.float16:
        return bool(-int(_HALF.max) <= number <= int(_HALF.max))
    if dtype is torch.bool or dtype.is_floating_point or dtype.is_complex:
        return True
    limits = torch.iinfo(dtype)
    return bool((limits.min or -limits.max) <= number <= limits.max)


def _result_type(given: dict[str, Any]) -> torch.dtype:
    wanted = given.get("dtype")
    if isinstance(wanted, torch.dtype):
        return wanted
    own = given.get("self")
    return own.dtype if isinstance(own, torch.Tensor) else torch.int64
