"""Pooling and nearest-neighbour resampling over the last two axes, as folds over windows.

Gradients are folds too: each input element looks at the windows that can hold it, so nothing is added atomically and
the order is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ferrite_ir import index as ix
from ferrite_ir import scalar as sc
from ferrite_ir.dtypes import F32, I64, DType
from ferrite_ir.index import Index
from ferrite_ir.scalar import Scalar
from ferrite_torch.builder import Builder, Lowered, Unlowered, ints
from ferrite_torch.dtypes import dtype_of
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import (
    both,
    choose,
    div,
    eq,
    guarded,
    is_between,
    larger,
    mul,
    number_of,
    smaller,
    sub,
)
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.tensors import Point, Tensor

Pair: TypeAlias = tuple[int, int]


def pair_of(value: Any, default: Pair | None = None) -> Pair:
    """Returns a height and a width from a number, one number in a list, two, or none (then the default)."""
    numbers = ints(value) if isinstance(value, (list, tuple)) else (int(value),)
    if not numbers:
        assert default is not None
        return default
    return (numbers[0], numbers[-1])


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the windows of a pooling lie, per axis (height, width).

    Attributes:
        size, stride, padding, dilation: of the windows.
        inputs, outputs: the sizes of the pooled axes before and after.
    """

    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    inputs: Pair
    outputs: Pair

    def place(self, axis: int, output: Index, step: Index) -> Index:
        """Returns the input position of a place in a window; it may lie in the padding."""
        return output * self.stride[axis] - self.padding[axis] + step * self.dilation[axis]

    def is_inside(self, places: Sequence[Index]) -> Scalar:
        """Returns whether input positions are not in the padding."""
        return both(*(is_between(place, 0, size) for place, size in zip(places, self.inputs, strict=True)))

    @property
    def candidates(self) -> Pair:
        """Returns how many consecutive windows can hold one input position."""
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.size, strict=True)]
        return (-(-spans[0] // self.stride[0]), -(-spans[1] // self.stride[1]))

    def candidate(self, axis: int, position: Index, step: Index) -> Index:
        """Returns the ``step``-th last window that can hold an input position; it may not exist."""
        return (position + self.padding[axis]) // self.stride[axis] - step

    @property
    def are_full(self) -> bool:
        """Returns whether no window reaches beyond the input or its padding is none."""
        return self.padding == (0, 0) and all(
            (outputs - 1) * stride + size <= inputs
            for outputs, stride, size, inputs in zip(self.outputs, self.stride, self.size, self.inputs, strict=True)
        )


def _windows(
    x_shape: Sequence[int], out_shape: Sequence[int], size: Any, stride: Any, padding: Any, dilation: Any = 1
) -> Windows:
    kernel = pair_of(size)
    return Windows(
        kernel,
        pair_of(stride, kernel),
        pair_of(padding),
        pair_of(dilation),
        (x_shape[-2], x_shape[-1]),
        (out_shape[-2], out_shape[-1]),
    )


def _lowest(dtype: DType) -> float:
    if dtype.is_float:
        return -math.inf
    return -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0


@lowers("aten.max_pool2d_with_indices.default")
def max_pool(
    b: Builder,
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Lowered:
    """Returns the largest element of each window and its flat position in the input plane."""
    fake, position_fake = b.fake
    refuse_opaque(x.dtype)
    w = _windows(x.shape, ints(fake.shape), kernel_size, stride, padding, dilation)
    compute = x.dtype.compute

    def bodies(point: Point, fold: Point) -> tuple[Scalar, Scalar]:
        row, column = w.place(0, point[-2], fold[0]), w.place(1, point[-1], fold[1])
        inside = w.is_inside((row, column))
        flat = number_of(row * w.inputs[1] + column)
        value = x.value_at((*point[:-2], row, column))
        if sc.is_constant(inside, True):
            return value, flat
        # A place in the padding loses every tie.
        return guarded(inside, value, _lowest(compute)), choose(inside, flat, 1 << 62)

    value, position = b.fold("argmax", ints(fake.shape), w.size, bodies)
    return b.loop(value.shape, x.dtype, value.at), b.loop(position.shape, dtype_of(position_fake.dtype), position.at)


@lowers("aten.max_pool2d_with_indices_backward.default")
def max_pool_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    w = _windows(x.shape, grad.shape, kernel_size, stride, padding, dilation)

    def element(point: Point, window: Point, exists: Scalar) -> Scalar:
        mine = eq(indices.at(window), number_of(point[-2] * w.inputs[1] + point[-1]))
        return guarded(exists, choose(mine, grad.value_at(window), 0), 0)

    return _gathered(b, x.shape, grad.dtype, w, element)


def _gathered(
    b: Builder,
    shape: Sequence[int],
    dtype: DType,
    w: Windows,
    element: Callable[[Point, Point, Scalar], Scalar],
) -> Tensor:
    """Returns for each input position the sum over the windows that can hold it.

    ``element`` gets the point, the window's point, and whether that window exists.
    """
    refuse_opaque(dtype)

    def bodies(point: Point, fold: Point) -> tuple[Scalar]:
        row, column = w.candidate(0, point[-2], fold[0]), w.candidate(1, point[-1], fold[1])
        exists = both(is_between(row, 0, w.outputs[0]), is_between(column, 0, w.outputs[1]))
        return (element(point, (*point[:-2], row, column), exists),)

    (total,) = b.fold("sum", shape, w.candidates, bodies)
    return b.loop(shape, dtype, total.at)


@lowers("aten.avg_pool2d.default")
def avg_pool(
    b: Builder,
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    fake = b.fake
    refuse_opaque(x.dtype)
    w = _windows(x.shape, ints(fake.shape), kernel_size, stride, padding)

    def bodies(point: Point, fold: Point) -> tuple[Scalar]:
        places = w.place(0, point[-2], fold[0]), w.place(1, point[-1], fold[1])
        value = sc.cast(x.at((*point[:-2], *places)), x.dtype.accumulate)
        inside = w.is_inside(places)
        return (value if sc.is_constant(inside, True) else guarded(inside, value, 0),)

    (total,) = b.fold("sum", ints(fake.shape), w.size, bodies)

    def body(point: Point) -> Scalar:
        count = _count(w, point[-2:], count_include_pad, divisor_override)
        value = total.at(point)
        return div(value, sc.cast(count, value.dtype)) if value.dtype.is_float else sc.apply("truncdiv", value, count)

    return b.loop(total.shape, x.dtype, body)


def _count(w: Windows, window: Sequence[Index], include_pad: bool, override: int | None) -> Scalar:
    """Returns what the sum over a window is divided by."""
    if override is not None:
        return sc.const(override, I64)
    if w.are_full:
        return sc.const(w.size[0] * w.size[1], I64)
    lengths = []
    for axis, output in enumerate(window):
        start = number_of(output * w.stride[axis] - w.padding[axis])
        end = smaller(sc.apply("add", start, sc.const(w.size[axis], I64)), w.inputs[axis] + w.padding[axis])
        if not include_pad:
            start, end = larger(start, 0), smaller(end, w.inputs[axis])
        lengths.append(sub(end, start))
    return mul(*lengths)


@lowers("aten.avg_pool2d_backward.default")
def avg_pool_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    w = _windows(x.shape, grad.shape, kernel_size, stride, padding)

    def element(point: Point, window: Point, exists: Scalar) -> Scalar:
        holds = [
            is_between(position + w.padding[axis] - window[axis - 2] * w.stride[axis], 0, w.size[axis])
            for axis, position in enumerate(point[-2:])
        ]
        value = grad.value_at(window)
        count = sc.cast(_count(w, window[-2:], count_include_pad, divisor_override), value.dtype)
        return guarded(both(exists, *holds), div(value, count), 0)

    return _gathered(b, x.shape, grad.dtype, w, element)


@dataclass(frozen=True, slots=True)
class Shares:
    """How ``inputs`` positions are shared out among ``outputs`` windows of nearly equal length that cover them.

    The positions of output ``o`` are those from ``floor(o * inputs / outputs)`` up to, and without,
    ``ceil((o + 1) * inputs / outputs)``.
    """

    inputs: int
    outputs: int

    def start(self, output: Index) -> Index:
        """Returns the first position of an output."""
        return (output * self.inputs) // self.outputs

    def end(self, output: Index) -> Index:
        """Returns the position behind the last one of an output."""
        return ((output + 1) * self.inputs + (self.outputs - 1)) // self.outputs

    @property
    def longest(self) -> int:
        """Returns the length of the longest window."""
        if self.inputs % self.outputs == 0:
            return self.inputs // self.outputs
        ends = (-(-(o + 1) * self.inputs // self.outputs) for o in range(self.outputs))
        return max(end - o * self.inputs // self.outputs for o, end in enumerate(ends))

    @property
    def reversed(self) -> Shares:
        """Returns the outputs that each input position goes to: the same rule the other way round."""
        return Shares(self.outputs, self.inputs)


def _shares(inputs: Sequence[int], outputs: Sequence[int]) -> tuple[Shares, Shares]:
    return Shares(inputs[-2], outputs[-2]), Shares(inputs[-1], outputs[-1])


@lowers("aten._adaptive_avg_pool2d.default")
def adaptive_avg_pool(b: Builder, x: Tensor, output_size: Any) -> Tensor:
    fake = b.fake
    refuse_opaque(x.dtype)
    shares = _shares(x.shape, ints(fake.shape))

    def bodies(point: Point, fold: Point) -> tuple[Scalar]:
        places, inside = _shared(shares, point[-2:], fold)
        value = x.value_at((*point[:-2], *places))
        return (value if sc.is_constant(inside, True) else guarded(inside, value, 0),)

    (total,) = b.fold("sum", ints(fake.shape), tuple(share.longest for share in shares), bodies)
    return b.loop(
        total.shape, x.dtype, lambda point: div(total.at(point), _share_size(shares, point[-2:], x.dtype.compute))
    )


def _shared(shares: tuple[Shares, Shares], window: Sequence[Index], fold: Point) -> tuple[list[Index], Scalar]:
    """Returns the positions in two windows and whether both belong to them."""
    places: list[Index] = []
    tests: list[Scalar] = []
    for share, output, step in zip(shares, window, fold, strict=True):
        place = share.start(output) + step
        places.append(place)
        if share.inputs % share.outputs:
            tests.append(is_between(share.end(output) - place, 1, None))
    return places, both(*tests)


def _share_size(shares: tuple[Shares, Shares], window: Sequence[Index], dtype: DType) -> Scalar:
    lengths = [number_of(share.end(output) - share.start(output)) for share, output in zip(shares, window, strict=True)]
    return sc.cast(mul(*lengths), dtype)


@lowers("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool_backward(b: Builder, grad: Tensor, x: Tensor) -> Tensor:
    refuse_opaque(x.dtype)
    shares = _shares(x.shape, grad.shape)
    there = shares[0].reversed, shares[1].reversed

    def bodies(point: Point, fold: Point) -> tuple[Scalar]:
        window, inside = _shared(there, point[-2:], fold)
        value = grad.value_at((*point[:-2], *window))
        value = div(value, _share_size(shares, window, value.dtype))
        return (value if sc.is_constant(inside, True) else guarded(inside, value, 0),)

    (total,) = b.fold("sum", x.shape, tuple(share.longest for share in there), bodies)
    return b.loop(x.shape, x.dtype, total.at)


def nearest(output: Index, inputs: int, outputs: int, scale: float | None, *, exact: bool) -> Index:
    """Returns the input position that an output position of nearest-neighbour resampling shows.

    A ratio that is no integer is multiplied and rounded in f32, as torch does it.
    """
    usual = scale is None or scale == outputs / inputs
    if usual and outputs % inputs == 0:
        return output // (outputs // inputs)
    if usual and inputs % outputs == 0 and not exact:
        return output * (inputs // outputs)
    step = inputs / outputs if scale is None or scale <= 0 else 1 / scale

    position = sc.cast(number_of(output), F32)
    if exact:
        position = sc.apply("add", position, sc.const(0.5, F32))
    found = sc.cast(sc.apply("floor", mul(position, step)), I64)
    return ix.indirect(smaller(found, inputs - 1), inputs)


def _resampled(b: Builder, x: Tensor, scales: Sequence[float | None], *, exact: bool) -> Tensor:
    fake = b.fake
    refuse_opaque(x.dtype)
    outputs = ints(fake.shape)
    lead = x.ndim - len(scales)

    def body(point: Point) -> Scalar:
        places = [
            nearest(point[axis], x.shape[axis], outputs[axis], scale, exact=exact)
            for axis, scale in enumerate(scales, start=lead)
        ]
        return x.at((*point[:lead], *places))

    return b.loop(outputs, x.dtype, body)


def _scales(given: Sequence[float | None], rank: int) -> list[float | None]:
    return [*given, *[None] * (rank - len(given))]


@lowers("aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten.upsample_nearest3d.default")
def upsample_nearest(b: Builder, x: Tensor, output_size: Any, *scales: float | None) -> Tensor:
    return _resampled(b, x, _scales(scales, x.ndim - 2), exact=False)


@lowers(
    "aten._upsample_nearest_exact1d.default",
    "aten._upsample_nearest_exact2d.default",
    "aten._upsample_nearest_exact3d.default",
)
def upsample_nearest_exact(b: Builder, x: Tensor, output_size: Any, *scales: float | None) -> Tensor:
    return _resampled(b, x, _scales(scales, x.ndim - 2), exact=True)


@lowers("aten.upsample_nearest2d_backward.default")
def upsample_nearest_backward(
    b: Builder, grad: Tensor, output_size: Any, input_size: Any, *scales: float | None
) -> Tensor:
    """Returns the gradients of the pixels that each input pixel was shown at, added up.

    Raises:
        Unlowered: the sizes are no multiples, so that the pixels are not a rectangle of fixed size.
    """
    outputs, inputs = ints(output_size), ints(input_size)[-2:]
    factors = [o // i for o, i in zip(outputs, inputs, strict=True)]
    if any(o != i * f for o, i, f in zip(outputs, inputs, factors, strict=True)):
        raise Unlowered("a resampling by a fraction")
    if any(scale is not None and scale != factor for scale, factor in zip(scales, factors, strict=False)):
        raise Unlowered("a resampling with a scale that is not the ratio of the sizes")
    refuse_opaque(grad.dtype)
    shape = ints(input_size)

    def bodies(point: Point, fold: Point) -> tuple[Scalar]:
        places = [index * factor + step for index, factor, step in zip(point[-2:], factors, fold, strict=True)]
        return (grad.value_at((*point[:-2], *places)),)

    (total,) = b.fold("sum", shape, factors, bodies)
    return b.loop(shape, grad.dtype, total.at)
