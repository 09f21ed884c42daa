"""Small convolutions and their gradients as kernels of ours: contractions over the windows of images.

What is multiplied, and how its blocks are loaded, says `convolution_sums`; what adds a bias and reads the result is in
the kernel. Images and filters whose channels do not lie side by side are copied so. The copy of an image is part of the
kernel that makes it, where there is one; those of filters are kernels at each call.

A filter of its own for each channel (depthwise) is no product: the sum over its window is a reduction, and so are those
of its gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import F32
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.passes.vectors import VECTOR_BYTES
from ferrite_scheduler.model.contractions import HALVES, LEAST_EXTENT
from ferrite_torch.devices.facts import convolution_precision, product_precision
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.elementwise import packed_strides
from ferrite_torch.lowering.products.tiled_products import is_small
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.spatial.convolution_sums import Convolution, channels_last, has_channels_last
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
    """Returns a convolution, or the transposed one, from kernels of ours.

    Raises:
        Unlowered: it is left to the library.
    """
    shape = sizes_of(b.fake.shape)
    image, result = (shape, x.shape) if transposed else (x.shape, shape)
    is_depthwise = weight.shape[1] == 1 and groups != 1 and not transposed
    steps, is_split = (stride, padding, dilation), _is_split(b, x, weight, groups, transposed=transposed)
    c = _convolution(
        b, (x, weight), (image, result), steps, groups, is_exact=is_depthwise or is_split, is_split=is_split
    )
    if is_depthwise:
        return _result(c, c.reduced(x, c.side_by_side(weight, x)), x, bias, b.fake)
    _refuse_few(c, "image" if transposed else "result")
    return _moved(c, c.readable(x), weight, bias, b.fake, to_image=transposed)


@lowers("aten.convolution_backward.default")
def convolution_backward(
    b: Builder,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: object,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of a convolution, those asked for, from kernels of ours.

    Raises:
        Unlowered: they are left to the library.
    """
    image, result = (grad, x) if transposed else (x, grad)
    is_depthwise = weight.shape[1] == 1 and groups != 1 and not transposed
    shapes, steps = (image.shape, result.shape), (stride, padding, dilation)
    c = _convolution(b, (x, weight, grad), shapes, steps, groups, is_exact=is_depthwise)
    wants_input, wants_weight, wants_bias = output_mask
    made: list[Tensor | None] = [None, None, _sum(b, grad, b.fake[2]) if wants_bias else None]
    if is_depthwise:
        if wants_input:
            total = c.reduced_image(grad, weight)
            made[0] = b.loop(x.shape, x.dtype, total.at, strides=packed_strides(b.fake[0]))
        if wants_weight:
            if (prod(x.shape) + prod(grad.shape)) * x.dtype.bytes > CONVOLUTIONS.reread_bytes:
                raise Unlowered("a library convolution")
            made[1] = _weight(c, c.reduced_weight(x, grad), weight, b.fake[1])
        return tuple(made)
    for what, is_wanted in (("result" if transposed else "image", wants_input), ("weight", wants_weight)):
        if is_wanted:
            _refuse_few(c, what)
    has_few = c.count * prod(c.windows.outputs) <= CONVOLUTIONS.few_points
    if wants_input or not has_few:
        grad = c.readable(grad)
    if wants_input:
        made[0] = _moved(c, grad, weight, None, b.fake[0], to_image=not transposed)
    if wants_weight:
        x = x if has_few else c.readable(x, CONVOLUTIONS.short_vector)
        made[1] = _weight(c, c.weight(grad, x) if transposed else c.weight(x, grad), weight, b.fake[1])
    return tuple(made)


def _convolution(
    b: Builder,
    operands: Sequence[Tensor],
    shapes: tuple[Shape, Shape],
    steps: Sequence[Any],
    groups: int,
    *,
    is_exact: bool = False,
    is_split: bool = False,
) -> Convolution:
    """Returns which elements a convolution multiplies.

    Args:
        b: the graph.
        operands: an image or a result, filters, and what else is read.
        shapes: of images and results.
        steps: stride, padding and dilation.
        groups: that channels and filters fall into.
        is_exact: whether kernels multiply float32 without rounding it.
        is_split: whether that is in parts, on tensor cores.

    Raises:
        Unlowered: it is no small one of a type that there are kernels of; or they would have to round float32, and the
            library's call costs the host nothing (decision 0081).
    """
    (x, weight, *_), (image, result) = operands, shapes
    filters, depth, *size = weight.shape
    extents = (result[0], filters, depth, *size, *result[2:])
    is_rounded = convolution_precision() == product_precision() == "tf32" and not b.choices.is_captured
    is_fast = x.dtype is F32 and (is_exact or is_rounded)
    if (
        b.choices.products != "small"
        or len(image) != len(weight.shape)  # an image without a batch
        or any(each.device or each.dtype is not x.dtype for each in operands)
        or not (is_fast or x.dtype in HALVES)
        or not is_small(b, extents, 2, CONVOLUTIONS.split_flops if is_split else CONVOLUTIONS.small_flops)
        or 0 in (*extents, *image)
    ):
        raise Unlowered("a library convolution")
    windows = Windows(*map(sizes_of, (size, *steps, image[2:], result[2:])))
    return Convolution(b, windows, int(result[0]), groups, int(filters) // groups, int(depth), rounds=not is_split)


def _is_split(b: Builder, x: Tensor, weight: Tensor, groups: int, *, transposed: bool) -> bool:
    """Returns whether tensor cores compute a convolution of float32 that may not be rounded, or is not, in parts.

    Where convolutions may be, but not products, the library rounds nothing of row-major images of few channels
    (decision 0039), nor do these kernels. Their sums have vectors of channels.
    """
    (filters, depth, *size), vector = weight.shape, VECTOR_BYTES // F32.bytes
    if not CONVOLUTIONS.split_flops or not b.choices.split_points or product_precision() == "tf32":
        return False
    if x.dtype is not F32 or not all(isinstance(extent, int) for extent in weight.shape):
        return False
    channels = filters // groups if transposed else depth
    if channels % vector or prod(size) * channels < b.choices.split_points or groups != 1:
        return False
    is_exact = not transposed and depth < CONVOLUTIONS.rounded_channels and not has_channels_last(x)
    return convolution_precision() != "tf32" or is_exact


def _refuse_few(c: Convolution, what: str) -> None:
    """Checks that a sum has as many columns and points as tensor cores multiply.

    Raises:
        Unlowered: it has fewer, of which the library makes more.
    """
    window = prod(c.windows.size)
    extents = {
        "result": (c.filters, c.depth * window),
        "image": (c.depth, c.filters * prod(each.taps for each in c.phases)),
        "weight": (c.filters, c.depth * window, c.count * prod(c.windows.outputs)),
    }
    if min(extents[what]) < LEAST_EXTENT:
        raise Unlowered("a library convolution")


def _moved(c: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None, fake: Any, *, to_image: bool) -> Tensor:
    """Returns images made of results, or results of images: of ``x``, which is readable, and filters."""
    filters = channels_last(c.b, weight)
    if to_image:
        return _image(c, c.image(x, filters), x, bias, fake)
    return _result(c, c.result(x, filters), x, bias, fake)


def _result(c: Convolution, total: Tensor, x: Tensor, bias: Tensor | None, fake: Any) -> Tensor:
    """Returns a result of its sums in the type of ``x`` and the layout of its fake."""

    def element(point: Point) -> Scalar:
        count, channel, *output = point
        return _biased(total.at((count, *_in_group(c, channel, c.filters), *output)), bias, point)

    return c.b.loop(sizes_of(fake.shape), x.dtype, element, strides=packed_strides(fake))


def _image(c: Convolution, total: Tensor, x: Tensor, bias: Tensor | None, fake: Any) -> Tensor:
    """Returns an image of its sums, whose positions are apart by phases, as `_result` does a result."""
    strides = c.windows.stride

    def element(point: Point) -> Scalar:
        count, channel, *position = point
        group, own = _in_group(c, channel, c.depth)
        places = (p // stride for p, stride in zip(position, strides, strict=True))
        phases = (p % stride for p, stride in zip(position, strides, strict=True))
        return _biased(total.at((count, group, *phases, own, *places)), bias, point)

    return c.b.loop(sizes_of(fake.shape), x.dtype, element, strides=packed_strides(fake))


def _weight(c: Convolution, total: Tensor, weight: Tensor, fake: Any) -> Tensor:
    """Returns filters of their sums."""

    def element(point: Point) -> Scalar:
        number, channel, *step = point
        return total.at((*_in_group(c, number, c.filters), *step, channel))

    return c.b.loop(sizes_of(fake.shape), weight.dtype, element, strides=packed_strides(fake))


def _in_group(c: Convolution, number: Index, count: int) -> tuple[Index, Index]:
    """Returns the group of a filter or a channel, and its number in that, where a group has so many."""
    return (number // count, number % count) if c.groups != 1 else (number * 0, number)


def _biased(value: Scalar, bias: Tensor | None, point: Point) -> Scalar:
    return value if bias is None else sc.apply("add", value, bias.value_at(point[1:2]))


def _sum(b: Builder, grad: Tensor, fake: Any) -> Tensor:
    """Returns the gradient of a bias."""
    count, channels, *positions = grad.shape

    def bodies(point: Point, inside: Point) -> tuple[Scalar]:
        return (grad.value_at((inside[0], *point, *inside[1:])),)

    (total,) = b.reduce("sum", (channels,), (count, *positions), bodies)
    return b.loop(total.shape, grad.dtype, total.at, strides=packed_strides(fake))
