"""Reductions: accumulate types, dims, nothing to reduce, and where eager's numbers come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

aten = torch.ops.aten
TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)
FLOATS = (torch.float32, torch.bfloat16, torch.float64)
ROUGH = 2e-2

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Returns numbers whose products stay small."""
    if dtype.is_floating_point:
        return torch.randn(3, 4, 5).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 4, (3, 4, 5)).to(dtype)


def limit(dtype: torch.dtype) -> float:
    return ROUGH if dtype is torch.bfloat16 else 1e-5


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "any", "all"])
def test_of_all_and_of_one_dim(agree: Any, name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    x = numbers(dtype)
    agree(function, x[:2, :2], tolerance=limit(dtype))
    agree(lambda x: (function(x, 1), function(x, -1, keepdim=True)), x, tolerance=limit(dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_extremes(agree: Any, dtype: torch.dtype) -> None:
    agree(lambda x: (x.amax((0, 2)), x.amin(1, keepdim=True), x.max(), x.min()), numbers(dtype))


@pytest.mark.parametrize("dtype", TYPES[:-1], ids=str)
def test_extremes_with_their_positions(agree: Any, dtype: torch.dtype) -> None:
    x = torch.arange(24).roll(5).reshape(4, 6).to(dtype)
    agree(lambda x: (*x.max(1), *x.min(0, keepdim=True), x.argmax(), x.argmin(1, keepdim=True)), x)
    agree(lambda x: torch.aminmax(x, dim=1), x)


def test_ties_go_to_the_first(agree: Any) -> None:
    agree(lambda x: (x.argmax(), x.argmin(), x.argmax(1), x.max(0)), torch.tensor([[1.0, 3.0, 3.0], [3.0, 1.0, 1.0]]))


def test_nan_wins(agree: Any) -> None:
    x = torch.tensor([1.0, math.nan, 3.0, math.inf])
    agree(lambda x: (x.max(), x.amin(), x.argmax(), x.min(0)), x)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("target", [torch.float32, torch.int32, torch.bfloat16], ids=str)
def test_sums_into_another_type(agree: Any, dtype: torch.dtype, target: torch.dtype) -> None:
    agree(lambda x: x.sum((0, 2), dtype=target), numbers(dtype), tolerance=limit(target))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_means_and_variances(agree: Any, dtype: torch.dtype) -> None:
    x = numbers(dtype)
    agree(lambda x: (x.mean(), x.mean((0, -1), keepdim=True)), x, tolerance=limit(dtype))
    for correction in (0, 1, 0.5, 5):
        agree(lambda x, c=correction: torch.var(x, 1, correction=c), x, tolerance=limit(dtype))
    agree(lambda x: (torch.std(x, (0, 1), keepdim=True), *torch.var_mean(x, 1)), x, tolerance=limit(dtype))
    agree(lambda x: (aten.var.dim(x, [1], False), aten.std.dim(x, [1, 2], True, True)), x, tolerance=limit(dtype))
    agree(torch.std_mean, x, tolerance=limit(dtype))
    agree(lambda x: torch.var(x[:, :1], 1), x)


def test_variance_of_one_number(agree: Any) -> None:
    x = torch.tensor([2.0, math.inf, math.nan])
    agree(lambda x: torch.var_mean(x[:, None], 1, correction=0), x)
    agree(lambda x: torch.std(x[2:], correction=0), x)


def test_variance_of_numbers_far_from_zero(agree: Any) -> None:
    """The sum of squares less the square of the sum would lose everything."""
    agree(lambda x: torch.var_mean(x, 1), torch.randn(3, 50) + 10_000, tolerance=1e-3)


@pytest.mark.parametrize("order", [2, 1, 0, math.inf, -math.inf, 3, 0.5])
def test_norms(agree: Any, order: float) -> None:
    agree(lambda x: torch.linalg.vector_norm(x, order, (0, 2)), numbers(torch.float32), tolerance=1e-4)
    agree(lambda x: torch.linalg.vector_norm(x, order), numbers(torch.bfloat16), tolerance=ROUGH)


def test_older_norms(agree: Any) -> None:
    agree(lambda x: (x.norm(), x.norm(3, 1), x.norm(2, (0, 1), keepdim=True)), numbers(torch.float32), tolerance=1e-5)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 3),
        torch.tensor([[1.0, math.inf]]),
        torch.full((2, 3), -math.inf),
        torch.tensor([[math.nan, 1.0]]),
        torch.tensor([[-math.inf, 2.0]]),
    ],
)
def test_logsumexp(agree: Any, x: torch.Tensor) -> None:
    agree(lambda x: (torch.logsumexp(x, 1), torch.logsumexp(x, (0, 1), keepdim=True)), x)


def test_sums_without_nan_and_counts(agree: Any) -> None:
    x = torch.where(torch.rand(4, 5) > 0.7, math.nan, torch.randn(4, 5).relu())
    agree(lambda x: (torch.nansum(x, 1), torch.nansum(x), torch.count_nonzero(x, 0), torch.count_nonzero(x)), x)


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "mean", "nansum"])
def test_reductions_of_nothing(agree: Any, name: str) -> None:
    function: Callable[..., torch.Tensor] = getattr(torch, name)
    agree(lambda x: (function(x, 0), function(x)), torch.randn(0, 3))
    agree(lambda x: function(x, 1), torch.randn(0, 3))


def test_more_reductions_of_nothing(agree: Any) -> None:
    agree(lambda x: (x.var(0), torch.logsumexp(x, 0), x.amax(1)), torch.randn(0, 3))


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "mean", "amax", "amin", "max", "argmax", "var", "std"])
def test_reductions_of_one_number(agree: Any, name: str) -> None:
    agree(getattr(torch, name), torch.tensor(2.5))


def test_empty_lists_of_dims(agree: Any) -> None:
    x = torch.tensor([[True, False], [True, True]])
    agree(lambda x: (aten.any.dims(x, []), aten.all.dims(x, None), x.sum([])), x)


def test_results_lie_as_eagers_do(agree: Any) -> None:
    agree(lambda x: x.permute(2, 0, 1).sum(1), torch.randn(4, 6, 5), tolerance=1e-5)
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    agree(lambda x: (x.sum(1, keepdim=True), x.amax(2)), x, tolerance=1e-5)
