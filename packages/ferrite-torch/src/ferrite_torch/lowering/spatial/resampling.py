"""Resampling to another size along the last one to three axes: nearest neighbours, linear, cubic.

Every gradient is a reduction: an input position looks at the outputs that can read it, and asks each with which weight
it does. Nothing is added atomically, so the order is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, reduce
from typing import Any, TypeAlias

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F32, I64, DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, quotient
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import (
    add,
    both,
    choose,
    div,
    eq,
    floor,
    guarded,
    is_between,
    larger,
    mul,
    number_of,
    smaller,
    sub,
)
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import scaled_size, sizes_of

Tap: TypeAlias = tuple[Scalar, Scalar | None]
"""An input position (i64) and the weight that it is read with; None is one."""

_LARGEST_DENOMINATOR = 1 << 12
_LARGEST_AXIS = 1 << 31
"""The size that an axis of symbolic size is taken to have at most, to see how far rounding can lead."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One resampled axis.

    Attributes:
        inputs, outputs: sizes.
        step: input positions per output; where sizes are symbolic it may be what the program computes.
        aligns_corners: whether the centres of the first and last elements stay where they are; else the outer edges do.
        dtype: what positions and weights are computed in.
        is_copied: whether every output is the input at the same position.
    """

    inputs: Size
    outputs: Size
    step: float | Scalar
    aligns_corners: bool
    dtype: DType
    is_copied: bool = False

    def source(self, output: Index) -> Scalar:
        """Returns the input position that an output is centred on; it may lie half an element outside."""
        index = sc.cast(number_of(output), self.dtype)
        return mul(index, self.step) if self.aligns_corners else sub(mul(add(index, 0.5), self.step), 0.5)

    def reader_count(self, reach: int) -> Size:
        """Returns how many consecutive outputs can have their centre nearer than ``reach`` to one input position."""
        if self.step == 0:
            return self.outputs
        return math.ceil(2 * reach / self._fraction) + 2 * self._margin

    def reader(self, reach: int, position: Index, step: Index) -> tuple[Index, Scalar]:
        """Returns the ``step``-th output whose centre can be that near to an input position, and whether it exists."""
        output = self._first_reader(reach, position) + step
        return output, is_between(output, 0, self.outputs)

    def _first_reader(self, reach: int, position: Index) -> Index:
        if self.step == 0:
            return ix.constant(0)
        # The first output with ``step * output + offset > position - reach``, the offset being ``step / 2 - 1 / 2``.
        up, down = self._fraction.numerator, self._fraction.denominator
        if self.aligns_corners:
            before = ((position - reach) * down) // up
        else:
            before = ((position - reach) * (2 * down) + (down - up)) // (2 * up)
        return before + (1 - self._margin)

    @property
    def known_step(self) -> float:
        """Returns the step as a number; raises `Undecided` of the two sizes where only the program computes it."""
        return int(self.inputs) / int(self.outputs) if isinstance(self.step, Scalar) else self.step

    @property
    def _fraction(self) -> Fraction:
        exact = Fraction(self.known_step)
        return exact.limit_denominator(_LARGEST_DENOMINATOR) or exact

    @property
    def _margin(self) -> int:
        """Returns by how many outputs the fraction may put the last output at the wrong position."""
        outputs = self.outputs if isinstance(self.outputs, int) else _LARGEST_AXIS
        drift = abs(Fraction(self.known_step) / self._fraction - 1) * outputs
        return 0 if drift < Fraction(1, 10**6) else math.ceil(drift)


def axis_between(
    inputs: Size, outputs: Size, scale: Any, dtype: DType, *, aligns_corners: bool = False, copies: bool = False
) -> Axis:
    """Returns a resampled axis as torch lays it; ``scale`` is outputs per input where the user said so, else None.

    With ``copies`` nothing is computed along an axis whose size stays, whatever the scale.

    Raises:
        Unlowered: the scale puts outputs beyond the end of the input.
    """
    if copies and inputs == outputs:
        return Axis(inputs, outputs, 1.0, True, dtype, is_copied=True)
    if aligns_corners:
        step = 0.0 if outputs == 1 else ratio(inputs - 1, outputs - 1, dtype)
        return Axis(inputs, outputs, step, True, dtype)
    if scale is None or scale <= 0:
        return Axis(inputs, outputs, ratio(inputs, outputs, dtype), False, dtype)
    step = 1 / float(scale)
    # The largest size that the scale makes never leads beyond; of others it has to be known.
    if outputs != scaled_size(inputs, scale) and (int(outputs) - 0.5) * step - 0.5 >= int(inputs):
        raise Unlowered("a resampling with a scale that leads beyond the input")
    return Axis(inputs, outputs, step, False, dtype)


def ratio(inputs: Size, outputs: Size, dtype: DType) -> float | Scalar:
    """Returns how many inputs there are to an output: a number where sizes, symbolic or not, have one ratio."""
    if isinstance(inputs, int) and isinstance(outputs, int):
        return inputs / outputs
    for whole, step in ((quotient(outputs, inputs), -1), (quotient(inputs, outputs), 1)):
        if isinstance(whole, int):
            return float(whole) ** step
    return div(sc.cast(number_of(ix.constant(inputs)), dtype), sc.cast(number_of(ix.constant(outputs)), dtype))


def linear_taps(axis: Axis, output: Index) -> list[Tap]:
    """Returns the two neighbours of an output's centre; those of one beyond the border are both the border."""
    if axis.is_copied:
        return [(number_of(output), None)]
    centre = axis.source(output)
    is_inside = axis.aligns_corners or (isinstance(axis.step, float) and axis.step >= 1)
    centre = centre if is_inside else larger(centre, 0)
    left = smaller(sc.cast(centre, I64), axis.inputs - 1)
    right = smaller(add(left, 1), axis.inputs - 1)
    share = sub(centre, sc.cast(left, axis.dtype))
    return [(left, sub(1.0, share)), (right, share)]


_CUBIC = -0.75
"""The slope at distance one of the kernel of Keys, "Cubic convolution interpolation for digital image processing"."""


def cubic_taps(axis: Axis, output: Index) -> list[Tap]:
    """Returns the four neighbours of an output's centre; those beyond the border are the border."""
    centre = axis.source(output)
    base = floor(centre)
    share = sub(centre, base)
    left = sc.cast(base, I64)
    weights = cubic_weights(share, _CUBIC)
    indices = [smaller(larger(add(left, step), 0), axis.inputs - 1) for step in (-1, 0, 1, 2)]
    return list(zip(indices, weights, strict=True))


def cubic_weights(share: Scalar, slope: float) -> list[Scalar]:
    """Returns the weights of the four positions around a position ``share`` behind the second of them."""
    rest = sub(1.0, share)
    return [
        cubic_far(add(share, 1.0), slope),
        cubic_near(share, slope),
        cubic_near(rest, slope),
        cubic_far(add(rest, 1.0), slope),
    ]


def cubic_near(distance: Scalar, slope: float) -> Scalar:
    """Returns the weight of a position at most one away."""
    return add(mul(mul(sub(mul(distance, slope + 2), slope + 3), distance), distance), 1.0)


def cubic_far(distance: Scalar, slope: float) -> Scalar:
    """Returns the weight of a position between one and two away."""
    return sub(mul(add(mul(sub(mul(distance, slope), 5 * slope), distance), 8 * slope), distance), 4 * slope)


@dataclass(frozen=True, slots=True)
class Interpolation:
    """A way to compute an output from its neighbours.

    Attributes:
        taps: the input positions that an output reads along an axis.
        reach: how far from its centre they are at most.
        copies: whether axes whose size stays are copied.
    """

    taps: Callable[[Axis, Index], list[Tap]]
    reach: int
    copies: bool

    def weight(self, axis: Axis, output: Index, position: Index) -> Scalar:
        """Returns with which weight an output reads an input position."""
        wanted = number_of(position)
        shares = [
            choose(eq(index, wanted), sc.const(1.0, axis.dtype) if weight is None else weight, 0.0)
            for index, weight in self.taps(axis, output)
        ]
        return reduce(add, shares)


LINEAR = Interpolation(linear_taps, 1, copies=True)
CUBIC = Interpolation(cubic_taps, 2, copies=False)


def weighted(
    x: Tensor, lead: Sequence[Index], taps: Sequence[Sequence[Tap]], indices: tuple[Index, ...] = ()
) -> Scalar:
    """Returns the elements of ``x`` at all combinations of taps, weighted and added up, the last axis first."""
    axis = len(indices)
    if axis == len(taps):
        return x.value_at((*lead, *indices))
    size = x.shape[len(lead) + axis]
    terms = []
    for index, weight in taps[axis]:
        value = weighted(x, lead, taps, (*indices, ix.indirect(index, size)))
        terms.append(value if weight is None else mul(value, weight))
    return reduce(add, terms)


def _interpolated(b: Builder, x: Tensor, way: Interpolation, aligns_corners: bool, scales: Sequence[Any]) -> Tensor:
    refuse_integers(x)
    outputs = sizes_of(b.fake.shape)
    axes = _axes(x.shape, outputs, scales, x.dtype.compute, way, aligns_corners)

    def body(point: Point) -> Scalar:
        return weighted(x, point[:2], [way.taps(axis, index) for axis, index in zip(axes, point[2:], strict=True)])

    return b.loop(outputs, x.dtype, body)


def refuse_integers(x: Tensor) -> None:
    """Checks that elements are floats: torch weighs integers in fixed-point arithmetic of its own.

    Raises:
        Unlowered: they are not.
    """
    if not x.dtype.is_float:
        raise Unlowered(f"an interpolation of {x.dtype}")


def _axes(
    inputs: Sequence[int],
    outputs: Sequence[int],
    scales: Sequence[Any],
    dtype: DType,
    way: Interpolation,
    aligns_corners: bool,
) -> list[Axis]:
    rows = zip(inputs[2:], outputs[2:], scales_of(scales, len(inputs) - 2), strict=True)
    return [axis_between(*row, dtype, aligns_corners=aligns_corners, copies=way.copies) for row in rows]


def scales_of(given: Sequence[Any], rank: int) -> list[Any]:
    """Returns one scale per axis; None where none is given."""
    return [*given, *[None] * (rank - len(given))]


def _interpolated_backward(
    b: Builder, grad: Tensor, shape: Sequence[int], way: Interpolation, aligns_corners: bool, scales: Sequence[Any]
) -> Tensor:
    refuse_integers(grad)
    axes = _axes(shape, grad.shape, scales, grad.dtype.compute, way, aligns_corners)
    return gathered(b, grad, shape, [Readers(axis, way.reach, partial(way.weight, axis)) for axis in axes])


@dataclass(frozen=True, slots=True)
class Readers:
    """The outputs that can read an input position, along one axis.

    Attributes:
        axis: the axis.
        reach: how far the centre of an output is from what it reads at most.
        weight: with which weight an output reads an input position; zero if it does not.
        slack: how many outputs more may do so, by rounding.
    """

    axis: Axis
    reach: int
    weight: Callable[[Index, Index], Scalar]
    slack: int = 0

    @property
    def count(self) -> Size:
        """Returns how many outputs are asked for each input position."""
        return 1 if self.axis.is_copied else self.axis.reader_count(self.reach) + self.slack


def gathered(b: Builder, grad: Tensor, shape: Sequence[int], readers: Sequence[Readers]) -> Tensor:
    """Returns for each input element the gradients of the outputs that read it, weighted and added up.

    ``readers`` are those along the last axes.
    """
    rank = len(readers)

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        outputs: list[Index] = []
        tests: list[Scalar] = []
        weights: list[Scalar] = []
        for reader, position, step in zip(readers, point[-rank:], reduced, strict=True):
            if reader.axis.is_copied:
                outputs.append(position)
                continue
            output, exists = reader.axis.reader(reader.reach, position, step)
            outputs.append(output)
            tests.append(exists)
            weights.append(reader.weight(output, position))
        value = reduce(mul, weights, grad.value_at((*point[:-rank], *outputs)))
        inside = both(*tests)
        return (guarded(inside, value, 0),)

    (total,) = b.reduce("sum", shape, tuple(reader.count for reader in readers), bodies)
    return b.loop(shape, grad.dtype, total.at)


@lowers("aten.upsample_linear1d.default", "aten.upsample_bilinear2d.default", "aten.upsample_trilinear3d.default")
def upsample_linear(b: Builder, x: Tensor, output_size: Any, aligns_corners: bool, *scales: Any) -> Tensor:
    return _interpolated(b, x, LINEAR, aligns_corners, scales)


@lowers("aten.upsample_bicubic2d.default")
def upsample_cubic(b: Builder, x: Tensor, output_size: Any, aligns_corners: bool, *scales: Any) -> Tensor:
    if x.shape == sizes_of(b.fake.shape) and b.device != "cpu":
        return b.loop(x.shape, x.dtype, x.at)  # torch's CUDA kernel copies then, whatever the scale
    return _interpolated(b, x, CUBIC, aligns_corners, scales)


@lowers(
    "aten.upsample_linear1d_backward.default",
    "aten.upsample_bilinear2d_backward.default",
    "aten.upsample_trilinear3d_backward.default",
)
def upsample_linear_backward(
    b: Builder, grad: Tensor, output_size: Any, input_size: Any, aligns_corners: bool, *scales: Any
) -> Tensor:
    return _interpolated_backward(b, grad, sizes_of(input_size), LINEAR, aligns_corners, scales)


@lowers("aten.upsample_bicubic2d_backward.default")
def upsample_cubic_backward(
    b: Builder, grad: Tensor, output_size: Any, input_size: Any, aligns_corners: bool, *scales: Any
) -> Tensor:
    if grad.shape == sizes_of(input_size):
        return b.loop(grad.shape, grad.dtype, grad.at)  # as torch's kernels do, whatever the scale
    return _interpolated_backward(b, grad, sizes_of(input_size), CUBIC, aligns_corners, scales)


def nearest(output: Index, inputs: Size, outputs: Size, scale: float | None, *, exact: bool) -> Index:
    """Returns the input position that an output position of nearest-neighbour resampling shows.

    A ratio that is no integer is multiplied and rounded in f32, as torch does it.
    """
    usual = is_usual(inputs, outputs, scale)
    larger_by, smaller_by = (quotient(outputs, inputs), quotient(inputs, outputs)) if usual else (None, None)
    if larger_by is not None:
        return ix.floordiv(output, larger_by)
    if smaller_by is not None and not exact:
        shown: Index = output * smaller_by
        return shown
    step = ratio(inputs, outputs, F32) if scale is None or scale <= 0 else 1 / scale
    position = sc.cast(number_of(output), F32)
    if exact:
        position = add(position, 0.5)
    found = sc.cast(floor(mul(position, step)), I64)
    return ix.indirect(smaller(found, inputs - 1), inputs)


def is_usual(inputs: Size, outputs: Size, scale: float | None) -> bool:
    """Returns whether a scale, if there is one, is the ratio of the sizes."""
    if scale is None:
        return True
    step = ratio(inputs, outputs, F32)
    return isinstance(step, float) and (scale == outputs / inputs if isinstance(inputs, int) else scale * step == 1)


def _nearest_rows(
    b: Builder, inputs: Sequence[int], outputs: Sequence[int], scales: Sequence[float | None], *, exact: bool
) -> list[tuple[int, int, float | None]]:
    """Returns the sizes and the scale of each axis as torch uses them.

    On the CPU it overlooks a scale where the size stays or doubles.
    """
    rows = zip(inputs[2:], outputs[2:], scales_of(scales, len(inputs) - 2), strict=True)
    overlooks = b.device == "cpu" and not exact
    return [(i, o, None if overlooks and o in (i, 2 * i) else scale) for i, o, scale in rows]


def _resampled(b: Builder, x: Tensor, scales: Sequence[float | None], *, exact: bool) -> Tensor:
    refuse_opaque(x.dtype)
    outputs = sizes_of(b.fake.shape)
    rows = _nearest_rows(b, x.shape, outputs, scales, exact=exact)

    def body(point: Point) -> Scalar:
        indices = [nearest(index, *row, exact=exact) for index, row in zip(point[2:], rows, strict=True)]
        return x.at((*point[:2], *indices))

    return b.loop(outputs, x.dtype, body)


@lowers("aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten.upsample_nearest3d.default")
def upsample_nearest(b: Builder, x: Tensor, output_size: Any, *scales: float | None) -> Tensor:
    return _resampled(b, x, scales, exact=False)


@lowers(
    "aten._upsample_nearest_exact1d.default",
    "aten._upsample_nearest_exact2d.default",
    "aten._upsample_nearest_exact3d.default",
)
def upsample_nearest_exact(b: Builder, x: Tensor, output_size: Any, *scales: float | None) -> Tensor:
    return _resampled(b, x, scales, exact=True)


@lowers(
    "aten.upsample_nearest1d_backward.default",
    "aten.upsample_nearest2d_backward.default",
    "aten.upsample_nearest3d_backward.default",
)
def upsample_nearest_backward(
    b: Builder, grad: Tensor, output_size: Any, input_size: Any, *scales: float | None
) -> Tensor:
    return _resampled_backward(b, grad, sizes_of(input_size), scales, exact=False)


@lowers(
    "aten._upsample_nearest_exact1d_backward.default",
    "aten._upsample_nearest_exact2d_backward.default",
    "aten._upsample_nearest_exact3d_backward.default",
)
def upsample_nearest_exact_backward(
    b: Builder, grad: Tensor, output_size: Any, input_size: Any, *scales: float | None
) -> Tensor:
    return _resampled_backward(b, grad, sizes_of(input_size), scales, exact=True)


def _resampled_backward(
    b: Builder, grad: Tensor, shape: Sequence[int], scales: Sequence[float | None], *, exact: bool
) -> Tensor:
    """Returns the gradients of the outputs that each input element was shown at, added up."""
    refuse_opaque(grad.dtype)
    rows = _nearest_rows(b, shape, grad.shape, scales, exact=exact)
    whole = [quotient(o, i) for i, o, scale in rows if is_usual(i, o, scale)]
    factors = [factor for factor in whole if factor is not None]
    if len(factors) == len(rows):
        return _block_sums(b, grad, shape, factors)

    def readers(inputs: int, outputs: int, scale: float | None) -> Readers:
        def weight(output: Index, position: Index) -> Scalar:
            shown = number_of(nearest(output, inputs, outputs, scale, exact=exact))
            return sc.cast(eq(shown, number_of(position)), grad.dtype.compute)

        axis = axis_between(inputs, outputs, scale, F32)
        # Output ``o`` shows ``floor(o * step)``, or the position that its centre is nearest to; the product may be
        # rounded down past an integer.
        return Readers(axis if exact else replace(axis, aligns_corners=True), 1, weight, slack=1)

    return gathered(b, grad, shape, [readers(*row) for row in rows])


def _block_sums(b: Builder, grad: Tensor, shape: Sequence[int], factors: Sequence[int]) -> Tensor:
    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        indices = [index * factor + step for index, factor, step in zip(point[2:], factors, reduced, strict=True)]
        return (grad.value_at((*point[:2], *indices)),)

    (total,) = b.reduce("sum", shape, factors, bodies)
    return b.loop(shape, grad.dtype, total.at)
