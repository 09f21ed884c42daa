"""Arguments of library calls: from FX values to the closed vocabulary of ``Extern``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ferrite_ir.graph import Tag, View

from ferrite_torch.dtypes import dtype_of
from ferrite_torch.tensors import Tensor


class UnknownArgument(TypeError):
    """A library call has an argument that a program cannot carry."""


def argument_of(value: Any, view: Callable[[Tensor], View]) -> Any:
    """Returns an argument as an ``Extern`` carries it; ``view`` turns a tensor into a strided view.

    Raises:
        UnknownArgument: the program format has no form for such a value.
    """
    match value:
        case Tensor():
            return view(value)
        case None | bool() | int() | float() | complex() | str():
            return value
        case tuple() | list():
            return tuple(argument_of(item, view) for item in value)
        case torch.dtype():
            return Tag("dtype", dtype_of(value).name)
        case torch.device():
            return Tag("device", value.type)
        case torch.layout():
            return Tag("layout", str(value).removeprefix("torch."))
        case torch.memory_format():
            return Tag("memory_format", str(value).removeprefix("torch."))
        case torch.SymInt():
            return int(value)
        case torch.SymFloat():
            return float(value)
        case torch.SymBool():
            return bool(value)
    raise UnknownArgument(f"a library call with an argument of type {type(value).__name__}: {value!r}")
