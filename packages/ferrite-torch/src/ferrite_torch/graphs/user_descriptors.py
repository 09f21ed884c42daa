"""Tensor descriptors (TMA) of users' Triton kernels: those that the host makes, too, are made in the kernel.

A descriptor says where a matrix lies, so that a unit of the multiprocessor can copy blocks of it. Where the host has
made one, a launch passes the tensor, and the text of the kernel gets its extents, steps and block. Each descriptor of
each program lies in scratch memory, which is a param (decision 0060).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.sizes import Size
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.kernel_spec import SCRATCH, Param
from ferrite_runtime.kernel_source.user_text import DescribedTensor
from ferrite_torch.calls.user_constants import FixedLaunch, NotWritten
from ferrite_torch.lowering.tensors import Tensor
from ferrite_triton.host.scratch import DESCRIPTOR_BYTES, scratch_name

_ALIGN = 16
"""Bytes that steps and addresses of described tensors are multiples of."""


def described_tensor(name: str, tensor: Tensor, block: tuple[int, ...]) -> DescribedTensor:
    """Returns the tensor of a descriptor that the host has made.

    Raises:
        NotWritten: where it lies depends on data or symbolic sizes, or is nowhere that a descriptor can be of: elements
            are to lie next to each other, steps and the address to be multiples of 16 bytes.
    """
    view = tensor.strided()
    shape, strides = ((), ()) if view is None else (view.shape, view.strides)
    numbers = [each for each in (*shape, *strides) if isinstance(each, int)]
    if view is None or len(numbers) != 2 * len(shape):
        raise NotWritten(f"it takes a tensor descriptor (TMA), {name}, of data-dependent or symbolic sizes or strides")
    steps = (*strides[:-1], view.offset)
    units = [each * DTYPES[tensor.dtype.name].itemsize % _ALIGN if isinstance(each, int) else 1 for each in steps]
    if strides[-1:] != (1,) or any(units):
        raise NotWritten(f"it takes a tensor descriptor (TMA), {name}, of elements that lie otherwise than it can say")
    return DescribedTensor(tuple(numbers[: len(shape)]), tuple(numbers[len(shape) :]), block)


def scratch_of(fixed: FixedLaunch, grids: Sequence[Sequence[Size]]) -> Param | None:
    """Returns the memory for the descriptors of a launch with one of these grids; None where it has none.

    Raises:
        NotWritten: how many programs there are is known only to a run.
    """
    count = len(fixed.blocks) + fixed.makes
    if not count:
        return None
    known = [[axis for axis in grid if isinstance(axis, int)] for grid in grids]
    if any(len(axes) < len(grid) for axes, grid in zip(known, grids, strict=True)):
        raise NotWritten("it has tensor descriptors (TMA), which take memory for each program, on a grid of any size")
    each = count * DESCRIPTOR_BYTES // I64.bytes
    elements = each * max(1, *map(math.prod, known))
    name = scratch_name(fixed.kernel.function.arg_names)
    return Param(name, "tensor", I64.name, SCRATCH, DESCRIPTOR_BYTES, elements=elements, each=each)
