"""Windows that are larger than the image: as many places are looked at as the image has, not as the window has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ferrite_torch
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


OVERLAPPING: dict[str, Function] = {
    "mean": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "largest": lambda x: F.max_pool2d(x, (5, 3), 1, (2, 1)),
    "largest of 25": lambda x: F.max_pool2d(x, 5, 1, 2),
    "largest, and where": lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True),
    "read by others": lambda x: (F.max_pool2d(x, 3, 1, 1) + x).relu() * 2,
    "spread": lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1, 1, dilation=2),
}


@own_only("it has ferrite's own options")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_lane_has_several_rows_of_windows_that_overlap(
    name: str, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    """Thread coarsening, which needs more rows than these otherwise: each element is loaded once for all of them."""
    x = torch.randn(2, 6, 12, 20).to(dtype).to(memory_format=layout)
    options = {"fallback": False, "policy": {"coarsened_lanes": 1}, "use_cache": False}
    actual = torch.compile(OVERLAPPING[name], backend="ferrite", options=options)(x)
    torch.testing.assert_close(tensors_of(actual), tensors_of(OVERLAPPING[name](x)))
    facts = [kernel["facts"] for program in ferrite_torch.compiled_programs() for kernel in program["kernels"]]
    assert [each["unrolled"] for each in facts if "unrolled" in each] == [6]


NAN_POOLS: dict[str, tuple[int, Function]] = {
    "line": (1, lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True)),
    "image": (2, lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)),
    "overlapping": (2, lambda x: F.max_pool2d(x, (5, 3), 1, (2, 1), return_indices=True)),
    "volume": (3, lambda x: F.max_pool3d(x, 2, 1, 1, return_indices=True)),
    "large": (2, lambda x: F.max_pool2d(x, 7, 3, 3, return_indices=True)),
    "adaptive": (2, lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True)),
    "adaptive volume": (3, lambda x: F.adaptive_max_pool3d(x, 2, return_indices=True)),
    "fractional": (
        2,
        lambda x: F.fractional_max_pool2d(
            x, 3, output_size=3, return_indices=True, _random_samples=x.detach().new_full((2, 2, 2), 0.4)
        ),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAN_POOLS)
def test_of_several_nan_in_a_window_the_last_is_the_largest(name: str, dtype: torch.dtype) -> None:
    """As torch's kernels have it; of equal numbers, infinities among them, it is the first."""
    rank, function = NAN_POOLS[name]
    generator = torch.Generator().manual_seed(0)
    shape = (2, 2, *{1: (17,), 2: (17, 9), 3: (7, 6, 5)}[rank])
    x = torch.randint(-2, 3, shape, generator=generator).to(dtype)
    x[torch.rand(shape, generator=generator) < 0.3] = torch.nan
    x[torch.rand(shape, generator=generator) < 0.2] = torch.inf
    x.requires_grad_()
    actual, expected = compiled_to_kernels(function)(x), function(x)
    torch.testing.assert_close(tensors_of(actual), tensors_of(expected), equal_nan=True)
    if dtype is torch.float32:  # in bfloat16 torch rounds after each window that it adds
        torch.testing.assert_close(gradients(actual[0], (x,)), gradients(expected[0], (x,)))
