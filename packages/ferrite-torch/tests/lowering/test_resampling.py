"""Resampling, sampling by a grid, padding and windows as columns, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten
ROUNDING = 2e-5


def gradients(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Returns the gradients of a function by all its arguments, for a gradient of its result that is the result."""

    def of(*args: torch.Tensor) -> Any:
        leaves = [x.detach().requires_grad_() for x in args]
        y = function(*leaves)
        return torch.autograd.grad(y, leaves, y.detach())

    return of


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("size", [(9, 8), (3, 7), (1, 1)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation(agree: Any, mode: str, size: tuple[int, int], *, aligned: bool) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size, mode=mode, align_corners=aligned)

    x = torch.randn(1, 1, 4, 5)
    agree(resized, x, tolerance=ROUNDING)
    agree(gradients(resized), x, tolerance=ROUNDING)


def test_gradients_of_interpolation_add_nothing_atomically(agree: Any) -> None:
    graph = agree(gradients(lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear")), torch.randn(1, 1, 2, 2, 3))
    assert "update" not in str(graph)


@pytest.mark.parametrize("scale", [1.05, 1.7, 2.5, 0.77])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear"])
def test_scales_that_are_not_the_ratio_of_the_sizes(agree: Any, mode: str, scale: float) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=scale, mode=mode)

    x = torch.randn(1, 1, 6, 5)
    agree(resized, x, tolerance=ROUNDING)
    agree(gradients(resized), x, tolerance=ROUNDING)


@pytest.mark.parametrize("size", [(3, 4), (9, 2)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation_without_aliases(agree: Any, mode: str, size: tuple[int, int]) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size, mode=mode, antialias=True)

    x = torch.randn(1, 1, 7, 6)
    agree(resized, x, tolerance=ROUNDING)
    agree(gradients(resized), x, tolerance=ROUNDING)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_sampling_by_a_grid(agree: Any, mode: str, padding: str) -> None:
    def sampled(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, mode, padding, align_corners=False)

    given = torch.randn(1, 2, 4, 3), torch.rand(1, 2, 3, 2) * 3 - 1.5
    agree(sampled, *given, tolerance=ROUNDING)
    agree(gradients(sampled), *given, tolerance=ROUNDING)


@pytest.mark.parametrize("pads", [(2, 1, 0, 3), (-1, 2, 1, -1)])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "constant"])
def test_gradients_of_padding(agree: Any, mode: str, pads: tuple[int, ...]) -> None:
    agree(gradients(lambda x: F.pad(x, pads, mode=mode)), torch.randn(1, 2, 4, 5))


@pytest.mark.parametrize("how", [(2,), (3, 2, 1, 2)])
def test_windows_as_columns(agree: Any, how: tuple[int, ...]) -> None:
    x = torch.randn(1, 2, 6, 5)
    agree(lambda x: F.unfold(x, *how), x)
    agree(lambda x: F.fold(x, (6, 5), *how), F.unfold(x, *how))


@pytest.mark.parametrize("size", [(3, 2, 2), (1, 1, 1)])
def test_pooling_of_volumes(agree: Any, size: tuple[int, ...]) -> None:
    x = torch.randn(1, 1, 4, 5, 3)
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: F.max_pool3d(x, 2, 1, 1),
        lambda x: F.avg_pool3d(x, 2, 2, 1, count_include_pad=False),
        lambda x: F.adaptive_avg_pool3d(x, size),
        lambda x: F.adaptive_max_pool3d(x, size),
    ]
    for function in functions:
        agree(function, x, tolerance=ROUNDING)
        agree(gradients(function), x, tolerance=ROUNDING)
