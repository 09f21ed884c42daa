"""Gradients of scans as a few scans: torch's own, once it is traced, has several ops for every element of a line."""

from __future__ import annotations

import torch
from torch import Tensor


def cumprod_gradient(grad: Tensor, x: Tensor, dim: int, output: Tensor) -> Tensor:
    """Returns the gradient of ``output = x.cumprod(dim)``; all of one shape.

    An element before the first zero of its line takes part in all results from its own on: the sum of their gradients
    times the results, without the element as a factor. That holds for the first zero too, with the results that the
    line would have if it were 1, up to the second one. Behind it all results are 0, whatever is there: gradients of
    these may be anything, NaN, too.
    """
    if x.dim() == 0 or x.numel() == 0 or x.shape[dim] == 1:
        return grad
    x, output = x.conj(), output.conj()
    is_zero = x == 0
    zeros = is_zero.to(torch.int32).cumsum(dim, dtype=torch.int32)
    is_first = is_zero & (zeros == 1)
    without = x.masked_fill(is_first, 1).cumprod(dim)
    before = _sums_from_here((grad * output).masked_fill(zeros > 0, 0), dim) / x.masked_fill(is_zero, 1)
    at_first = _sums_from_here((grad * without).masked_fill(zeros > 1, 0), dim)
    return torch.where(zeros == 0, before, torch.where(is_first, at_first, torch.zeros_like(before)))


def _sums_from_here(x: Tensor, dim: int) -> Tensor:
    """Returns the sums of what follows each element along a dim, itself included."""
    return x.flip(dim).cumsum(dim).flip(dim)
