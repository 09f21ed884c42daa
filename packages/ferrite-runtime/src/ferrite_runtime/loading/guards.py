"""Guards: what every call of a loaded bundle is checked for, at a fraction of a microsecond per tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ferrite_runtime.errors import InputError
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.host.tensors import torch_dtype
from ferrite_runtime.process.options import Options

Guard = Callable[[Sequence[Any]], None]


def check_tensor(  # what a tensor has to be, and how to call it
    value: Any, layout: Layout, device: str | None, where: str, name: str, *, strides: bool = True
) -> None:
    """Raises `InputError` unless ``value`` is a tensor of this layout, on this type of device."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise InputError(f"{where} is a tensor, got {type(value).__name__}", name)
    if device is not None and value.device.type != device:
        raise InputError(f"{where} is on {device}, got a tensor on {value.device}", f"{name}.device")
    if value.dtype != torch_dtype(layout.dtype):
        raise InputError(f"{where} has dtype {torch_dtype(layout.dtype)}, got {value.dtype}", f"{name}.dtype")
    if tuple(value.shape) != layout.shape:
        raise InputError(f"{where} has shape {layout.shape}, got {tuple(value.shape)}", f"{name}.shape")
    if strides and not _agree(layout, value.stride()):
        raise InputError(f"{where} has strides {layout.strides}, got {value.stride()}", f"{name}.strides")


def _agree(layout: Layout, strides: Sequence[int]) -> bool:
    if layout.is_empty:
        return True
    pairs = zip(layout.shape, layout.strides, strides, strict=True)
    return all(size == 1 or wanted == actual for size, wanted, actual in pairs)


def make_guard(wanted: Sequence[tuple[str, Layout, str] | None], options: Options) -> Guard:
    """Returns a function that raises `InputError`, naming the tensor, unless the tensors of a call are as wanted.

    Args:
        wanted: name, layout and device type of each tensor; None for one that may be anything.
        options: without checks, if they say so.
    """
    if options.check_inputs == "never":
        return lambda tensors: None
    rows = [
        (position, name, layout, torch_dtype(layout.dtype), layout.shape, layout.strides, index)
        for position, row in enumerate(wanted)
        if row is not None and row[1].numbers is not None
        for name, layout, index in [row]
    ]

    def guard(tensors: Sequence[Any]) -> None:
        for position, name, layout, dtype, shape, strides, index in rows:
            value = tensors[position]
            try:
                if (
                    value.shape == shape
                    and value.dtype is dtype
                    and value.stride() == strides
                    and value.device.type == index
                ):
                    continue
            except (AttributeError, RuntimeError):
                pass
            check_tensor(value, layout, index, f"input {name!r}", name)

    return guard
