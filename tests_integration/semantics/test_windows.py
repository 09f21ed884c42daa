"""Windows that are larger than the image: as many places are looked at as the image has, not as the window has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from against_eager import compiled_to_kernels, gradients, own_only, tensors_of

Function = Callable[[torch.Tensor], Any]

SIZES = {1: (5,), 2: (7, 5), 3: (3, 4, 5)}
POOLS: dict[str, tuple[int, Function]] = {
    "mean of a line": (1, lambda x: F.avg_pool1d(x, 400, 1, 200, ceil_mode=True)),
    "mean": (2, lambda x: F.avg_pool2d(x, 2560, 1, 1280, ceil_mode=True)),
    "mean of what is there": (2, lambda x: F.avg_pool2d(x, 400, 3, 200, count_include_pad=False)),
    "mean by a number": (2, lambda x: F.avg_pool2d(x, (3, 300), (2, 1), (1, 150), divisor_override=7)),
    "mean of a volume": (3, lambda x: F.avg_pool3d(x, (2, 4, 5), 1, (1, 2, 2))),
    "largest of a line": (1, lambda x: F.max_pool1d(x, 60, 1, 30)),
    "largest": (2, lambda x: F.max_pool2d(x, 300, 2, 150, return_indices=True)),
    "largest, spread": (2, lambda x: F.max_pool2d(x, (8, 6), 1, (4, 3), dilation=2, return_indices=True)),
    "largest, far spread": (2, lambda x: F.max_pool2d(x, (3, 9), 1, (1, 4), dilation=(2, 1))),
    "largest of a volume": (3, lambda x: F.max_pool3d(x, (2, 10, 9), 1, (1, 5, 4), return_indices=True)),
    "norm of a line": (1, lambda x: F.lp_pool1d(F.pad(x, (200, 200)), 2, 401)),
    "norm": (2, lambda x: F.lp_pool2d(x, 2.0, (7, 5))),
    "reduced": (2, lambda x: F.fold(F.unfold(x, (9, 11), 1, 8), (7, 5), (9, 11), 1, 8)),
    "reduced, spread": (2, lambda x: F.fold(F.unfold(x, 6, 2, 8, 3), (7, 5), 6, 2, 8, 3)),
}


@pytest.mark.parametrize("name", POOLS)
def test_windows_larger_than_the_image(name: str) -> None:
    rank, function = POOLS[name]
    x = torch.randn(2, 3, *SIZES[rank], dtype=torch.float64).requires_grad_()
    actual, expected = compiled_to_kernels(function)(x), function(x)
    torch.testing.assert_close(tensors_of(actual), tensors_of(expected))
    torch.testing.assert_close(gradients(actual, (x,)), gradients(expected, (x,)))


@own_only("it has ferrite's own options")
@pytest.mark.parametrize("name", ["mean", "mean of what is there", "largest"])
def test_windows_larger_than_some_images(name: str) -> None:
    function = torch.compile(POOLS[name][1], backend="ferrite", dynamic=True, options={"fallback": False})
    for shape in ((1, 2, 7, 5), (1, 2, 16, 9), (1, 2, 6, 30)):
        x = torch.randn(shape)
        torch.testing.assert_close(tensors_of(function(x)), tensors_of(POOLS[name][1](x)))
