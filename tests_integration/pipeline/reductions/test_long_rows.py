"""Rows that no tile holds: softmax, its relatives and positions of extremes, with infinities and NaN in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, gradients, widened

WIDTHS = (9000, 16384, 20001)  # unaligned, aligned, odd


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(wide(x), -1)


def cross_entropy(x: Tensor) -> Tensor:
    labels = torch.tensor([0, x.shape[1] - 1, -100, 7], device=x.device)
    return F.cross_entropy(wide(x), labels)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "softmax": softmax,
    "logsumexp": logsumexp,
    "cross entropy": cross_entropy,
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, width: int, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(width)
    function = FUNCTIONS[name]
    given = (3 * torch.randn(4, width, device=device)).to(dtype)

    def run(call: Callable[[Tensor], Any], x: Tensor) -> list[Any]:
        x = x.detach().clone().requires_grad_()
        y = call(x)
        return [y.detach(), *gradients([y], [x])]

    mine = run(compiled(function, fullgraph=True, dynamic=False), given)
    assert_all_close(mine, run(function, given), run(function, widened(given)))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("width", [60000, 65536])
def test_rows_longer_than_their_share_of_the_cache_are_read_again_from_their_end(width: int, device: str) -> None:
    torch.manual_seed(width)
    x = 3 * torch.randn(2, width, device=device)
    mine = compiled(softmax, fullgraph=True, dynamic=False)(x)
    torch.testing.assert_close(mine, softmax(x))


def without_first(x: Tensor) -> Tensor:
    return wide(x[:, 1:]).amax(-1)


REDUCED: dict[str, Callable[[Tensor], Any]] = {
    "logsumexp": logsumexp,
    "sum": lambda x: wide(x).exp().sum(-1),
    "max": without_first,
    "all": lambda x: (x < 100).all(-1),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", REDUCED)
def test_rows_that_begin_anywhere_know_nothing_of_their_neighbours(name: str, dtype: torch.dtype, device: str) -> None:
    """Vectors at both ends of such rows hold elements of others, which are made to matter."""
    torch.manual_seed(0)
    x = torch.randn(16, 9001, device=device).to(dtype)
    x[1::2] += 1000  # whose exponentials are infinite
    function = REDUCED[name]
    mine = compiled(function, fullgraph=True, dynamic=False)(x)
    torch.testing.assert_close(mine, function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ["softmax", "logsumexp"])
def test_infinities_and_nan_come_out_as_in_eager(name: str, device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 10000, device=device)
    x[0, 5] = math.inf
    x[1] = -math.inf
    x[2, 7] = math.nan
    x[3, 100:9000] = -math.inf
    x[4, 0], x[4, 9] = math.nan, math.inf
    x[5] = math.inf
    function = FUNCTIONS[name]
    mine, eager = compiled(function, fullgraph=True, dynamic=False)(x), function(x)
    torch.testing.assert_close(mine, eager, equal_nan=True)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_positions_of_extremes_are_the_first(width: int, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(width)
    x = (3 * torch.randn(6, width, device=device)).to(dtype)
    x[3] = 0
    if dtype.is_floating_point:
        x[0, 7] = x[0, 9] = math.nan
        x[1], x[4] = -math.inf, math.inf
        x[2, width - 1] = math.inf
        x[5] = math.nan

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.argmax(-1), x.argmin(-1)

    mine, eager = compiled(both, fullgraph=True, dynamic=False)(x), both(x)
    for found, expected in zip(mine, eager, strict=True):
        assert torch.equal(found, expected)
