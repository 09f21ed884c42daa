"""Distances between all points of two clouds, which are made where they are read, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, own_only

OPTIONS = {"fallback": False, "verify": True}


def chamfer(x: Tensor, y: Tensor) -> Tensor:
    squares = (x[:, None] - y[None]).square().sum(-1)
    return squares.amin(0).mean() + squares.amin(1).mean()


def kernel_means(x: Tensor, y: Tensor) -> Tensor:
    return (-(x[:, None] - y[None]).abs().sum(-1)).softmax(1) @ y


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"chamfer": chamfer, "kernel means": kernel_means}


def clouds(device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return tuple(torch.randn(count, 3, dtype=dtype, device=device).requires_grad_() for count in (1100, 1000))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, device: str) -> None:
    function, inputs = FUNCTIONS[name], clouds(device)
    results = []
    for each in (compiled(function, fullgraph=True, dynamic=False, options=OPTIONS), function):
        result = each(*inputs)
        results.append([result.detach(), *torch.autograd.grad(result.sum(), inputs)])
    exact = function(*(x.detach().double().requires_grad_() for x in inputs))
    assert_all_close(results[0][:1], results[1][:1], [exact.detach()])
    for mine, theirs in zip(results[0], results[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@own_only("looks at its kernels")
def test_no_distance_is_stored() -> None:
    from ferrite_torch import compiled_programs

    compiled(chamfer, fullgraph=True, dynamic=False, options=OPTIONS)(*(x.detach() for x in clouds("cpu")))
    moved = [kernel["facts"]["bytes"] for kernel in compiled_programs()[-1]["kernels"]]
    assert max(moved) < 1 << 16
