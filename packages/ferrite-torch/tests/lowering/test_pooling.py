"""Pooling and resampling, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten

WINDOWS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True},
    {"kernel_size": 5, "stride": 2, "padding": 2},
]


def gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns the gradient of a function for a gradient of its result that is the result."""

    def of(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        y = function(leaf)
        return torch.autograd.grad(y, leaf, y.detach())[0]

    return of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [*WINDOWS, {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}], ids=str)
def test_largest_of_windows(agree: Any, window: dict[str, Any], dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, 7, 6).to(dtype)

    def with_indices(x: torch.Tensor) -> Any:
        return F.max_pool2d(x, return_indices=True, **window)

    agree(with_indices, x)
    agree(with_indices, x[0])
    agree(gradient(lambda x: F.max_pool2d(x, **window)), x, tolerance=5e-2 if dtype is torch.bfloat16 else 1e-5)


def test_windows_of_nothing_but_infinity_point_into_the_input(agree: Any) -> None:
    agree(lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]), torch.full((1, 1, 5, 5), -math.inf))


@pytest.mark.parametrize("divisor", [None, 7])
@pytest.mark.parametrize("counts_padding", [True, False])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_means_of_windows(agree: Any, window: dict[str, Any], *, counts_padding: bool, divisor: int | None) -> None:
    def pooled(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, count_include_pad=counts_padding, divisor_override=divisor, **window)

    x = torch.randn(1, 2, 7, 6)
    agree(pooled, x, tolerance=1e-5)
    agree(gradient(pooled), x, tolerance=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (4, 2), (7, 6), (9, 8)])
def test_means_of_adaptive_windows(agree: Any, size: tuple[int, int]) -> None:
    x = torch.randn(1, 2, 7, 6)
    agree(lambda x: aten._adaptive_avg_pool2d(x, size), x, tolerance=1e-5)
    agree(gradient(lambda x: aten._adaptive_avg_pool2d(x, size)), x, tolerance=1e-5)


@pytest.mark.parametrize("size", [(0, 3), (2, 0)])
def test_no_adaptive_windows(agree: Any, size: tuple[int, int]) -> None:
    x = torch.randn(1, 2, 7, 6)
    agree(lambda x: aten._adaptive_avg_pool2d(x, size), x)
    agree(lambda x: aten.adaptive_max_pool2d(x, size), x)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("size", [(14, 12), (21, 6), (5, 4), (12, 11), (7, 3)])
def test_nearest_neighbours(agree: Any, size: tuple[int, int], mode: str) -> None:
    agree(lambda x: F.interpolate(x, size, mode=mode), torch.randn(1, 2, 7, 6))


def test_nearest_neighbours_by_a_factor(agree: Any) -> None:
    x = torch.randn(1, 2, 5, 4)
    agree(lambda x: F.interpolate(x, scale_factor=2.5), x)
    agree(lambda x: F.interpolate(x, scale_factor=2.0), x)
    agree(lambda x: F.interpolate(x, 7), torch.randn(2, 3, 5))
    agree(lambda x: F.interpolate(x, scale_factor=2), torch.randn(1, 2, 3, 3, 3))


def test_gradient_of_whole_factors(agree: Any) -> None:
    agree(gradient(lambda x: F.interpolate(x, (10, 12))), torch.randn(1, 2, 5, 4), tolerance=1e-5)
