"""Scans along one axis."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_sums_and_products(agree: Any, name: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (3, 6)).to(dtype)
    agree(lambda x: (getattr(torch, name)(x, 1), getattr(torch, name)(x, 0)), x)


def test_into_another_type(agree: Any) -> None:
    agree(lambda x: torch.cumsum(x, 0, dtype=torch.float32), torch.arange(5))


def test_logcumsumexp(agree: Any) -> None:
    agree(lambda x: torch.logcumsumexp(x, -1), torch.randn(2, 5), tolerance=1e-5)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes(agree: Any, name: str) -> None:
    agree(lambda x: getattr(torch, name)(x, 1), torch.randperm(24).reshape(4, 6).float())
    agree(lambda x: getattr(torch, name)(x, 0), torch.tensor([1.0, 3.0, math.nan, 2.0]))
    agree(lambda x: getattr(torch, name)(x, 0), torch.tensor([2, 2, 1, 1, 3, 3]))


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_nothing_to_scan(agree: Any, shape: tuple[int, ...]) -> None:
    agree(lambda x: (torch.cumsum(x, 0), *torch.cummax(x, 0)), torch.randn(shape))
