"""Resampling without aliases: an output is the mean of all inputs under a kernel that is widened when shrinking.

The axes are resampled one after the other, which costs the sum of the kernels' lengths and not their product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import I64, DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.expressions import (
    absolute,
    add,
    both,
    choose,
    div,
    guarded,
    larger,
    le,
    lt,
    mul,
    number_of,
    smaller,
    sub,
)
from ferrite_torch.lowering.pointwise.special_functions import sinc
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.shapes.views import replaced
from ferrite_torch.lowering.spatial.resampling import (
    Axis,
    axis_between,
    cubic_far,
    cubic_near,
    refuse_integers,
    scales_of,
)
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of

Curve = Callable[[Scalar], Scalar]
"""A weight by the distance from the centre, which is not negative and below half the kernel's width."""


def _hat(distance: Scalar) -> Scalar:
    return larger(sub(1.0, distance), 0.0)


def _keys(distance: Scalar) -> Scalar:
    slope = -0.5  # that of Pillow, which torch follows here; without antialiasing it is -0.75
    far = choose(lt(distance, 2.0), cubic_far(distance, slope), 0.0)
    return choose(lt(distance, 1.0), cubic_near(distance, slope), far)


def _lanczos(distance: Scalar) -> Scalar:
    wave = mul(sinc(distance), sinc(div(distance, 3.0)))
    return choose(lt(distance, 3.0), wave, 0.0)


@dataclass(frozen=True, slots=True)
class Kernel:
    """How much an input counts by its distance from an output's centre.

    Attributes:
        curve: the weight by distance, in steps of the coarser of the two grids.
        radius: distance beyond which it is zero.
    """

    curve: Curve
    radius: int


HAT, KEYS, LANCZOS = Kernel(_hat, 1), Kernel(_keys, 2), Kernel(_lanczos, 3)


@dataclass(frozen=True, slots=True)
class Blur:
    """A kernel laid over an axis.

    Attributes:
        axis: the axis.
        kernel: the kernel.
    """

    axis: Axis
    kernel: Kernel

    @property
    def support(self) -> float:
        """Returns the radius of the kernel in input positions."""
        return self.kernel.radius * max(self.axis.known_step, 1.0)

    @property
    def length(self) -> int:
        """Returns how many inputs an output reads at most."""
        return min(math.ceil(self.support) * 2 + 1, int(self.axis.inputs))

    @property
    def reach(self) -> int:
        """Returns how far an output's centre is at most from an input that it reads."""
        return math.ceil(self.support) + 1

    def _centre(self, output: Index) -> Scalar:
        return mul(add(sc.cast(number_of(output), self.axis.dtype), 0.5), self.axis.known_step)

    def bounds(self, output: Index) -> tuple[Scalar, Scalar]:
        """Returns the first input that an output reads, and the one behind the last."""
        centre = self._centre(output)
        first = larger(sc.cast(add(sub(centre, self.support), 0.5), I64), 0)
        return first, smaller(sc.cast(add(add(centre, self.support), 0.5), I64), self.axis.inputs)

    def raw_weight(self, output: Index, position: Scalar) -> Scalar:
        """Returns the kernel at an input position, not yet divided by the sum over all positions that are read."""
        away = sub(add(sc.cast(position, self.axis.dtype), 0.5), self._centre(output))
        return self.kernel.curve(mul(absolute(away), 1 / max(self.axis.known_step, 1.0)))


def _weight_sums(b: Builder, blur: Blur) -> Tensor:
    """Returns for each output the sum of the kernel over what it reads."""

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        first, end = blur.bounds(point[0])
        position = add(first, number_of(reduced[0]))
        return (choose(lt(position, end), blur.raw_weight(point[0], position), 0.0),)

    (sums,) = b.reduce("sum", (blur.axis.outputs,), (blur.length,), bodies)
    return sums


def _blurs(
    inputs: Sequence[int], outputs: Sequence[int], kernel: Kernel, x: Tensor, aligns_corners: bool, scales: Any
) -> list[Blur]:
    refuse_integers(x)
    rows = zip(inputs[2:], outputs[2:], scales_of(scales, 2), strict=True)
    axes = [axis_between(*row, x.dtype.compute, aligns_corners=aligns_corners) for row in rows]
    # Aligned corners change how large a step is, not where the first output lies.
    return [Blur(replace(axis, aligns_corners=False), kernel) for axis in axes]


def _blurred(b: Builder, x: Tensor, kernel: Kernel, aligns_corners: bool, scales: Sequence[Any]) -> Tensor:
    height, width = _blurs(x.shape, sizes_of(b.fake.shape), kernel, x, aligns_corners, scales)
    across = _blurred_along(b, x, 3, width, x.dtype.compute)
    return _blurred_along(b, across, 2, height, x.dtype)


def _blurred_along(b: Builder, x: Tensor, axis: int, blur: Blur, dtype: DType) -> Tensor:
    sums = _weight_sums(b, blur)

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        first, end = blur.bounds(point[axis])
        position = add(first, number_of(reduced[0]))
        value = x.value_at(replaced(point, axis, ix.indirect(position, blur.axis.inputs)))
        return (guarded(lt(position, end), mul(value, blur.raw_weight(point[axis], position)), 0.0),)

    (total,) = b.reduce("sum", replaced_size(x.shape, axis, blur.axis.outputs), (blur.length,), bodies)
    return b.loop(total.shape, dtype, lambda point: div(total.at(point), sums.at((point[axis],))))


def _blurred_backward(
    b: Builder, grad: Tensor, shape: Sequence[int], kernel: Kernel, aligns_corners: bool, scales: Sequence[Any]
) -> Tensor:
    height, width = _blurs(shape, grad.shape, kernel, grad, aligns_corners, scales)
    down = _spread_along(b, grad, 2, height, grad.dtype.compute)
    return _spread_along(b, down, 3, width, grad.dtype)


def _spread_along(b: Builder, grad: Tensor, axis: int, blur: Blur, dtype: DType) -> Tensor:
    """Returns for each input position along one axis the gradients of the outputs that read it, weighted, added up."""
    sums = _weight_sums(b, blur)

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        output, exists = blur.axis.reader(blur.reach, point[axis], reduced[0])
        position = number_of(point[axis])
        first, end = blur.bounds(output)
        weight = div(blur.raw_weight(output, position), sums.at((output,)))
        value = mul(grad.value_at(replaced(point, axis, output)), weight)
        return (guarded(both(exists, le(first, position), lt(position, end)), value, 0.0),)

    shape = replaced_size(grad.shape, axis, blur.axis.inputs)
    (total,) = b.reduce("sum", shape, (blur.axis.reader_count(blur.reach),), bodies)
    return b.loop(shape, dtype, total.at)


def replaced_size(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    """Returns a shape with one axis of another size."""
    return (*shape[:axis], size, *shape[axis + 1 :])


_KERNELS = {"bilinear": HAT, "bicubic": KEYS, "lanczos": LANCZOS}


def _enter(name: str, kernel: Kernel) -> None:
    @lowers(f"aten._upsample_{name}2d_aa.default")
    def upsample(b: Builder, x: Tensor, output_size: Any, aligns_corners: bool, *scales: Any) -> Tensor:
        return _blurred(b, x, kernel, aligns_corners, scales)

    @lowers(f"aten._upsample_{name}2d_aa_backward.default")
    def upsample_backward(
        b: Builder, grad: Tensor, output_size: Any, input_size: Any, aligns_corners: bool, *scales: Any
    ) -> Tensor:
        return _blurred_backward(b, grad, sizes_of(input_size), kernel, aligns_corners, scales)


for _name, _kernel in _KERNELS.items():
    _enter(_name, _kernel)
