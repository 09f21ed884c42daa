"""Convolutions without bias and of images: the rules for GPUs, tried on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ferrite_torch.rewrites.convolutions import rules_for_convolutions

OPTIONS = {"fallback": False, "use_cache": False}


@pytest.fixture
def lines_as_images(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = partial(rules_for_convolutions, "cpu")
    monkeypatch.setattr("ferrite_torch.rewrites.decompositions.rules_for_convolutions", rules)
    torch._dynamo.reset()


def lines(x: Tensor, weight: Tensor, bias: Tensor, back: Tensor) -> tuple[Tensor, ...]:
    y = F.conv1d(x, weight, bias, stride=2, padding=1).relu()
    return y, F.conv_transpose1d(y, back, stride=2, padding=1, output_padding=1)


def images(x: Tensor, weight: Tensor, bias: Tensor, back: Tensor) -> tuple[Tensor, ...]:
    y = F.conv2d(x[:, :, None], weight[:, :, None], bias).sigmoid()
    return y, F.conv_transpose2d(y, back[:, :, None], bias[:5], dilation=2)


@pytest.mark.usefixtures("lines_as_images")
@pytest.mark.parametrize("program", [lines, images])
def test_results_and_gradients_are_those_of_eager(program: Callable[..., tuple[Tensor, ...]]) -> None:
    torch.manual_seed(0)
    given = [torch.randn(shape, requires_grad=True) for shape in ((2, 4, 20), (6, 4, 3), (6,), (6, 5, 3))]

    def run(function: Callable[..., Any]) -> list[Tensor]:
        results = function(*given)
        return [*results, *torch.autograd.grad(sum(result.square().sum() for result in results), given)]

    for mine, expected in zip(
        run(torch.compile(program, backend="ferrite", options=OPTIONS)), run(program), strict=True
    ):
        torch.testing.assert_close(mine, expected, atol=1e-3, rtol=1e-4)
        assert mine.stride() == expected.stride()


@pytest.mark.usefixtures("lines_as_images")
@pytest.mark.parametrize("wanted", range(3))
def test_a_gradient_alone(wanted: int) -> None:
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in ((2, 4, 20), (6, 4, 3), (6,))]
    leaf = given[wanted].requires_grad_()

    def gradient(function: Callable[..., Tensor]) -> Tensor:
        return torch.autograd.grad(function(*given).square().sum(), leaf)[0]

    def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv1d(x, weight, bias)

    mine = torch.compile(convolved, backend="ferrite", options=OPTIONS)
    torch.testing.assert_close(gradient(mine), gradient(F.conv1d), atol=1e-3, rtol=1e-4)
