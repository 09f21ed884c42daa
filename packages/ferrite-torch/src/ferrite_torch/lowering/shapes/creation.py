"""Ops that make tensors from numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F32, F64, I64, DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.devices.facts import fills_memory
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import Element, Number, element_at, known_number, plain_number, refuse_opaque
from ferrite_torch.lowering.expressions import add, call, choose, eq, floor, lt, mul, number_of, sub
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import size_of, sizes_of, steps_of


def made(b: Builder, body: Callable[[Point], Scalar]) -> Tensor:
    """Returns a new tensor like the node's fake result, each element given by ``body``.

    Raises:
        Unlowered: it is on another device than the graph, or of a type kernels do not compute with.
    """
    fake = b.fake
    if fake.device.type != b.device:
        raise Unlowered(f"a new tensor on {fake.device.type} in a graph on {b.device}")
    refuse_opaque(dtype_of(fake.dtype))
    return b.loop(sizes_of(fake.shape), dtype_of(fake.dtype), body)


def filled(b: Builder, value: Element) -> Tensor:
    """Returns a new tensor like the node's fake result with one number, or the one element of a tensor, everywhere."""
    fake = b.fake
    dtype = dtype_of(fake.dtype).compute
    if isinstance(value, Tensor):
        refuse_opaque(value.dtype)
        return made(b, lambda point: element_at(value, sizes_of(fake.shape), point, dtype))
    if isinstance(value, Scalar):
        return made(b, lambda point: sc.cast(value, dtype))
    number = plain_number(value)
    return made(b, lambda point: b.constant(number, dtype))


@lowers("aten.full.default", "aten.full_like.default", "aten.fill.Scalar", "aten.fill.Tensor", "prims.full.default")
def full(b: Builder, like: Any, value: Element, **_: Any) -> Tensor:
    return filled(b, value)


@lowers("prims.full_like.default", "prims.fill.default")
def full_like(b: Builder, like: Any, value: Element, **_: Any) -> Tensor:
    return filled(b, value)


@lowers("aten.new_full.default")
def new_full(b: Builder, like: Any, size: Sequence[int], value: Element, **_: Any) -> Tensor:
    return filled(b, value)


@lowers("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten._efficientzerotensor.default")
def zeros(b: Builder, *_: Any, **__: Any) -> Tensor:
    """Returns zeros in memory; torch's own for a derivative that is none (`_efficientzerotensor`) have no memory."""
    return filled(b, 0)


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(b: Builder, *_: Any, **__: Any) -> Tensor:
    return filled(b, 1)


@lowers("aten.scalar_tensor.default", "prims.scalar_tensor.default")
def scalar_tensor(b: Builder, value: Element, **_: Any) -> Tensor:
    return filled(b, value)


@lowers(
    "aten.empty.memory_format",
    "aten.empty_strided.default",
    "aten.empty_like.default",
    "aten.empty_permuted.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "prims.empty.default",
    "prims.empty_strided.default",
    "prims.empty_permuted.default",
)
def empty(b: Builder, *_: Any, **__: Any) -> Tensor:
    """Returns uninitialised memory like the fake result; what the op takes its shape from is not computed for it.

    Under ``torch.use_deterministic_algorithms`` it has the value that eager mode fills such memory with.
    """
    fake = b.fake
    if fills_memory():
        return filled(b, _unlikely(fake.dtype))
    options = {"dtype": fake.dtype, "device": fake.device}
    made: Tensor = b.extern("aten.empty_strided.default", (sizes_of(fake.shape), steps_of(fake)), options, fake)
    return made


def _unlikely(dtype: torch.dtype) -> Element:
    """Returns what uninitialised memory is filled with where nothing may depend on what it held before."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype is torch.bool else torch.iinfo(dtype).max


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(b: Builder, *bounds: Any, **_: Any) -> Tensor:
    numbers = [plain_number(bound) for bound in bounds]
    start = numbers[0] if len(numbers) > 1 else 0
    return _ramp(b, start, numbers[2] if len(numbers) > 2 else 1)


@lowers("prims.iota.default")
def iota(b: Builder, length: int, *, start: int, step: int, **_: Any) -> Tensor:
    return _ramp(b, size_of(start), size_of(step))


def _ramp(b: Builder, start: Number, step: Number) -> Tensor:
    dtype = dtype_of(b.fake.dtype).compute

    def body(point: Point) -> Scalar:
        if not dtype.is_float:
            return number_of(point[0] * _whole(step) + _whole(start))
        if not isinstance(start, float) and not isinstance(step, float):
            return sc.cast(number_of(point[0] * step + start), dtype)
        return add(mul(sc.cast(number_of(point[0]), dtype), float(step)), float(start))

    return made(b, body)


def _whole(number: Any) -> Size:
    return int(number) if isinstance(number, float) else number


@lowers("aten.linspace.default")
def linspace(b: Builder, start: Any, end: Any, steps: int, **_: Any) -> Tensor:
    """Returns evenly spaced numbers, counted from the nearer end, so that both ends are exact."""
    dtype = dtype_of(b.fake.dtype)
    first, last, count = known_number(start), known_number(end), int(steps)
    compute = dtype.compute
    if not dtype.is_float:  # computed between integers, in the type that torch takes on this device
        first, last, compute = int(first), int(last), F64 if b.device == "cpu" else F32
    return made(b, lambda point: _spaced(point[0], first, last, count, compute))


@lowers("aten.logspace.default")
def logspace(b: Builder, start: Any, end: Any, steps: int, base: float = 10.0, **_: Any) -> Tensor:
    """Returns powers of ``base`` with evenly spaced exponents, computed in f64.

    For an integer type the ends are integers, as in eager, and a whole power of a whole base is a whole number: what
    the power function misses it by must not cost a unit when its fraction is cut off.
    """
    dtype = dtype_of(b.fake.dtype)
    first, last, root = known_number(start), known_number(end), float(known_number(base))
    if root < 0:
        raise Unlowered("powers of a negative base")
    is_whole = dtype.is_integer and root.is_integer()
    if dtype.is_integer:
        first, last = int(first), int(last)

    def body(point: Point) -> Scalar:
        exponent = _spaced(point[0], first, last, int(steps), F64)
        power = call("pow", sc.const(root, F64), exponent)
        return choose(eq(exponent, floor(exponent)), call("round", power), power) if is_whole else power

    return made(b, body)


def _spaced(position: Index, first: float, last: float, count: int, dtype: DType) -> Scalar:
    """Returns the number at a position among ``count`` evenly spaced ones."""
    if count == 1:
        return sc.const(first, dtype)
    step = (last - first) / max(count - 1, 1)
    rising = add(mul(sc.cast(number_of(position), dtype), step), first)
    falling = sub(last, mul(sc.cast(number_of(-position + (count - 1)), dtype), step))
    return choose(lt(number_of(position), sc.const(count // 2, I64)), rising, falling)


@lowers("aten.eye.default", "aten.eye.m")
def eye(b: Builder, *_: Any, **__: Any) -> Tensor:
    return made(b, lambda point: eq(number_of(point[0]), number_of(point[1])))


@lowers(
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
)
def nothing(b: Builder, *_: Any, **__: Any) -> None:
    """Emits nothing: what the op asserts is known from the capture."""
