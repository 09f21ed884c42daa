"""The sums of which convolutions and their gradients are made, as contractions.

A convolution multiplies elements of three tensors: images, filters, and results. Each of them is a sum of products of
the two others:

    result[n, f, o]  = sum over c, w of  image[n, c, p] * filter[f, c, w]      p = o * stride - padding + w * dilation
    image[n, c, p]   = sum over f, w of  result[n, f, o] * filter[f, c, w]
    filter[f, c, w]  = sum over n, o of  result[n, f, o] * image[n, c, p]

The first is the convolution, the others are its gradients, and the second is the transposed convolution. Rows are
positions of the result or the image, columns filters or channels; of the third one they are filters, and channels with
the places in a window (an implicit GEMM: Chetlur and others, "cuDNN: Efficient Primitives for Deep Learning", 2014). No
matrix of windows is made: a block of a factor is loaded from where its windows lie, with zeros for what is beyond.

Blocks are loaded in vectors where the channels of an image, and of a filter, lie side by side (channels-last):

    x[n, h, w, c]      o o o o o o o o|o o o o o o o o        the channels of two neighbouring positions
    block of rows      v-------------v v-------------v        a vector each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import row_major
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.expressions import both, eq, guarded, is_between, mul, number_of
from ferrite_torch.lowering.products.matrix_contractions import stored_type
from ferrite_torch.lowering.spatial.pooling import Windows
from ferrite_torch.lowering.tensors import Point, Tensor


@dataclass(frozen=True, slots=True)
class Convolution:
    """Which elements are multiplied; sums are f32. Images and results have shape ``[n, channels, …]``.

    Attributes:
        b: the graph.
        windows: where windows lie on images.
        count: of images.
        groups: that channels and filters fall into.
        filters, depth: the numbers of filters and of channels of a group.
        rounds: whether f32 is rounded to TF32; otherwise it is multiplied in parts (decision 0086).
    """

    b: Builder
    windows: Windows
    count: int
    groups: int
    filters: int
    depth: int
    rounds: bool = True

    def result(self, image: Tensor, weight: Tensor) -> Tensor:
        """Returns results of readable images and filters: ``[images, groups, filters, positions …]``."""
        order = _order(image)

        def left(point: Point, inside: Point) -> Scalar:
            count, group, _, *output = point
            channel, step = _apart(inside, order)
            return self.image_at(image, count, group * self.depth + channel, output, step)

        def right(point: Point, inside: Point) -> Scalar:
            channel, step = _apart(inside, order)
            return weight.at((point[1] * self.filters + point[2], channel, *step))

        sums = tuple((self.depth, *self.windows.size)[axis] for axis in order)
        shape = (self.count, self.groups, self.filters, *self.windows.outputs)
        return self.b.contract(shape, sums, left, right, fast=self._is_fast(image), stored=stored_type(image.dtype))

    def reduced(self, image: Tensor, weight: Tensor) -> Tensor:
        """Returns the same as a reduction over windows, where a filter has one channel."""

        def bodies(point: Point, inside: Point) -> tuple[Scalar]:
            count, group, own, *output = point
            element = sc.cast(self.image_at(image, count, group, output, inside), F32)
            return (mul(element, weight.value_at((group * self.filters + own, own * 0, *inside))),)

        shape = (self.count, self.groups, self.filters, *self.windows.outputs)
        (total,) = self.b.reduce("sum", shape, self.windows.size, bodies)
        return total

    def reduced_image(self, result: Tensor, weight: Tensor) -> Tensor:
        """Returns images, where a filter has one channel, as a reduction: ``[images, groups, positions …]``."""
        phases = self.phases

        def bodies(point: Point, inside: Point) -> tuple[Scalar]:
            count, group, *position = point
            own, *taps = inside
            lines = [
                (each, p // each.stride, p % each.stride, tap)
                for each, p, tap in zip(phases, position, taps, strict=True)
            ]
            outputs = [each.window(place, phase, tap) for each, place, phase, tap in lines]
            held = both(
                *(each.has(phase, tap) for each, _, phase, tap in lines),
                *(is_between(o, 0, size) for o, size in zip(outputs, self.windows.outputs, strict=True)),
            )
            number, steps = group * self.filters + own, [each.place(phase, tap) for each, _, phase, tap in lines]
            element = result.value_at((count, number, *outputs))
            product = mul(element, weight.value_at((number, own * 0, *steps)))
            return (guarded(held, product, 0.0),)

        shape = (self.count, self.groups, *self.windows.inputs)
        (total,) = self.b.reduce("sum", shape, (self.filters, *(each.taps for each in phases)), bodies)
        return total

    def reduced_weight(self, image: Tensor, result: Tensor) -> Tensor:
        """Returns filters of one channel as a reduction over positions: ``[groups, filters, window …, 1]``."""

        def bodies(point: Point, inside: Point) -> tuple[Scalar]:
            (group, own, *step, _), (count, *output) = point, inside
            element = sc.cast(self.image_at(image, count, group, output, step), F32)
            return (mul(element, result.value_at((count, group * self.filters + own, *output))),)

        shape = (self.groups, self.filters, *self.windows.size, 1)
        (total,) = self.b.reduce("sum", shape, (self.count, *self.windows.outputs), bodies)
        return total

    def image(self, result: Tensor, weight: Tensor) -> Tensor:
        """Returns images of readable results and filters: ``[images, groups, phases …, channels, strides …]``."""
        order, phases, rank = _order(result), self.phases, self.windows.rank

        def left(point: Point, inside: Point) -> Scalar:
            count, group, *places = point
            own, taps = _apart(inside, order)
            lines = list(zip(phases, places[rank + 1 :], places[:rank], taps, strict=True))
            outputs = [each.window(place, phase, tap) for each, place, phase, tap in lines]
            # Where a phase has no such step, neither factor is read: a filter of zeros would make NaN of an infinity.
            held = both(
                *(each.has(phase, tap) for each, _, phase, tap in lines),
                *(is_between(o, 0, size) for o, size in zip(outputs, self.windows.outputs, strict=True)),
            )
            element = result.at((count, group * self.filters + own, *outputs))
            return guarded(held, element, sc.const(0, result.dtype))

        def right(point: Point, inside: Point) -> Scalar:
            own, taps = _apart(inside, order)
            pairs = list(zip(phases, point[2 : -1 - rank], taps, strict=True))
            held = both(*(each.has(phase, tap) for each, phase, tap in pairs))
            steps = (each.place(phase, tap) for each, phase, tap in pairs)
            element = weight.at((point[1] * self.filters + own, point[-1 - rank], *steps))
            return guarded(held, element, sc.const(0, weight.dtype))

        sums = tuple((self.filters, *(each.taps for each in phases))[axis] for axis in order)
        strides = (-(-size // each.stride) for size, each in zip(self.windows.inputs, phases, strict=True))
        shape = (self.count, self.groups, *(each.stride for each in phases), self.depth, *strides)
        return self.b.contract(shape, sums, left, right, fast=self._is_fast(result), stored=stored_type(result.dtype))

    def weight(self, image: Tensor, result: Tensor) -> Tensor:
        """Returns filters of readable images and results: ``[groups, filters, window …, channels]``."""

        def left(point: Point, inside: Point) -> Scalar:
            count, *output = inside
            return result.at((count, point[0] * self.filters + point[1], *output))

        def right(point: Point, inside: Point) -> Scalar:
            (group, _, *step, channel), (count, *output) = point, inside
            return self.image_at(image, count, group * self.depth + channel, output, step)

        shape = (self.groups, self.filters, *self.windows.size, self.depth)
        sums, stored = (self.count, *self.windows.outputs), stored_type(image.dtype)
        return self.b.contract(shape, sums, left, right, fast=self._is_fast(image), stored=stored)

    def _is_fast(self, x: Tensor) -> bool:
        return x.dtype is F32 and self.rounds

    @property
    def phases(self) -> tuple[Phases, ...]:
        """Returns the phases of the positions of images, for each axis."""
        windows = self.windows
        return tuple(map(Phases, windows.size, windows.stride, windows.padding, windows.dilation))

    def image_at(
        self, image: Tensor, count: Index, channel: Index, output: Sequence[Index], step: Sequence[Index]
    ) -> Scalar:
        """Returns what a window has in a place, zero beyond the image."""
        position = self.windows.positions(output, step)
        return guarded(
            self.windows.is_inside(position), image.at((count, channel, *position)), sc.const(0, image.dtype)
        )

    def side_by_side(self, weight: Tensor, x: Tensor) -> Tensor:
        """Returns filters of one channel as they are, or a copy in which those of all channels lie beside each other.

        Where an image has its channels beside each other, a thread has a vector of them, and would read its filters
        element by element for each position. Whether there are enough of these for a copy is for `Inline` to say.
        """
        if not has_channels_last(x):
            return weight
        count, _, *size = weight.shape
        *steps, _ = row_major((*size, count))
        return self.b.loop(weight.shape, weight.dtype, weight.at, strides=(1, prod(size) * count, *steps))

    def readable(self, x: Tensor, least: int = VECTOR_BYTES) -> Tensor:
        """Returns images, or results, so that vectors of channels, or of positions, can be loaded.

        Args:
            x: the images, or results.
            least: bytes of the smallest vectors of positions for which images are not copied.
        """
        windows, vector = self.windows, least // x.dtype.bytes
        is_product = set(windows.size) == set(windows.stride) == {1} and set(windows.padding) == {0}
        if is_product and _is_row_major(x) and prod(windows.inputs) % vector == 0:
            return x
        return channels_last(self.b, x)


@dataclass(frozen=True, slots=True)
class Phases:
    """Which windows lie on a position of an image along one axis, by its phase: the position modulo the stride.

    Positions of the same phase have the same steps of windows on them, a period apart (a sub-pixel convolution: Shi and
    others, "Real-Time Single Image and Video Super-Resolution", 2016). So none is multiplied but those, and zeros where
    other phases have a step more. With windows of 3, a stride of 2 and a padding of 1:

        position    0    1    2    3    4
        steps       1   0 2   1   0 2   1

    Attributes:
        size, stride, padding, dilation: of the windows.
    """

    size: int
    stride: int
    padding: int
    dilation: int

    @property
    def taps(self) -> int:
        """Returns the most steps of windows on one position."""
        return -(-self.size // self._period)

    def window(self, place: Index, phase: Index, tap: Index) -> Index:
        """Returns the window whose step lies on position ``place * stride + phase``."""
        first = (phase + self.padding - self.step(phase, phase * 0) * self.dilation) // self.stride
        return place + first - tap * (self.dilation // self._shared)

    def step(self, phase: Index, tap: Index) -> Index:
        """Returns the step of a window that lies on positions of a phase; it may be none (see `has`)."""
        inverse = pow(self.dilation // self._shared, -1, self._period)
        return (phase + self.padding) // self._shared * inverse % self._period + tap * self._period

    def place(self, phase: Index, tap: Index) -> Index:
        """Returns the same where there is such a step: the only one of a window of one, whatever the phase."""
        return phase * 0 if self.size == 1 else self.step(phase, tap)

    def has(self, phase: Index, tap: Index) -> Scalar:
        """Returns whether positions of a phase have such a step."""
        within = is_between(self.step(phase, tap), 0, self.size)
        if self._shared == 1:
            return within
        return both(within, eq(number_of((phase + self.padding) % self._shared), 0))

    @property
    def _shared(self) -> int:
        return gcd(self.stride, self.dilation)

    @property
    def _period(self) -> int:
        return self.stride // self._shared


def channels_last(b: Builder, x: Tensor) -> Tensor:
    """Returns a tensor itself, or a copy whose channels lie side by side where they are whole vectors."""
    count, channels, *size = x.shape
    if channels % (VECTOR_BYTES // x.dtype.bytes) or prod(size) == 1 or has_channels_last(x):
        return x
    first, *rest, last = row_major((count, *size, channels))
    return b.loop(x.shape, x.dtype, x.at, strides=(first, last, *rest))


def has_channels_last(x: Tensor) -> bool:
    view = x.strided()
    return view is not None and view.strides[1] == 1 and x.shape[1] != 1


def _is_row_major(x: Tensor) -> bool:
    view = x.strided()
    return view is not None and view.strides == row_major(x.shape)


def _order(x: Tensor) -> tuple[int, ...]:
    """Returns the order of what is summed up, channels (0) and axes of a window: as elements lie in memory."""
    axes = range(1, x.ndim - 1)
    return (*axes, 0) if has_channels_last(x) else (0, *axes)


def _apart(inside: Point, order: tuple[int, ...]) -> tuple[Index, tuple[Index, ...]]:
    """Returns the channel, and the place in a window, of a position in a sum."""
    by_axis = dict(zip(order, inside, strict=True))
    return by_axis[0], tuple(by_axis[axis] for axis in range(1, len(order)))
