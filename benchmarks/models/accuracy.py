"""Compares results of a backend with a reference through samples small enough to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

OUTPUT_SAMPLE = 1 << 20
GRADIENT_SAMPLE = 1 << 12


def sample(x: Tensor, limit: int = OUTPUT_SAMPLE) -> Tensor:
    """Returns at most `limit` evenly spaced elements of `x`, in logical order, as float64 on the host."""
    if x.numel() == 0:
        return torch.empty(0, dtype=torch.float64)
    where = torch.linspace(0, x.numel() - 1, min(limit, x.numel()), device=x.device, dtype=torch.float64).long()
    index = torch.unravel_index(where, x.shape) if x.dim() else ()
    return x.detach()[index].cpu().to(torch.float64)


def sample_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Returns a sample of every parameter's gradient; a parameter without one is left out."""
    return {
        name: sample(parameter.grad, GRADIENT_SAMPLE)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def relative_error(actual: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """Returns the l2 norm of the difference over that of the reference, over all tensors."""
    if actual.keys() != reference.keys():
        return math.inf
    difference = sum((actual[name] - value).square().sum().item() for name, value in reference.items())
    size = sum(value.square().sum().item() for value in reference.values())
    error = math.sqrt(difference / size) if size else math.sqrt(difference)
    return error if math.isfinite(error) else math.inf


def worst_tensor(
    actual: Mapping[str, Tensor], eager: Mapping[str, Tensor], reference: Mapping[str, Tensor]
) -> tuple[str, float]:
    """Returns the tensor whose error most exceeds eager's own, and by which factor.

    Tensors whose true value is noise (a gradient that is zero in exact arithmetic) are left out: there eager's error is
    as large as the value.
    """
    worst = ("", 0.0)
    for name, value in reference.items():
        if name not in actual or name not in eager:
            continue
        size = value.norm().item()
        own = (eager[name] - value).norm().item()
        if size == 0.0 or own > 0.5 * size:
            continue
        factor = (actual[name] - value).norm().item() / max(own, 1e-6 * size)
        if factor > worst[1]:
            worst = (name, factor)
    return worst


def deviation(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Returns the largest distance between two loss curves of the same length, relative to the reference's start.

    The start, because a model that has learnt its batch by heart has a loss near zero.
    """
    if len(losses) != len(reference) or not losses:
        return math.inf
    largest = max(abs(a - b) for a, b in zip(losses, reference, strict=True)) / max(abs(reference[0]), 1e-12)
    return largest if math.isfinite(largest) else math.inf
