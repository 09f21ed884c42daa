"""Inclusive scans along one axis, where kernels can scan; else the extern call."""

from __future__ import annotations

from typing import Any

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL, I32, I64
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Lowered, Unlowered
from ferrite_torch.lowering.elementwise import converted_at, refuse_opaque
from ferrite_torch.lowering.expressions import number_of
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.views import axis_of
from ferrite_torch.lowering.tensors import Point, Tensor

KERNELS_SCAN = True
"""Whether the scheduler and the code generator make kernels of scans."""


def _scanned(b: Builder, combine: str, x: Tensor, dim: int) -> Tensor:
    dtype = dtype_of(b.fake.dtype)
    refuse_opaque(x.dtype, dtype)
    if _is_trivial(x):
        return b.loop(x.shape, dtype, x.at)
    carried = dtype.compute if combine == "logaddexp" else dtype.accumulate

    def body(point: Point) -> tuple[Scalar, ...]:
        return (sc.cast(converted_at(x, point, dtype), carried),)

    (result,) = b.scan(combine, x.shape, axis_of(dim, x.ndim), body)
    return b.loop(x.shape, dtype, result.at)


def _is_trivial(x: Tensor) -> bool:
    """Returns whether there is nothing to scan along.

    Raises:
        Unlowered: there is, and kernels cannot.
    """
    if x.ndim == 0 or x.numel == 0:
        return True
    if not KERNELS_SCAN:
        raise Unlowered("kernels do not scan yet")
    return False


@lowers("aten.cumsum.default")
def cumsum(b: Builder, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    return _scanned(b, "sum", x, dim)


@lowers("aten.cumprod.default")
def cumprod(b: Builder, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    return _scanned(b, "prod", x, dim)


@lowers("aten.logcumsumexp.default")
def logcumsumexp(b: Builder, x: Tensor, dim: int) -> Tensor:
    return _scanned(b, "logaddexp", x, dim)


def _running(b: Builder, combine: str, x: Tensor, dim: int) -> Lowered:
    """Returns the extreme so far and the position it was last seen at."""
    refuse_opaque(x.dtype)
    if _is_trivial(x):
        return b.loop(x.shape, x.dtype, x.at), b.loop(x.shape, I64, lambda point: sc.const(0, I64))
    axis = axis_of(dim, x.ndim)
    carried = I32 if x.dtype is BOOL else x.dtype.compute
    value, position = b.scan(
        combine, x.shape, axis, lambda point: (sc.cast(x.stored_at(point), carried), number_of(point[axis]))
    )
    return b.loop(x.shape, x.dtype, value.at), position


@lowers("aten.cummax.default")
def cummax(b: Builder, x: Tensor, dim: int) -> Lowered:
    return _running(b, "cummax", x, dim)


@lowers("aten.cummin.default")
def cummin(b: Builder, x: Tensor, dim: int) -> Lowered:
    return _running(b, "cummin", x, dim)
