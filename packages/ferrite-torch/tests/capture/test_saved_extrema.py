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


def made(x: Tensor) -> Tensor:
    """Returns what backward would round elsewhere than forward, as it reads the mask of a relu."""
    return torch.relu(x * 1.3 + 0.1) * 1.7


INDEX = torch.arange(8 * 64 * 33).reshape(8, 64, 33) * 7919 % 9
READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "permuted": lambda x: made(x).permute(2, 0, 1).amax(2),
    "rows of a norm": lambda x: torch.nn.functional.layer_norm(made(x).transpose(1, 2), (64,)).amax(2),
    "norm": lambda x: torch.linalg.vector_norm(made(x), torch.inf, dim=1),
    "norm of a view": lambda x: torch.linalg.vector_norm(made(x).transpose(1, 2), -torch.inf, dim=2),
    "distance": lambda x: torch.dist(made(x), x * 0.3, torch.inf),
    "computed twice": lambda x: made(x) / (made(x).abs().amax(1, keepdim=True) + 0.1),
    "scattered": lambda x: x.new_zeros(8, 9, 33).scatter_reduce(1, INDEX, made(x), "amax"),
    "scattered apart": lambda x: x.new_zeros(8, 9, 33).scatter_reduce(1, INDEX, made(x), "amin", include_self=False),
    "by rows of an index": lambda x: x.new_zeros(8, 9, 33).index_reduce(1, INDEX[0, :, 0], made(x), "amax"),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("dtype", [torch.float16, HALF, FULL], ids=["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", READERS)
def test_gradients_of_extrema_lose_no_share(name: str, dtype: torch.dtype) -> None:
    """Roundings between ops may choose another of two near elements, so sums are compared, and how many there are."""
    x = torch.randn(8, 64, 33, generator=torch.Generator().manual_seed(0)).to(dtype)

    def gradient(call: Callable[[Tensor], Tensor]) -> Tensor:
        leaf = x.clone().requires_grad_()
        call(leaf).float().square().sum().backward()
        assert leaf.grad is not None
        return leaf.grad.double()

    compiled = torch.compile(READERS[name], backend=ferrite_torch.ferrite, options={"fallback": False})
    mine, theirs = gradient(compiled), gradient(READERS[name])
    assert mine.isfinite().all()
    scale = float(theirs.abs().sum())
    assert abs(float((mine - theirs).sum())) <= 0.02 * scale
    assert abs(int((mine != 0).sum()) - int((theirs != 0).sum())) <= 0.02 * x.numel()


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
