"""Launches of a person's own Triton kernel in Triton's interpreter, as ``kernel[grid](…)`` launches it on a GPU.

On a GPU Triton itself does that. On the CPU it has no driver, so what it does around a kernel is done here: configs of
``@triton.autotune`` (the first one: there is nothing to measure), values of ``@triton.heuristics``, defaults, grids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.kernel_source.user_names import jitted_function

Grid = Callable[[Mapping[str, Any]], tuple[int, ...]]

_LARGEST_INT32 = 2**31 - 1


def interpret_launch(kernel: Any, grid: Grid, given: Mapping[str, Any]) -> None:
    """Runs a kernel on tensors of the CPU.

    Args:
        kernel: a jitted function, with or without configs and heuristics around it.
        grid: returns the number of programs, given the values of all parameters.
        given: tensors, their descriptors, numbers and constants by the names of the kernel's parameters.
    """
    from ferrite_runtime.interpreter.runner import run_programs

    values = dict(given)
    while jitted_function(kernel) is None:
        values |= _chosen(kernel, values)
        kernel = kernel.fn
    defaults = {p.name: p.default for p in kernel.params if p.has_default and p.name not in values}
    values |= defaults
    width, height, depth = (*map(int, grid(values)), 1, 1)[:3]
    constants = {p.name for p in kernel.params if p.is_constexpr}
    names = [p.name for p in kernel.params]
    named = {name: values[name] if name in constants else _wrapped(values[name]) for name in names}
    run_programs(kernel, named, (width, height, depth))


def _chosen(kernel: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a decorator gives values to: the first config, or what the heuristics compute."""
    heuristics = getattr(kernel, "values", None)
    if heuristics is not None:
        known = dict(values)
        for name, compute in heuristics.items():
            known[name] = compute(known)
        return known
    configs = getattr(kernel, "configs", None)
    return dict(configs[0].kwargs) if configs else {}


def describe_blocks(tensor: Any, block: Sequence[int]) -> Any:
    """Returns the descriptor of a tensor of which a kernel copies blocks."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, list(block))


def _wrapped(value: Any) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    from ferrite_runtime.interpreter.runner import wrap_address, wrap_descriptor, wrap_number

    match value:
        case TensorDescriptor():
            return wrap_descriptor(value)
        case bool():
            return wrap_number("bool", value)
        case int():
            return wrap_number("i32" if -_LARGEST_INT32 <= value <= _LARGEST_INT32 else "i64", value)
        case float():
            return wrap_number("f32", value)
    name = _dtype_name(value)
    return value if name is None else wrap_address(name, value.data_ptr())


def _dtype_name(value: Any) -> str | None:
    """Returns the type of a tensor's elements as this package calls it; None of what is no tensor."""
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    return next(name for name, row in DTYPES.items() if getattr(torch, row.torch, None) is value.dtype)
