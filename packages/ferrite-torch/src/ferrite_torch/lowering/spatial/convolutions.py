"""Small convolutions as kernels of ours: products of the windows of an image and filters.

    out[n, f, o] = sum over c, w of  x[n, c, o * stride - padding + w * dilation] * filter[f, c, w]

That is a contraction: rows are the positions of a result, columns the filters, and what is summed up are the channels
and the positions of a window (an implicit GEMM: Chetlur and others, "cuDNN: Efficient Primitives for Deep Learning",
2014). No matrix of windows is made: a block of the left factor is loaded from where its windows lie, with zeros for
what is beyond the image. What adds a bias and reads the result is in the kernel.

Blocks are loaded in vectors where the channels of an image, and of a filter, lie side by side (channels-last):

    x[n, h, w, c]      o o o o o o o o|o o o o o o o o        the channels of two neighbouring positions
    block of rows      v-------------v v-------------v        a vector each

Images and filters that lie otherwise are copied so. The copy of an image is part of the kernel that makes it, where
there is one; those of filters are kernels at each call.

A filter of its own for each channel (depthwise) is no product: the sum over its window is a reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.graph import row_major
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_scheduler.model.contractions import HALVES, LEAST_EXTENT
from ferrite_torch.devices.facts import convolution_precision
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import packed_strides
from ferrite_torch.lowering.expressions import both, guarded, is_between, mul
from ferrite_torch.lowering.products.tiled_products import is_small
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.spatial.pooling import Windows
from ferrite_torch.lowering.tensors import Point, Shape, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of
from ferrite_torch.thresholds import CONVOLUTIONS


@lowers("aten.convolution.default")
def convolution(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Returns a convolution from kernels of ours.

    Raises:
        Unlowered: it is left to the library.
    """
    shape, size = sizes_of(b.fake.shape), weight.shape[2:]
    if transposed or not _is_ours(b, x, weight, shape, groups):
        raise Unlowered("a library convolution")
    windows = Windows(*map(sizes_of, (size, stride, padding, dilation, x.shape[2:], shape[2:])))
    c = _Convolution(b, x, weight, windows, groups, shape)
    total = c.reduced() if _is_depthwise(weight, groups) else c.contracted()

    def element(point: Point) -> Scalar:
        count, channel, *output = point
        group, own = (channel // c.filters, channel % c.filters) if groups != 1 else (channel * 0, channel)
        value = total.at((count, group, own, *output))
        return value if bias is None else sc.apply("add", value, bias.value_at((channel,)))

    return b.loop(shape, x.dtype, element, strides=packed_strides(b.fake))


def _is_ours(b: Builder, x: Tensor, weight: Tensor, shape: Shape, groups: int) -> bool:
    """Returns whether a convolution with a result of this shape has kernels here, and is to have them."""
    filters, depth, *size = weight.shape
    extents = (*shape, depth, *size)
    if b.choices.products != "small" or x.device or weight.device or x.dtype is not weight.dtype:
        return False
    if not is_small(b, extents, 2, CONVOLUTIONS.small_flops) or 0 in (*extents, *x.shape):
        return False
    if len(shape) != len(weight.shape):
        return False  # an image without a batch
    if _is_depthwise(weight, groups):
        return x.dtype is F32 or x.dtype in HALVES
    is_fast = x.dtype is F32 and convolution_precision() == "tf32"
    return (is_fast or x.dtype in HALVES) and min(filters // groups, depth * prod(size)) >= LEAST_EXTENT


def _is_depthwise(weight: Tensor, groups: int) -> bool:
    return weight.shape[1] == 1 and groups != 1


@dataclass(frozen=True, slots=True)
class _Convolution:
    """The sums of a convolution: ``[images, groups, filters of a group, positions …]``, in f32.

    Attributes:
        b: the graph.
        x, weight: images ``[n, c, …]`` and filters ``[f, c / groups, …]``.
        windows: where windows lie.
        groups: that channels and filters fall into.
        shape: of the result, ``[n, f, …]``.
    """

    b: Builder
    x: Tensor
    weight: Tensor
    windows: Windows
    groups: int
    shape: Shape

    @property
    def filters(self) -> int:
        """Returns the number of filters of a group."""
        return int(self.shape[1]) // self.groups

    def contracted(self) -> Tensor:
        """Returns the sums as a contraction over channels and windows."""
        depth, size = self.weight.shape[1], self.windows.size
        x, weight = self._readable_image(), self._readable_filters()
        order = _order(x)

        def left(point: Point, inside: Point) -> Scalar:
            count, group, _, *output = point
            channel, step = _apart(inside, order)
            return self._image_at(x, count, group * depth + channel, output, step)

        def right(point: Point, inside: Point) -> Scalar:
            channel, step = _apart(inside, order)
            return weight.at((point[1] * self.filters + point[2], channel, *step))

        sums = tuple((depth, *size)[axis] for axis in order)
        return self.b.contract(self._shape, sums, left, right, fast=x.dtype is F32)

    def reduced(self) -> Tensor:
        """Returns the sums as a reduction over windows: filters have one channel."""

        def bodies(point: Point, inside: Point) -> tuple[Scalar]:
            count, group, own, *output = point
            element = sc.cast(self._image_at(self.x, count, group, output, inside), F32)
            return (mul(element, self.weight.value_at((group * self.filters + own, own * 0, *inside))),)

        (total,) = self.b.reduce("sum", self._shape, self.windows.size, bodies)
        return total

    @property
    def _shape(self) -> Shape:
        return (self.shape[0], self.groups, self.filters, *self.shape[2:])

    def _image_at(
        self, x: Tensor, count: Index, channel: Index, output: Sequence[Index], step: Sequence[Index]
    ) -> Scalar:
        """Returns what a window has in a place, zero beyond the image."""
        position = self.windows.positions(output, step)
        held = both(*(is_between(place, 0, size) for place, size in zip(position, self.windows.inputs, strict=True)))
        return guarded(held, x.at((count, channel, *position)), sc.const(0, x.dtype))

    def _readable_image(self) -> Tensor:
        """Returns the images so that vectors of channels, or of positions, can be loaded."""
        windows, vector = self.windows, VECTOR_BYTES // self.x.dtype.bytes
        is_product = set(windows.size) == set(windows.stride) == {1} and set(windows.padding) == {0}
        if is_product and _is_row_major(self.x) and prod(windows.inputs) % vector == 0:
            return self.x
        return _channels_last(self.b, self.x, vector)

    def _readable_filters(self) -> Tensor:
        """Returns the filters so that vectors of channels can be loaded."""
        return _channels_last(self.b, self.weight, VECTOR_BYTES // self.weight.dtype.bytes)


def _channels_last(b: Builder, x: Tensor, vector: int) -> Tensor:
    """Returns a tensor itself, or a copy whose channels lie side by side where they are whole vectors."""
    count, channels, *size = x.shape
    if channels % vector or prod(size) == 1 or _has_channels_last(x):
        return x
    first, *rest, last = row_major((count, *size, channels))
    return b.loop(x.shape, x.dtype, x.at, strides=(first, last, *rest))


def _has_channels_last(x: Tensor) -> bool:
    view = x.strided()
    return view is not None and view.strides[1] == 1 and x.shape[1] != 1


def _is_row_major(x: Tensor) -> bool:
    view = x.strided()
    return view is not None and view.strides == row_major(x.shape)


def _order(x: Tensor) -> tuple[int, ...]:
    """Returns the order of what is summed up, channels (0) and axes of a window: as elements lie in memory."""
    axes = range(1, x.ndim - 1)
    return (*axes, 0) if _has_channels_last(x) else (0, *axes)


def _apart(inside: Point, order: tuple[int, ...]) -> tuple[Index, tuple[Index, ...]]:
    """Returns the channel, and the place in a window, of a position in a sum."""
    by_axis = dict(zip(order, inside, strict=True))
    return by_axis[0], tuple(by_axis[axis] for axis in range(1, len(order)))
