"""Pooling over windows of fixed size along the last one to three axes, as reductions.

Gradients are reductions too: each input element looks at the windows that can hold it, so nothing is added atomically
and the order is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import I32, I64, DType
from ferrite_ir.language.graph import row_major
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import hint, is_provably_at_most, product
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Lowered
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import (
    both,
    choose,
    div,
    eq,
    guarded,
    is_between,
    is_nan,
    larger,
    lt,
    mul,
    number_of,
    smaller,
    sub,
)
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of

Sizes: TypeAlias = tuple[int, ...]


def per_axis(value: Any, rank: int, default: Sizes | None = None) -> Sizes:
    """Returns one number per axis from a number, one number in a list, a list of them, or none (then the default)."""
    numbers = sizes_of(value) if isinstance(value, (list, tuple)) else (int(value),)
    if not numbers:
        assert default is not None
        return default
    return numbers * rank if len(numbers) == 1 else numbers


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the windows of a pooling lie, per pooled axis.

    Attributes:
        size, stride, padding, dilation: of the windows.
        inputs, outputs: the sizes of the pooled axes before and after.
    """

    size: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    inputs: Sizes
    outputs: Sizes

    @property
    def rank(self) -> int:
        """Returns the number of pooled axes."""
        return len(self.size)

    def positions(self, output: Sequence[Index], step: Sequence[Index]) -> tuple[Index, ...]:
        """Returns the input position of a position in a window; it may lie in the padding."""
        rows = zip(output, self.stride, self.padding, step, self.dilation, strict=True)
        return tuple(o * stride - padding + s * dilation for o, stride, padding, s, dilation in rows)

    @property
    def steps(self) -> Sizes:
        """Returns how many positions are looked at for one window: its own, or all of an input that it is larger than.

        Which of the two changes nothing but how much is read, so the sizes at capture decide.
        """
        return tuple(self.inputs[axis] if self._is_larger(axis) else self.size[axis] for axis in range(self.rank))

    def _is_larger(self, axis: int) -> bool:
        """Returns whether a window has more positions than the input along an axis."""
        return hint(self.inputs[axis]) < hint(self.size[axis])

    def inside(self, output: Sequence[Index], step: Sequence[Index]) -> tuple[tuple[Index, ...], Scalar]:
        """Returns the input position that is looked at in a step, and whether the window holds it."""
        positions, conditions = [], []
        for axis, position in enumerate(self.positions(output, step)):
            if self._is_larger(axis):
                positions.append(step[axis])
                conditions.append(self.is_held(axis, output[axis], step[axis]))
            else:
                positions.append(position)
                conditions.append(is_between(position, 0, self.inputs[axis]))
        return tuple(positions), both(*conditions)

    @property
    def candidates(self) -> Sizes:
        """Returns how many windows are looked at for one input position: consecutive ones that can hold it, or all."""
        return tuple(self.outputs[axis] if self.are_few(axis) else self._overlapping(axis) for axis in range(self.rank))

    def _overlapping(self, axis: int) -> int:
        """Returns how many consecutive windows can hold one position of an axis."""
        span = self.dilation[axis] * (self.size[axis] - 1) + 1
        return -(-span // self.stride[axis])

    def has_few(self, axis: int) -> bool:
        """Returns whether there are fewer windows along an axis than positions in a window."""
        return hint(self.outputs[axis]) < hint(self.size[axis])

    def are_few(self, axis: int) -> bool:
        """Returns whether there are fewer windows along an axis than would reach a position of it in the middle."""
        return hint(self.outputs[axis]) < hint(self._overlapping(axis))

    def windows_at(self, position: Sequence[Index], step: Sequence[Index]) -> tuple[tuple[Index, ...], Scalar]:
        """Returns the window that is looked at in a step for an input position, and whether it can hold it.

        These are the last ones that can, from the last backwards, or all in order.
        """
        windows, conditions = [], []
        for axis in range(self.rank):
            if self.are_few(axis):
                windows.append(step[axis])
                conditions.append(self.is_held(axis, step[axis], position[axis]))
            else:
                last = (position[axis] + self.padding[axis]) // self.stride[axis]
                windows.append(last - step[axis])
                conditions.append(is_between(windows[-1], 0, self.outputs[axis]))
        return tuple(windows), both(*conditions)

    def holds(self, window: Sequence[Index], position: Sequence[Index]) -> Scalar:
        """Returns whether a window holds an input position."""
        return both(*(self.is_held(axis, w, p) for axis, (w, p) in enumerate(zip(window, position, strict=True))))

    def is_inside(self, positions: Sequence[Index]) -> Scalar:
        """Returns whether input positions are not in the padding."""
        return both(*(is_between(position, 0, size) for position, size in zip(positions, self.inputs, strict=True)))

    def is_held(self, axis: int, window: Index, position: Index) -> Scalar:
        """Returns whether a window holds an input position along one axis."""
        dilation = self.dilation[axis]
        away = self.away(axis, window, position)
        within = is_between(away, 0, dilation * (self.size[axis] - 1) + 1)
        return within if dilation == 1 else both(within, eq(number_of(away % dilation), 0))

    def away(self, axis: int, window: Index, position: Index) -> Index:
        """Returns how far an input position lies from where a window begins, along one axis."""
        return position + self.padding[axis] - window * self.stride[axis]

    @property
    def are_full(self) -> bool:
        """Returns whether no window reaches beyond the input or its padding is none."""
        return not any(self.padding) and all(
            is_provably_at_most((outputs - 1) * stride + size, inputs)
            for outputs, stride, size, inputs in zip(self.outputs, self.stride, self.size, self.inputs, strict=True)
        )


def _windows(
    rank: int,
    x_shape: Sequence[int],
    out_shape: Sequence[int],
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any = 1,
) -> Windows:
    kernel = per_axis(size, rank)
    return Windows(
        kernel,
        per_axis(stride, rank, kernel),
        per_axis(padding, rank),
        per_axis(dilation, rank),
        tuple(x_shape[-rank:]),
        tuple(out_shape[-rank:]),
    )


@lowers("aten.max_pool2d_with_indices.default")
def max_pool2d(b: Builder, x: Tensor, size: Any, *rest: Any) -> Lowered:
    return _largest(b, x, 2, size, *rest)


@lowers("aten.max_pool3d_with_indices.default")
def max_pool3d(b: Builder, x: Tensor, size: Any, *rest: Any) -> Lowered:
    return _largest(b, x, 3, size, *rest)


def _largest(
    b: Builder,
    x: Tensor,
    rank: int,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Lowered:
    """Returns the largest element of each window and its flat position in the pooled axes of the input."""
    fake, _ = b.fake
    w = _windows(rank, x.shape, sizes_of(fake.shape), size, stride, padding, dilation)

    return largest_of_places(b, x, w.steps, lambda point, step: w.inside(point[-rank:], step))


def largest_of_places(
    b: Builder,
    x: Tensor,
    steps: Sizes,
    positions: Callable[[Point, Point], tuple[tuple[Index, ...], Scalar]],
) -> Lowered:
    """Returns the largest element of each window and its flat position in the pooled axes of the input.

    ``positions`` gives, for a point of the result and a step in its window, the position in the pooled axes of the
    input, and whether it is one. Of equal elements the first is taken, as everywhere, but of several NaN the last, as
    torch's kernels go on to each: theirs are compared as complements, which fall where positions rise.
    """
    fake, position_fake = b.fake
    refuse_opaque(x.dtype)
    rank, compute = len(steps), x.dtype.compute
    strides = row_major(x.shape[-rank:])
    counts = I32 if is_provably_at_most(product(x.shape[-rank:]), I32.highest) else I64

    def bodies(point: Point, reduced: Point) -> tuple[Scalar, Scalar]:
        found, inside = positions(point, reduced)
        flat = sc.index_value(ix.linearize(found, strides), counts)
        value = x.value_at((*point[:-rank], *found))
        if not sc.is_constant(inside, True):
            # A position that is none loses every tie.
            value, flat = guarded(inside, value, compute.lowest), choose(inside, flat, counts.highest)
        if x.dtype.is_float:
            flat = choose(is_nan(value), sc.apply("bitnot", flat), flat)
        return value, flat

    def position_at(point: Point) -> Scalar:
        found = position.at(point)
        return choose(lt(found, 0), sc.apply("bitnot", found), found) if x.dtype.is_float else found

    value, position = b.reduce("argmax", sizes_of(fake.shape), steps, bodies)
    return b.loop(value.shape, x.dtype, value.at), b.loop(position.shape, dtype_of(position_fake.dtype), position_at)


@lowers("aten.max_pool2d_with_indices_backward.default")
def max_pool2d_backward(b: Builder, grad: Tensor, x: Tensor, *args: Any) -> Tensor:
    return _largest_backward(b, grad, x, 2, *args)


@lowers("aten.max_pool3d_with_indices_backward.default")
def max_pool3d_backward(b: Builder, grad: Tensor, x: Tensor, *args: Any) -> Tensor:
    return _largest_backward(b, grad, x, 3, *args)


def _largest_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    rank: int,
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    w = _windows(rank, x.shape, grad.shape, size, stride, padding, dilation)
    strides = row_major(w.inputs)

    def element(point: Point, window: Point, exists: Scalar) -> Scalar:
        mine = eq(indices.at(window), number_of(ix.linearize(point[-rank:], strides)))
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

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        window, exists = w.windows_at(point[-w.rank :], reduced)
        return (element(point, (*point[: -w.rank], *window), exists),)

    (total,) = b.reduce("sum", shape, w.candidates, bodies)
    return b.loop(shape, dtype, total.at)


@lowers("aten.avg_pool1d.default")
def avg_pool1d(b: Builder, x: Tensor, size: Any, *rest: Any) -> Tensor:
    return _mean(b, x, 1, size, *rest)


@lowers("aten.avg_pool2d.default")
def avg_pool2d(b: Builder, x: Tensor, size: Any, *rest: Any) -> Tensor:
    return _mean(b, x, 2, size, *rest)


@lowers("aten.avg_pool3d.default")
def avg_pool3d(b: Builder, x: Tensor, size: Any, *rest: Any) -> Tensor:
    return _mean(b, x, 3, size, *rest)


def _mean(
    b: Builder,
    x: Tensor,
    rank: int,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    fake = b.fake
    refuse_opaque(x.dtype)
    w = _windows(rank, x.shape, sizes_of(fake.shape), size, stride, padding)

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        positions, inside = w.inside(point[-rank:], reduced)
        value = sc.cast(x.at((*point[:-rank], *positions)), x.dtype.accumulate)
        return (guarded(inside, value, 0),)

    (total,) = b.reduce("sum", sizes_of(fake.shape), w.steps, bodies)

    def body(point: Point) -> Scalar:
        count = _count(w, point[-rank:], count_include_pad, divisor_override)
        value = total.at(point)
        return div(value, sc.cast(count, value.dtype)) if value.dtype.is_float else sc.apply("truncdiv", value, count)

    return b.loop(total.shape, x.dtype, body)


def _count(w: Windows, window: Sequence[Index], include_pad: bool, override: int | None) -> Scalar:
    """Returns what the sum over a window is divided by."""
    if override is not None:
        return sc.const(override, I64)
    if w.are_full:
        return sc.const(math.prod(w.size), I64)
    lengths = []
    for axis, output in enumerate(window):
        start = number_of(output * w.stride[axis] - w.padding[axis])
        end = smaller(sc.apply("add", start, sc.const(w.size[axis], I64)), w.inputs[axis] + w.padding[axis])
        if not include_pad:
            start, end = larger(start, 0), smaller(end, w.inputs[axis])
        lengths.append(sub(end, start))
    return reduce(mul, lengths)


@lowers("aten.avg_pool2d_backward.default")
def avg_pool2d_backward(b: Builder, grad: Tensor, x: Tensor, *args: Any) -> Tensor:
    return _mean_backward(b, grad, x, 2, *args)


@lowers("aten.avg_pool3d_backward.default")
def avg_pool3d_backward(b: Builder, grad: Tensor, x: Tensor, *args: Any) -> Tensor:
    return _mean_backward(b, grad, x, 3, *args)


def _mean_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    rank: int,
    size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    w = _windows(rank, x.shape, grad.shape, size, stride, padding)

    def element(point: Point, window: Point, exists: Scalar) -> Scalar:
        value = grad.value_at(window)
        count = sc.cast(_count(w, window[-rank:], count_include_pad, divisor_override), value.dtype)
        return guarded(both(exists, w.holds(window[-rank:], point[-rank:])), div(value, count), 0)

    return _gathered(b, x.shape, grad.dtype, w, element)
