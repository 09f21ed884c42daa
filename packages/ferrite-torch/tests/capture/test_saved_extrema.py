"""What a gradient compares with an extremum is what the extremum was taken of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ferrite_torch

HALF, FULL = torch.bfloat16, torch.float32
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "amin kept": lambda x: torch.nn.functional.gelu(x).amin((0, 1), True),
    "amax by rows": lambda x: (x * 3 + 1).amax(1),
    "max": lambda x: (x * 3 + 1).max(),
    "norm": lambda x: torch.linalg.vector_norm(x.sin(), torch.inf, dim=0),
}


@pytest.mark.parametrize("dtype", [HALF, FULL], ids=["bf16", "f32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_extrema_reach_an_element(name: str, dtype: torch.dtype) -> None:
    mine = torch.randn(7, 51, generator=torch.Generator().manual_seed(3)).to(dtype).requires_grad_()
    theirs = mine.detach().clone().requires_grad_()
    compiled = torch.compile(FUNCTIONS[name], backend=ferrite_torch.ferrite, options={"fallback": False})
    compiled(mine).sum().backward()
    FUNCTIONS[name](theirs).sum().backward()
    assert mine.grad is not None
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_backward_computes_no_elements_anew_to_compare_them() -> None:
    compiled = torch.compile(FUNCTIONS["amin kept"], backend=ferrite_torch.ferrite, options={"fallback": False})
    found = compiled(torch.randn(7, 51, requires_grad=True))
    assert [x.shape for x in found.grad_fn.saved_tensors].count(torch.Size([7, 51])) == 2


@pytest.mark.parametrize("function", [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
def test_comparisons_see_rounded_numbers(function: Callable[..., Tensor]) -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(HALF)

    def compare(x: Tensor) -> Tensor:
        return function(x * 1.7, x * 1.703)

    equal = int((x * 1.7 == x * 1.703).sum())
    assert 0 < equal < x.numel()
    compiled = torch.compile(compare, backend=ferrite_torch.ferrite, options={"fallback": False})
    torch.testing.assert_close(compiled(x), compare(x))
