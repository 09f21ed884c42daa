"""Conversions and copies: a new loop that lies as the fake result does."""

from __future__ import annotations

from typing import Any

import torch

from ferrite_ir import scalar as sc
from ferrite_ir.scalar import Scalar
from ferrite_torch.builder import Builder, Unlowered, ints
from ferrite_torch.dtypes import dtype_of
from ferrite_torch.lowering.elementwise import element_at, packed_strides, refuse_opaque
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.tensors import Point, Tensor


def copy_of(b: Builder, x: Tensor, fake: torch.Tensor) -> Tensor:
    """Returns the tensor, broadcast, in the shape, type and layout of a fake result.

    Raises:
        Unlowered: the result is on another device than the operand, or of a type kernels do not compute with.
    """
    shape, dtype = ints(fake.shape), dtype_of(fake.dtype)
    if fake.device.type != (x.device or b.device):
        raise Unlowered(f"a copy from {x.device or b.device} to {fake.device.type}")
    refuse_opaque(dtype, x.dtype)

    def body(point: Point) -> Scalar:
        return element_at(x, shape, point, dtype)

    return b.loop(shape, dtype, body, strides=packed_strides(fake))


@lowers(
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
    "aten.alias_copy.default",
    "aten.detach_copy.default",
    "aten._to_copy.default",
    "prims.clone.default",
    "prims.convert_element_type.default",
    "prims.device_put.default",
)
def converted(b: Builder, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Returns a copy; type, layout and device are those of the fake result."""
    return copy_of(b, x, b.fake)


@lowers("aten.copy.default")
def copied(b: Builder, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return copy_of(b, source, b.fake)


@lowers("aten.view.dtype", "aten.view_copy.dtype")
def reinterpreted(b: Builder, x: Tensor, dtype: torch.dtype) -> Tensor:
    new = dtype_of(dtype)
    refuse_opaque(x.dtype, new)
    if x.dtype.bits != new.bits:
        raise Unlowered(f"{x.dtype} data seen as {new}, which has another width")
    return b.loop(x.shape, new, lambda point: sc.bitcast(x.at(point), new))
