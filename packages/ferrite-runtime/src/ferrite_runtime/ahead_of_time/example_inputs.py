"""Inputs made up for a program or a kernel, to measure it with: right in shape and type, and harmless as indices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrite_runtime.errors import InputError
from ferrite_runtime.formats.expressions import Expr, evaluate, expr_names
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Input, Launch, Let, Probe
from ferrite_runtime.host.tensors import torch_dtype

# A size that nothing is known of.
ANY_SIZE = 128


def make_inputs(program: Program, device: Any, sizes: Mapping[str, int] | None = None) -> list[Any]:
    """Returns one value for each input of a program.

    Floats are normally distributed, with a fixed seed; integers and flags are zero, which as an index is never out of
    bounds. Sizes that the program leaves open are those that its kernels expect.

    Args:
        program: the program.
        device: the ``torch.device`` of its kernels; inputs that belong elsewhere lie on the CPU.
        sizes: values of open sizes, by name.

    Raises:
        InputError: naming the input that nothing can be made up for.
        torch.OutOfMemoryError: if they do not fit into memory.
    """
    known = {**expected_sizes(program), **(sizes or {})}
    return [_make_input(program, value, device, known, seed) for seed, value in enumerate(program.inputs)]


def _make_input(program: Program, value: Input, device: Any, sizes: Mapping[str, int], seed: int) -> Any:
    if value.kind == "scalar":
        return sizes.get(value.name, ANY_SIZE) if value.dtype in ("i32", "i64") else 1.0
    if value.layout is None:
        raise InputError(f"input {value.name!r} of program {program.name} is opaque: give the inputs", value.name)
    where = device if value.device == program.device else "cpu"
    return make_tensor(value.layout, where, sizes, seed)


def make_tensor(layout: Layout, device: Any, sizes: Mapping[str, int], seed: int = 0) -> Any:
    """Returns a tensor of some layout; where its strides say so, elements share their place."""
    import torch

    shape, strides = (tuple(_number(size, sizes) for size in row) for row in (layout.shape, layout.strides))
    extent = 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    return fill(torch.empty(extent, dtype=torch_dtype(layout.dtype), device=device), seed).as_strided(shape, strides)


def fill(tensor: Any, seed: int) -> Any:
    """Returns a tensor, filled: floats with normally distributed numbers, everything else with zeros."""
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.zero_()
    generator = torch.Generator(tensor.device).manual_seed(seed)
    if tensor.element_size() > 1:
        return tensor.normal_(generator=generator)
    drawn = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)  # no torch draws in eight bits
    return tensor.copy_(drawn.normal_(generator=generator))


def _number(expr: Expr, sizes: Mapping[str, int]) -> int:
    if isinstance(expr, int):
        return expr
    return evaluate(expr, {name: sizes.get(name, ANY_SIZE) for name in expr_names(expr)})


def expected_sizes(program: Program) -> dict[str, int]:
    """Returns the sizes that a program's kernels expect, by the names that the program gives them."""
    kernels = {kernel.id: kernel for kernel in program.kernels}
    found: dict[str, int] = {}
    for step in program.steps:
        if isinstance(step, Launch):
            for param, argument in zip(kernels[step.kernel].params, step.args, strict=True):
                if param.role == "size" and isinstance(argument, str) and param.hint is not None:
                    found.setdefault(argument, param.hint)
    for step in program.steps:
        # A size that is read off an input goes by the name of that input's own extent as well.
        if isinstance(step, Let) and isinstance(step.value, Probe) and step.name in found:
            layout = next((value.layout for value in program.inputs if value.name == step.value.tensor), None)
            extent = layout.shape[step.value.axis] if layout is not None and step.value.kind == "size" else None
            if isinstance(extent, str):
                found.setdefault(extent, found[step.name])
    return found


def make_arguments(
    spec: KernelSpec, sizes: Mapping[str, int], device: Any, elements: int | None = None
) -> tuple[Any, ...]:
    """Returns arguments for a kernel that nobody gave any.

    A spec does not say how long its tensors are: each gets ``elements``, or as many as the product of the sizes.

    Raises:
        InputError: naming the size that is missing.
    """
    values: dict[str, int] = {}
    for param in spec.params:
        if param.role == "size":
            value = sizes.get(param.name, param.hint)
            if value is None:
                raise InputError(f"kernel {spec.name} needs a value for its size {param.name!r}", param.name)
            values[param.name] = value
    product = 1
    for value in values.values() if values else (evaluate(axis.size, values) for axis in spec.axes):
        product *= max(1, value)
    count = elements or product
    given: list[Any] = []
    for seed, param in enumerate(spec.params):
        if param.role == "tensor":
            given.append(make_tensor(Layout(param.dtype, (count,), (1,)), device, {}, seed))
        else:
            given.append(values.get(param.name, 1.0 if param.dtype[0] in "fb" else 1))
    return tuple(given)
