"""The few tensor operations that a program's host steps need, each through the cheapest way this torch has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ferrite_runtime.errors import NoVariantForTarget, ProgramFailed
from ferrite_runtime.formats.dtypes import torch_name


def torch_dtype(name: str) -> Any:
    """Returns the torch dtype of a spec dtype name."""
    import torch

    found = getattr(torch, torch_name(name), None)
    if not isinstance(found, torch.dtype):
        raise NoVariantForTarget(f"this torch has no dtype {torch_name(name)}")
    return found


def find_allocator(device_type: str) -> Callable[..., Any] | None:
    """Returns torch's bare allocator of a device type, of (shape, strides, dtype), if it has one."""
    import torch

    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    found: Callable[..., Any] | None = getattr(guards, f"_empty_strided_{device_type}", None)
    return found


def make_allocator(device: Any) -> Callable[[tuple[int, ...], tuple[int, ...], Any], Any]:
    """Returns a function of (shape, strides, dtype) that allocates on ``device``, a ``torch.device``.

    On CUDA the device has to be the current one when the function is called.
    """
    import torch

    fast = find_allocator(device.type)
    if fast is not None:
        return fast
    empty_strided = torch.empty_strided
    return lambda shape, strides, dtype: empty_strided(shape, strides, dtype=dtype, device=device)


def make_keeper(device: Any, is_recorded: Callable[[], bool]) -> Callable[..., Any]:
    """Returns a function of (stream, name, shape, strides, dtype) that finds the buffer which is kept for a stream.

    It is filled with zeros when it is made. A call that is recorded, to be replayed in whatever stream, gets a new one,
    which is filled with zeros at each replay; so do calls without a stream, which nothing puts in an order.
    """
    import torch

    kept: dict[tuple[Any, ...], Any] = {}

    def zeros(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device).zero_()

    def keep(stream: int | None, name: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        if stream is None or is_recorded():
            return zeros(shape, strides, dtype)
        key = stream, name, shape, strides
        found = kept.get(key)
        return kept.setdefault(key, zeros(shape, strides, dtype)) if found is None else found

    return keep


def make_reinterpret() -> Callable[[Any, tuple[int, ...], tuple[int, ...], int], Any]:
    """Returns a function of (tensor, shape, strides, offset from the tensor) that makes a view."""
    import torch

    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    fast: Callable[..., Any] | None = getattr(guards, "_reinterpret_tensor", None)
    return fast if fast is not None else _reinterpret


def _reinterpret(tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def make_retype() -> Callable[[Any, Any, tuple[int, ...], tuple[int, ...], int], Any]:
    """Returns a function of (tensor, dtype, shape, strides, offset in *bytes* from the tensor) that makes a view.

    Where the dtype is the tensor's own, which a program may not know of a library's result, it is a plain view.
    """
    reinterpret = make_reinterpret()

    def view(tensor: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
        if tensor.dtype is dtype:
            elements, rest = divmod(offset, dtype.itemsize) if offset else (0, 0)
            if not rest:
                return reinterpret(tensor, shape, strides, elements)
        return retype(tensor, dtype, shape, strides, offset)

    return view


def retype(tensor: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
    """Returns a view of another dtype over the storage of ``tensor``, ``offset`` *bytes* after its first element."""
    import torch

    if tensor.dtype == dtype:  # the one way that keeps a pending conjugation
        return tensor.as_strided(shape, strides, tensor.storage_offset() + offset // tensor.element_size())
    start = tensor.storage_offset() * tensor.element_size() + offset
    view = torch.empty(0, dtype=dtype, device=tensor.device)
    return view.set_(tensor.untyped_storage(), start // view.element_size(), shape, strides)


def check_within(tensor: Any, end: int) -> None:
    """Raises unless a tensor's memory reaches to ``end``, in bytes from its first element.

    Raises:
        ProgramFailed: a library returned less than the program takes its result for.
    """
    if tensor is not None:
        size = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
        if end <= size:
            return
    raise ProgramFailed("a view lies outside of the result of an extern call that it is a view of")


def empty_like(tensor: Any) -> Any:
    """Returns a new tensor of the type and the layout of another one."""
    import torch

    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def stack_rows(rows: list[Any]) -> Any:
    """Returns tensors of one type as the rows of a new one, which is contiguous."""
    import torch

    stacked = torch.empty((len(rows), *rows[0].shape), dtype=rows[0].dtype, device=rows[0].device)
    return torch.stack(rows, out=stacked)


def restride(tensor: Any, strides: tuple[int, ...]) -> Any:
    """Returns a copy of ``tensor`` with these strides."""
    import torch

    copied = torch.empty_strided(tuple(tensor.shape), strides, dtype=tensor.dtype, device=tensor.device)
    copied.copy_(tensor)
    return copied


def tensor_of_handle(handle: int) -> Any:
    """Returns the tensor that a handle of torch's C interface stands for; the handle is gone afterwards."""
    import torch

    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(make(handle, None, None))
