"""Conversions and copies: a new loop that lies as the fake result does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F8E4M3FN, F32, U8, U16, U32, U64, DType
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Symbolic
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import element_at, packed_strides, refuse_opaque, stated_at
from ferrite_torch.lowering.expressions import absolute, call, choose, number_of
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.rewrites.decompositions import BETWEEN_OPS
from ferrite_torch.sizes.symbolic_sizes import sizes_of

Element: TypeAlias = Callable[[Tensor, Sequence[int], Point, DType], Scalar]
"""Returns the element of a tensor broadcast to a shape, at a point, in a type."""


def copy_of(b: Builder, x: Tensor, fake: torch.Tensor, *, element: Element = stated_at) -> Tensor:
    """Returns the tensor, broadcast, in the shape, type and layout of a fake result.

    ``element`` says how an element is converted.

    Raises:
        Unlowered: the result is on another device than the operand, or of a type kernels do not compute with.
    """
    shape, dtype = sizes_of(fake.shape), dtype_of(fake.dtype)
    if fake.device.type != (x.device or b.device):
        raise Unlowered(f"a copy from {x.device or b.device} to {fake.device.type}")
    refuse_opaque(dtype, x.dtype)

    def body(point: Point) -> Scalar:
        if dtype is F8E4M3FN and x.dtype is not F8E4M3FN and not float8_saturates():
            return sc.cast(_largest_or_nan(element(x, shape, point, F32)), dtype)
        return element(x, shape, point, dtype)

    return b.loop(shape, dtype, body, strides=packed_strides(fake))


@cache
def float8_saturates() -> bool:
    """Returns whether this torch rounds what is too large for float8_e4m3fn to the largest number, or else to NaN.

    It does since 2.13.
    """
    return bool(torch.tensor(1e6).to(torch.float8_e4m3fn).float().isfinite())


def _largest_or_nan(value: Scalar) -> Scalar:
    """Returns a number, or NaN if it would round to more than 448."""
    is_small = call("le", absolute(value), sc.const(464.0, F32))
    return choose(is_small, value, sc.const(math.nan, F32))


@lowers(
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
    "aten.alias_copy.default",
    "aten.detach_copy.default",
    "aten._to_copy.default",
    "prims.clone.default",
    "prims.device_put.default",
)
def converted(b: Builder, x: Tensor | float, *_: Any, **__: Any) -> Tensor:
    """Returns a copy; type, layout and device are those of the fake result."""
    return copy_of(b, x, b.fake) if isinstance(x, Tensor) else _number(b, x)


@lowers(BETWEEN_OPS)
def converted_between(b: Builder, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Returns what a decomposition converts: its results are rounded as those of any op are."""
    return copy_of(b, x, b.fake, element=element_at)


def _number(b: Builder, number: float | Symbolic) -> Tensor:
    """Returns a number as the 0-d tensor that `vmap` makes of those in a program."""
    dtype = dtype_of(b.fake.dtype)
    refuse_opaque(dtype)
    return b.loop((), dtype, lambda _: b.constant(number, dtype))


def converted_number(b: Builder, x: Tensor | float, *_: Any, **__: Any) -> Tensor:
    """Returns a 0-d tensor of the CPU or a number, in the type of the fake result, as a value of the graph's device."""
    if not isinstance(x, Tensor):
        return _number(b, x)
    dtype = dtype_of(b.fake.dtype)
    refuse_opaque(dtype, x.dtype)
    return b.loop((), dtype, lambda point: stated_at(x, (), point, dtype))


@lowers("aten.copy.default")
def copied(b: Builder, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return copy_of(b, source, b.fake)


@lowers("aten.view.dtype", "aten.view_copy.dtype")
def reinterpreted(b: Builder, x: Tensor, dtype: torch.dtype) -> Tensor:
    new = dtype_of(dtype)
    refuse_opaque(x.dtype, new)

    def body(point: Point) -> Scalar:
        if x.dtype.bits == new.bits:
            return sc.bitcast(x.stored_at(point), new)
        return _joined(x, point, new) if x.dtype.bits < new.bits else _part_of(x, point, new)

    return b.loop(sizes_of(b.fake.shape), new, body, strides=packed_strides(b.fake))


_UNSIGNED = {8: U8, 16: U16, 32: U32, 64: U64}


def _part_of(x: Tensor, point: Point, new: DType) -> Scalar:
    """Returns the bits of one part of a wide element, the lowest first, as they lie in memory."""
    parts = x.dtype.bits // new.bits
    whole = _UNSIGNED[x.dtype.bits]
    bits = _bits_as(x.stored_at((*point[:-1], point[-1] // parts)), whole)
    shift = sc.cast(number_of((point[-1] % parts) * new.bits), whole)
    return _from_bits(call("shr", bits, shift), new)


def _joined(x: Tensor, point: Point, new: DType) -> Scalar:
    """Returns the bits of several narrow elements as one wide element."""
    parts = new.bits // x.dtype.bits
    whole = _UNSIGNED[new.bits]
    total = sc.const(0, whole)
    for part in range(parts):
        element = x.stored_at((*point[:-1], point[-1] * parts + part))
        bits = sc.cast(_bits_as(element, _UNSIGNED[x.dtype.bits]), whole)
        total = call("bitor", total, call("shl", bits, part * x.dtype.bits))
    return _from_bits(total, new)


def _bits_as(value: Scalar, unsigned: DType) -> Scalar:
    return value if value.dtype is unsigned else sc.bitcast(value, unsigned)


def _from_bits(bits: Scalar, new: DType) -> Scalar:
    unsigned = _UNSIGNED[new.bits]
    narrowed = bits if bits.dtype is unsigned else sc.cast(bits, unsigned)
    return narrowed if new is unsigned else sc.bitcast(narrowed, new)
