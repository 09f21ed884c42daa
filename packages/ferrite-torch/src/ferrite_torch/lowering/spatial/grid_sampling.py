"""Sampling at positions that a grid of coordinates names: ``grid_sampler``, forward and backward.

Coordinates from -1 to 1 span the input; the last component of the grid is that of the first sampled axis. A position
that is no number counts as outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import TypeAlias

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import I64, DType
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size
from ferrite_torch.lowering.builder import Builder, Lowered
from ferrite_torch.lowering.elementwise import refuse_opaque
from ferrite_torch.lowering.expressions import (
    Operand,
    absolute,
    add,
    amount,
    both,
    call,
    choose,
    div,
    either,
    eq,
    floor,
    ge,
    guarded,
    is_nan,
    larger,
    le,
    lt,
    mul,
    ne,
    neg,
    number_of,
    smaller,
    sub,
)
from ferrite_torch.lowering.indexing.stores import accumulated
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.spatial.resampling import cubic_weights
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of

Tap: TypeAlias = tuple[Scalar, Scalar]
"""An input position, an integer in a float type that may lie outside, and a weight."""

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2

_SLOPE = -0.75


@dataclass(frozen=True, slots=True)
class Sampler:
    """How an axis is sampled.

    Attributes:
        mode: ``BILINEAR``, ``NEAREST`` or ``BICUBIC``.
        padding: what is seen outside: ``ZEROS``, the ``BORDER``, or a ``REFLECTION``.
        aligns_corners: whether -1 and 1 are the centres of the first and last element, not their outer edges.
    """

    mode: int
    padding: int
    aligns_corners: bool

    def _position(self, coordinate: Scalar, size: Size) -> Scalar:
        """Returns the input position of a coordinate, before padding."""
        if self.aligns_corners:
            return mul(div(add(coordinate, 1.0), 2.0), amount(size - 1, coordinate.dtype))
        return div(sub(mul(add(coordinate, 1.0), amount(size, coordinate.dtype)), 1.0), 2.0)

    def _padded(self, position: Scalar, size: Size) -> Scalar:
        """Returns the position inside that a position is seen at; with zeros around, itself."""
        if self.padding == REFLECTION:
            position = self._reflected(position, size)
        return position if self.padding == ZEROS else _clipped(position, size)

    def _mirrors(self, size: Size, dtype: DType) -> tuple[float, Operand]:
        """Returns the position of the lower mirror and the distance of the two."""
        return (0.0, amount(size - 1, dtype)) if self.aligns_corners else (-0.5, amount(size, dtype))

    def _reflected(self, position: Scalar, size: Size) -> Scalar:
        low, span = self._mirrors(size, position.dtype)
        if span == 0.0:
            return sc.const(0.0, position.dtype)
        away = absolute(sub(position, low))
        rest = call("fmod", away, span)
        return add(choose(self._is_turned(away, span), sub(span, rest), rest), low)

    def _is_turned(self, away: Scalar, span: Operand) -> Scalar:
        """Returns whether a position that far from the lower mirror is reflected an odd number of times."""
        return ne(call("fmod", floor(div(away, span)), 2.0), 0.0)

    def _growth(self, coordinate: Scalar, size: Size) -> Scalar:
        """Returns the derivative of the padded position by the coordinate."""
        dtype = coordinate.dtype
        span = amount(size - 1 if self.aligns_corners else size, dtype)
        slope = sc.const(span / 2, dtype) if isinstance(span, float) else mul(span, 0.5)
        if self.mode == BICUBIC or self.padding == ZEROS:
            return slope
        position = self._position(coordinate, size)
        if self.padding == REFLECTION:
            low, span = self._mirrors(size, dtype)
            if span == 0.0:
                return sc.const(0.0, dtype)
            turned = self._is_turned(absolute(sub(position, low)), span)
            slope = choose(ne(turned, lt(position, low)), neg(slope), slope)
            position = self._reflected(position, size)
        held = either(le(position, 0.0), ge(position, amount(size - 1, dtype)), is_nan(position))
        return choose(held, 0.0, slope)

    def taps(self, coordinate: Scalar, size: Size) -> list[Tap]:
        """Returns the positions that a sample reads along an axis, with their weights."""
        position = self._position(coordinate, size)
        one = sc.const(1.0, position.dtype)
        match self.mode:
            case 1:
                return [(call("round", self._padded(position, size)), one)]
            case 2:
                base = floor(position)
                weights = cubic_weights(sub(position, base), _SLOPE)
                return [
                    (sc.apply("trunc", self._padded(add(base, step), size)), weight)
                    for step, weight in zip((-1.0, 0.0, 1.0, 2.0), weights, strict=True)
                ]
        position = self._padded(position, size)
        left = floor(position)
        share = sub(position, left)
        return [(left, sub(1.0, share)), (add(left, 1.0), share)]

    def slopes(self, coordinate: Scalar, size: Size) -> list[Tap]:
        """Returns the positions that a sample reads along an axis, with the derivatives of their weights."""
        growth = self._growth(coordinate, size)
        pixels = [pixel for pixel, _ in self.taps(coordinate, size)]
        if self.mode == BILINEAR:
            return list(zip(pixels, (neg(growth), growth), strict=True))
        position = self._position(coordinate, size)
        share = sub(position, floor(position))
        return [(pixel, mul(slope, growth)) for pixel, slope in zip(pixels, _cubic_slopes(share), strict=True)]


def _clipped(position: Scalar, size: Size) -> Scalar:
    inside = smaller(larger(position, 0.0), amount(size - 1, position.dtype))
    return choose(is_nan(position), 0.0, inside)


def _cubic_slopes(share: Scalar) -> list[Scalar]:
    """Returns the derivatives of the cubic weights of the four positions around a position."""
    rest = sub(1.0, share)

    def far(distance: Scalar) -> Scalar:
        return add(mul(sub(mul(distance, 3 * _SLOPE), 10 * _SLOPE), distance), 8 * _SLOPE)

    def near(distance: Scalar) -> Scalar:
        return mul(sub(mul(distance, 3 * (_SLOPE + 2)), 2 * (_SLOPE + 3)), distance)

    return [far(add(share, 1.0)), near(share), neg(near(rest)), neg(far(add(rest, 1.0)))]


def _is_inside(pixel: Scalar, size: Size) -> Scalar:
    return both(ge(pixel, 0.0), le(pixel, amount(size - 1, pixel.dtype)))


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of an input at the positions of a grid.

    Attributes:
        x: the input, ``[N, C, *sizes]``.
        grid: the coordinates, ``[N, *outputs, rank]``.
        sampler: how each axis is sampled.
    """

    x: Tensor
    grid: Tensor
    sampler: Sampler

    @property
    def sizes(self) -> tuple[int, ...]:
        """Returns the sizes of the sampled axes."""
        return self.x.shape[2:]

    def coordinate(self, axis: int, image: Index, pixel: Sequence[Index]) -> Scalar:
        """Returns the coordinate of a position of the grid along a sampled axis."""
        component = ix.constant(len(self.sizes) - 1 - axis)
        return self.grid.value_at((image, *pixel, component))

    def taps(self, image: Index, pixel: Sequence[Index], derived: int | None = None) -> list[list[Tap]]:
        """Returns the taps of each axis; those of the axis ``derived`` have derivatives for weights."""
        rows = [(self.coordinate(axis, image, pixel), size) for axis, size in enumerate(self.sizes)]
        return [
            self.sampler.slopes(*row) if axis == derived else self.sampler.taps(*row) for axis, row in enumerate(rows)
        ]

    def read(self, image: Index, channel: Index, taps: Sequence[Sequence[Tap]]) -> Scalar:
        """Returns the elements at all combinations of taps, weighted and added up; nothing is read outside."""
        if self.sampler.mode == BICUBIC:
            return self._read_along(image, channel, taps, ())
        terms = []
        for chosen in product(*taps):
            weight = reduce(mul, (weight for _, weight in reversed(chosen)))
            terms.append(mul(self._element(image, channel, [pixel for pixel, _ in chosen]), weight))
        return reduce(add, terms)

    def _read_along(
        self, image: Index, channel: Index, taps: Sequence[Sequence[Tap]], pixels: tuple[Scalar, ...]
    ) -> Scalar:
        """Returns the same, the last axis first: a weight of each element and one of each row."""
        axis = len(pixels)
        if axis == len(taps):
            return self._element(image, channel, pixels)
        terms = [mul(self._read_along(image, channel, taps, (*pixels, pixel)), weight) for pixel, weight in taps[axis]]
        return reduce(add, terms)

    def _element(self, image: Index, channel: Index, pixels: Sequence[Scalar]) -> Scalar:
        inside = both(*(_is_inside(pixel, size) for pixel, size in zip(pixels, self.sizes, strict=True)))
        return guarded(inside, self.x.value_at((image, channel, *self.indices(pixels))), 0.0)

    def indices(self, pixels: Sequence[Scalar]) -> list[Index]:
        """Returns positions inside the input as indices."""
        return [ix.indirect(sc.cast(pixel, I64), size) for pixel, size in zip(pixels, self.sizes, strict=True)]


def _samples(x: Tensor, grid: Tensor, mode: int, padding: int, aligns_corners: bool) -> Samples:
    refuse_opaque(x.dtype, grid.dtype)
    return Samples(x, grid, Sampler(int(mode), int(padding), bool(aligns_corners)))


@lowers("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(b: Builder, x: Tensor, grid: Tensor, mode: int, padding: int, aligns_corners: bool) -> Tensor:
    samples = _samples(x, grid, mode, padding, aligns_corners)

    def body(point: Point) -> Scalar:
        image, channel, *pixel = point
        return samples.read(image, channel, samples.taps(image, pixel))

    return b.loop(sizes_of(b.fake.shape), x.dtype, body)


@lowers("aten.grid_sampler_2d_backward.default", "aten.grid_sampler_3d_backward.default")
def grid_sampler_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    grid: Tensor,
    mode: int,
    padding: int,
    aligns_corners: bool,
    wanted: Sequence[bool],
) -> Lowered:
    """Returns the gradients of the input, added up atomically, and of the grid."""
    samples = _samples(x, grid, mode, padding, aligns_corners)
    return (
        _input_gradient(b, grad, samples) if wanted[0] else None,
        _grid_gradient(b, grad, samples) if wanted[1] else None,
    )


def _input_gradient(b: Builder, grad: Tensor, samples: Samples) -> Tensor:
    x = samples.x
    rank = len(samples.sizes)
    count = len(samples.taps(ix.constant(0), (ix.constant(0),) * rank)[0])
    zeros = b.loop(x.shape, x.dtype, lambda point: sc.const(0.0, x.dtype.compute))

    def taken(point: Point) -> list[Tap]:
        """Returns the tap of each axis that the last axes of a point name."""
        taps = samples.taps(point[0], point[2 : 2 + rank])
        return [_chosen(own, step) for own, step in zip(taps, point[2 + rank :], strict=True)]

    def body(point: Point) -> Scalar:
        weights = [weight for _, weight in taken(point)]
        return reduce(mul, weights, sc.cast(grad.at(point[: 2 + rank]), x.dtype.compute))

    return accumulated(
        b,
        zeros,
        "add",
        (*grad.shape, *[count] * rank),
        lambda point: (*point[:2], *samples.indices([pixel for pixel, _ in taken(point)])),
        body,
        lambda point: both(*(_is_inside(tap[0], n) for tap, n in zip(taken(point), samples.sizes, strict=True))),
    )


def _chosen(taps: Sequence[Tap], number: Index) -> Tap:
    """Returns the tap of this number."""
    pixel, weight = taps[-1]
    for k in reversed(range(len(taps) - 1)):
        is_it = eq(number_of(number), k)
        pixel, weight = choose(is_it, taps[k][0], pixel), choose(is_it, taps[k][1], weight)
    return pixel, weight


def _grid_gradient(b: Builder, grad: Tensor, samples: Samples) -> Tensor:
    grid, rank = samples.grid, len(samples.sizes)
    if samples.sampler.mode == NEAREST:
        return b.loop(grid.shape, grid.dtype, lambda point: sc.const(0.0, grid.dtype.compute))
    channels = samples.x.shape[1]

    def along(axis: int) -> Tensor:
        def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
            image, *pixel = point
            value = samples.read(image, reduced[0], samples.taps(image, pixel, axis))
            return (mul(value, sc.cast(grad.at((image, reduced[0], *pixel)), value.dtype)),)

        return b.reduce("sum", grid.shape[:-1], (channels,), bodies)[0]

    parts = [along(rank - 1 - component) for component in range(rank)]

    def body(point: Point) -> Scalar:
        found = parts[-1].at(point[:-1])
        for component in reversed(range(rank - 1)):
            found = choose(eq(number_of(point[-1]), component), parts[component].at(point[:-1]), found)
        return found

    return b.loop(grid.shape, grid.dtype, body)
