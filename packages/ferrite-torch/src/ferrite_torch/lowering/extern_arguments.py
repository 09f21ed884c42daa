"""Arguments of extern calls: from FX values to the closed vocabulary of ``Extern``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ferrite_ir.language.graph import Tag, View
from ferrite_ir.language.sizes import Symbolic
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.sizes.symbolic_sizes import size_of


class UnknownArgument(TypeError):
    """An extern call has an argument that a program cannot carry."""


_CONVERSIONS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (torch.dtype, lambda dtype: Tag("dtype", dtype_of(dtype).name)),
    (torch.device, lambda device: Tag("device", device.type)),
    (torch.layout, lambda layout: Tag("layout", str(layout).removeprefix("torch."))),
    (torch.memory_format, lambda layout: Tag("memory_format", str(layout).removeprefix("torch."))),
    (torch.SymInt, size_of),
    (torch.SymFloat, float),
    (torch.SymBool, bool),
)


def argument_of(value: Any, view: Callable[[Tensor], View]) -> Any:
    """Returns an argument as an ``Extern`` carries it; ``view`` turns a tensor into a strided view.

    Raises:
        UnknownArgument: the program format has no form for such a value.
    """
    match value:
        case Tensor():
            return view(value)
        case None | bool() | int() | float() | complex() | str() | Symbolic():
            return value
        case tuple() | list():
            return tuple(argument_of(item, view) for item in value)
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    raise UnknownArgument(f"an extern call with an argument of type {type(value).__name__}: {value!r}")
