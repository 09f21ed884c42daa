"""Reductions of columns that would be read again: held in one tile while they fit, read in turns where they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, gradients, own_only, widened

OPTIONS = {"fallback": False, "verify": True}


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def layer_norm(x: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    away = wide - wide.mean(1, keepdim=True)
    return (away * torch.rsqrt(away.square().mean(1, keepdim=True) + 1e-5)).to(x.dtype)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("points", [1, 3, 24, 100, 200, 256, 257])
@pytest.mark.parametrize("function", [softmax, layer_norm])
def test_values_and_gradients(
    function: Callable[[Tensor], Tensor], points: int, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(3, points, 70, device=device) + torch.arange(70, device=device)).to(dtype)
    x[0, 0, 3] = -20
    slope = torch.randn(3, points, 70, device=device).to(dtype)

    def run(call: Callable[[Tensor], Tensor], value: Tensor, slope: Tensor) -> list[Tensor]:
        leaf = value.detach().clone().requires_grad_()
        result = call(leaf)
        return [result.detach(), *gradients([result * slope], [leaf])]

    mine = run(compiled(function, fullgraph=True, dynamic=False, options=OPTIONS), x, slope)
    assert_all_close(mine, run(function, x, slope), run(function, widened(x), widened(slope)))


@own_only("looks at its kernels")
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("points", "form"), [(64, "persistent"), (200, "persistent"), (300, "looped")])
def test_softmax_and_norm_of_columns_are_one_kernel(points: int, form: str, device: str) -> None:
    x = torch.randn(64, points, 96, device=device)
    for function in (softmax, layer_norm):
        compiled(function, fullgraph=True, dynamic=False, options={**OPTIONS, "use_cache": False})(x)
        (kernel,) = ferrite_torch.compiled_programs()[-1]["kernels"]
        assert kernel["form"] == form, function


@own_only("looks at its kernels")
@pytest.mark.parametrize("device", devices())
def test_columns_that_are_read_once_are_not_held(device: str) -> None:
    x = torch.randn(64, 200, 96, device=device)
    options = {**OPTIONS, "use_cache": False, "policy": {"split_minimum": 1024}}
    compiled(lambda x: x.sum(1), fullgraph=True, dynamic=False, options=options)(x)
    (kernel,) = ferrite_torch.compiled_programs()[-1]["kernels"]
    assert kernel["form"] == "looped"
