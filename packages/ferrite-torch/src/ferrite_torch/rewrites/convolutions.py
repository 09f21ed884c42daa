"""Convolutions as the library computes them: without bias, and in two dims or three.

    convolution(x, w, b)      cuDNN's product, then one more kernel of the library that reads and writes all of it
    convolution(x, w) + b     the addition is part of whatever reads the result

Likewise backward: the gradient of a bias is a sum over the gradient of the result, beside other sums over it. Images of
one dim are seen as images of one row, which is what the library makes of them; so `convolution_layouts` applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload

aten = torch.ops.aten
_LINE = 3  # batch, channels, length
_ROW = 2  # where the axis of one row goes


def rules_for_convolutions(device: str = "cuda") -> Iterator[tuple[Overload, Callable[..., Any]]]:
    """Yields the two ops, each with a decomposition on a type of device.

    It leaves to the op what has neither a bias nor one dim, and other devices, whose libraries add biases themselves.
    """
    yield aten.convolution.default, partial(_convolution, device)
    yield aten.convolution_backward.default, partial(_convolution_backward, device)


def _convolution(device: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any) -> Any:
    is_line = x.dim() == _LINE
    if x.device.type != device or (bias is None and not is_line):
        return NotImplemented
    if is_line:
        result = aten.convolution.default(_as_image(x), _as_image(weight), None, *_of_images(rest))
        result = aten.squeeze.dim(result, _ROW)
    else:
        result = aten.convolution.default(x, weight, None, *rest)
    if bias is None:
        return result
    return aten.add.Tensor(result, aten.view.default(bias, [-1] + [1] * (result.dim() - 2)))


def _convolution_backward(
    device: str, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, sizes: Any, *rest: Any
) -> Any:
    *given, (wants_image, wants_weight, wants_bias) = rest
    is_line = grad.dim() == _LINE
    if grad.device.type != device or not (wants_bias or is_line):
        return NotImplemented
    image = filters = None
    if wants_image or wants_weight:
        mask = [wants_image, wants_weight, False]
        if is_line:
            operands = (_as_image(grad), _as_image(x), _as_image(weight))
            image, filters, _ = aten.convolution_backward.default(*operands, None, *_of_images(given), mask)
            image = aten.squeeze.dim(image, _ROW) if wants_image else None
            filters = aten.squeeze.dim(filters, _ROW) if wants_weight else None
        else:
            image, filters, _ = aten.convolution_backward.default(grad, x, weight, None, *given, mask)
    total = aten.sum.dim_IntList(grad, [0, *range(2, grad.dim())]) if wants_bias else None
    return image, filters, total


def _as_image(line: torch.Tensor) -> torch.Tensor:
    image: torch.Tensor = aten.unsqueeze.default(line, _ROW)
    return image


def _of_images(given: Sequence[Any]) -> tuple[Any, ...]:
    """Returns stride, padding, dilation, transposed, output padding and groups with a first dim of one row."""
    stride, padding, dilation, transposed, output_padding, groups = given
    return [1, *stride], [0, *padding], [1, *dilation], transposed, [0, *output_padding], groups
