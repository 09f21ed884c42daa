"""Variances of numbers of elements that no parts have evenly: the last is shorter, or elements are left over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from against_eager import assert_worked, compiled, devices, observed_work, tensors_of

FUNCTIONS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "var": lambda x: x.var(),
    "of what is made first": lambda x: x.cumsum(0).var(),
    "std and mean": torch.std_mean,
    "normalised": lambda x: torch.nn.functional.layer_norm(x, x.shape),
    "softmax": lambda x: x.softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("size", [347_008, 100_003, 753_736])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_rest_counts_as_much_as_the_parts(name: str, size: int, device: str) -> None:
    function = FUNCTIONS[name]
    x = torch.randn(size, device=device) + 3
    _check(function(x.double()), compiled(function)(x))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_number_of_points(name: str, device: str) -> None:
    function = FUNCTIONS[name]
    called = compiled(function, dynamic=True)
    with observed_work() as work:
        for size in (100_003, 70_001, 131_072, 3, 1_000):
            x = torch.randn(size, device=device) + 3
            _check(function(x.double()), called(x))
    assert_worked(work)


def _check(expected: Tensor | tuple[Tensor, ...], actual: Tensor | tuple[Tensor, ...]) -> None:
    for exact, mine in zip(tensors_of(expected), tensors_of(actual), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-6)
