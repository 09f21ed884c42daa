"""Gradients of scans are those of eager, and a fixed number of kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ferrite_torch
from ferrite_torch.formulas.scan_gradients import cumprod_gradient


@pytest.mark.parametrize("zeros", [(), (3,), (0,), (6,), (2, 4), (0, 1, 6)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradient_of_a_cumulative_product(zeros: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(2, 7, 3, dtype=dtype, generator=torch.Generator().manual_seed(1))
    x[:, list(zeros), 1] = 0
    x.requires_grad_()
    output = x.cumprod(1)
    grad = torch.randn(2, 7, 3, dtype=dtype, generator=torch.Generator().manual_seed(2))
    (expected,) = torch.autograd.grad(output, x, grad)
    torch.testing.assert_close(cumprod_gradient(grad, x.detach(), 1, output.detach()), expected)


@pytest.mark.parametrize("zeros", [(3,), (0,), (2, 4)])
def test_gradients_of_results_that_are_zero_may_be_anything(zeros: tuple[int, ...]) -> None:
    x = torch.randn(2, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[:, list(zeros), 1] = 0
    x.requires_grad_()
    output = x.cumprod(1)
    grad = torch.randn(2, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    grad[:, zeros[-1] :, 1] = torch.nan
    (expected,) = torch.autograd.grad(output, x, grad)
    found = cumprod_gradient(grad, x.detach(), 1, output.detach())
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_long_line_takes_few_kernels() -> None:
    def function(x: Tensor) -> Tensor:
        return x.cumprod(-1)

    x = torch.linspace(0.9, 1.1, 600).reshape(3, 200).requires_grad_()
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    compiled = torch.compile(function, backend=ferrite_torch.ferrite, options={"fallback": False})
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(found, expected)
    launches = [step for step in ferrite_torch.compiled_programs()[-1]["steps"] if step["do"] == "launch"]
    assert 0 < len(launches) < 10
