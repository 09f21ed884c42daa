"""Rounding to a grid of integers and back: fake quantisation, and quantised tensors with their scale as an operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BOOL, F32
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Lowered
from ferrite_torch.lowering.elementwise import plain_number, refuse_opaque, rounded
from ferrite_torch.lowering.expressions import (
    add,
    both,
    call,
    choose,
    div,
    either,
    ge,
    is_nan,
    is_true,
    larger,
    le,
    mul,
    smaller,
    sub,
)
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.views import axis_of
from ferrite_torch.lowering.tensors import Point, Tensor

Parameter: TypeAlias = "Callable[[Point], Scalar | float]"
"""A scale or a zero point at a point of the tensor."""


def _per_tensor(value: Tensor | float) -> Parameter:
    """Returns a parameter that is a number, or the one element of a tensor."""
    if not isinstance(value, Tensor):
        number = plain_number(value)
        return lambda point: float(number)
    return lambda point: value.value_at(_first(value))


def _first(value: Tensor) -> tuple[Index, ...]:
    return (ix.constant(0),) * value.ndim


def _per_channel(values: Tensor, axis: int) -> Parameter:
    return lambda point: values.value_at((point[axis],))


def _inverse(scale: Scalar | float) -> Scalar | float:
    return div(1.0, scale) if isinstance(scale, Scalar) else 1.0 / scale


def _rounded(x: Scalar, inverse: Scalar | float, zero: Scalar | float, *, rounds_zero: bool = False) -> Scalar:
    """Returns the place of a number on the grid, as a float; with ``rounds_zero`` the zero is added before rounding."""
    shift, scaled = _like(x, zero), mul(x, _like(x, inverse))
    return call("round", add(scaled, shift)) if rounds_zero else add(call("round", scaled), shift)


def _faked(
    b: Builder,
    x: Tensor,
    scale: Parameter,
    zero: Parameter,
    low: int,
    high: int,
    *,
    by_channel: bool = False,
    rounds_zero: bool = False,
) -> Lowered:
    """Returns numbers rounded to a grid and held in its range, and which of them were in range.

    Without channels torch multiplies an integer by a 32-bit scale for doubles as well; one rounding shows on a grid.
    """
    refuse_opaque(x.dtype)

    def position(point: Point) -> Scalar:
        value, inverse = x.value_at(point), _inverse(scale(point))
        if not isinstance(inverse, Scalar):
            inverse = rounded(inverse, torch.float32)  # whatever the type of x; on a grid, every bit shows
        found = _rounded(value, inverse, zero(point), rounds_zero=rounds_zero)
        return choose(is_nan(value), float(low) - 1, found)

    def body(point: Point) -> Scalar:
        held = smaller(larger(position(point), float(low)), float(high))
        found = mul(sub(held, _like(held, zero(point))), _like(held, scale(point)))
        return found if by_channel else sc.cast(sc.cast(found, F32), found.dtype)

    def inside(point: Point) -> Scalar:
        return both(ge(position(point), float(low)), le(position(point), float(high)))

    return b.loop(x.shape, x.dtype, body), b.loop(x.shape, BOOL, inside)


@lowers("aten.fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(b: Builder, x: Tensor, scale: float, zero_point: int, low: int, high: int) -> Lowered:
    return _faked(b, x, _per_tensor(rounded(scale, torch.float32)), _per_tensor(zero_point), low, high)


@lowers("aten.fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize_channels(
    b: Builder, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int
) -> Lowered:
    axis = axis_of(axis, x.ndim)
    floats = zero_point.dtype.is_float
    return _faked(
        b, x, _per_channel(scale, axis), _per_channel(zero_point, axis), low, high, by_channel=True, rounds_zero=floats
    )


@lowers("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_by_tensors(
    b: Builder, x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, low: int, high: int
) -> Lowered:
    faked, mask = _faked(b, x, _per_tensor(scale), _per_tensor(zero_point), low, high)  # type: ignore[misc]
    assert faked is not None
    assert mask is not None

    def is_on() -> Scalar:
        return is_true(enabled.value_at(_first(enabled)))

    return (
        b.loop(x.shape, x.dtype, lambda point: choose(is_on(), faked.value_at(point), x.value_at(point))),
        b.loop(x.shape, BOOL, lambda point: either(mask.at(point), call("logical_not", is_on()))),
    )


def _quantised(b: Builder, x: Tensor, scale: Parameter, zero: Parameter, low: Parameter, high: Parameter) -> Tensor:
    refuse_opaque(x.dtype)

    def body(point: Point) -> Scalar:
        found = _rounded(x.value_at(point), _inverse(scale(point)), zero(point))
        return smaller(larger(found, _like(found, low(point))), _like(found, high(point)))

    return b.loop(x.shape, dtype_of(b.fake.dtype), body)


def _like(x: Scalar, parameter: Scalar | float) -> Scalar | float:
    return sc.cast(parameter, x.dtype) if isinstance(parameter, Scalar) else parameter


@lowers(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
)
def quantize(b: Builder, x: Tensor, scale: Any, zero_point: Any, low: Any, high: Any, dtype: Any) -> Tensor:
    return _quantised(b, x, *map(_per_tensor, (scale, zero_point, low, high)))


@lowers("quantized_decomposed.quantize_per_channel.default")
def quantize_channels(
    b: Builder, x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int, dtype: Any
) -> Tensor:
    axis = axis_of(axis, x.ndim)
    limits = _per_tensor(low), _per_tensor(high)
    return _quantised(b, x, _per_channel(scales, axis), _per_channel(zero_points, axis), *limits)


def _dequantised(b: Builder, x: Tensor, scale: Parameter, zero: Parameter | None) -> Tensor:
    result = dtype_of(b.fake.dtype)
    refuse_opaque(x.dtype, result)

    def body(point: Point) -> Scalar:
        value = sc.cast(x.at(point), result.compute)
        moved = value if zero is None else sub(value, _like(value, zero(point)))
        return mul(moved, _like(value, scale(point)))

    return b.loop(x.shape, result, body)


@lowers(
    "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)
def dequantize(b: Builder, x: Tensor, scale: Any, zero_point: Any, *_: Any, out_dtype: Any = None) -> Tensor:
    return _dequantised(b, x, _per_tensor(scale), _per_tensor(zero_point))


@lowers("quantized_decomposed.dequantize_per_channel.default")
def dequantize_channels(
    b: Builder, x: Tensor, scales: Tensor, zero_points: Tensor | None, axis: int, *_: Any, out_dtype: Any = None
) -> Tensor:
    axis = axis_of(axis, x.ndim)
    return _dequantised(
        b, x, _per_channel(scales, axis), None if zero_points is None else _per_channel(zero_points, axis)
    )
