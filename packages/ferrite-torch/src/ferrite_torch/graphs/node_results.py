"""What holds of the results of a node, whoever lowers it: they lie by strides, and are what torch says."""

from __future__ import annotations

from typing import Any

import torch

from ferrite_ir.language.sizes import Size, Symbolic
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.diagnostics.origins import unsupported
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.sizes.symbolic_sizes import size_of, sizes_of
from ferrite_torch.torch_private.fake_tensors import is_fake


def refuse_layouts(node: torch.fx.Node) -> None:
    """Checks that the results of a call lie in memory by strides.

    Raises:
        Unsupported: one is sparse or lies in another way that only its own library knows.
    """
    fakes = node.meta.get("val")
    for fake in fakes if isinstance(fakes, (tuple, list)) else (fakes,):
        if isinstance(fake, torch.Tensor) and fake.layout != torch.strided:
            raise unsupported(node, f"a tensor of layout {fake.layout} is not compiled")


def sizes_of_node(node: torch.fx.Node) -> list[Size]:
    """Returns the symbolic sizes of the operands and results of a node."""
    values = [node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)]
    found: dict[Size, None] = {}
    for value in values:
        for item in value if isinstance(value, (tuple, list)) else (value,):
            numbers = (*item.shape, *item.stride()) if is_fake(item) else (item,)
            found.update((size_of(number), None) for number in numbers if isinstance(number, torch.SymInt))
    return [size for size in found if isinstance(size, Symbolic)]


def check_result(result: Any, fake: Any) -> None:
    """Checks a lowering's result against torch's own: shape and type.

    Raises:
        ValueError: they differ.
        TypeError: the result is no tensor.
    """
    if isinstance(fake, (tuple, list)):
        if not isinstance(result, (tuple, list)) or len(result) != len(fake):
            raise ValueError(f"returned {result!r} where torch returns {len(fake)} results")
        for one, other in zip(result, fake, strict=True):
            check_result(one, other)
    elif isinstance(fake, torch.Tensor) and result is not None:
        if not isinstance(result, Tensor):
            raise TypeError(f"returned {result!r} where torch returns a tensor")
        shape, dtype = sizes_of(fake.shape), dtype_of(fake.dtype)
        if result.shape != shape or result.dtype is not dtype:
            raise ValueError(f"returned {result.dtype}{list(result.shape)} where torch returns {dtype}{list(shape)}")
