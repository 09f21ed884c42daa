"""Convolutions without bias: what the library does after one, in passes of its own, becomes an addition that fuses.

    convolution(x, w, b)      cuDNN's product, then one more kernel of the library that reads and writes all of it
    convolution(x, w) + b     the addition is part of whatever reads the result

Likewise backward: the gradient of a bias is a sum over the gradient of the result, beside other sums over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ferrite_torch.torch_private.operators import Overload

aten = torch.ops.aten


def rules_for_convolutions() -> Iterator[tuple[Overload, Callable[..., Any]]]:
    """Yields the two ops, each with a decomposition for GPUs that leaves what has no bias to the op."""
    yield aten.convolution.default, _without_bias
    yield aten.convolution_backward.default, _without_bias_gradient


def _without_bias(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: Any) -> Any:
    if bias is None or x.device.type != "cuda":
        return NotImplemented
    result = aten.convolution.default(x, weight, None, *rest)
    return aten.add.Tensor(result, aten.view.default(bias, [-1] + [1] * (result.dim() - 2)))


def _without_bias_gradient(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, sizes: Any, *rest: Any) -> Any:
    *given, mask = rest
    if not mask[2] or grad.device.type != "cuda":
        return NotImplemented
    total = aten.sum.dim_IntList(grad, [0, *range(2, grad.dim())])
    if not (mask[0] or mask[1]):
        return None, None, total
    image, filters, _ = aten.convolution_backward.default(grad, x, weight, None, *given, [mask[0], mask[1], False])
    return image, filters, total
