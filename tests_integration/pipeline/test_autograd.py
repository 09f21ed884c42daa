"""Gradients through compiled functions, in every mode of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from against_eager import assert_close, compiled
from behaviour_checks import each_device


@each_device
@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_gradients_of_some_inputs(device: str, wanted: tuple[bool, bool]) -> None:
    inputs = [torch.randn(4, 5, device=device, requires_grad=flag) for flag in wanted]
    compiled(lambda a, b: (a * b).tanh().sum(), fullgraph=True)(*inputs).backward()
    mine = [x.grad for x in inputs]
    leaves = [x for x in inputs if x.requires_grad]
    eager = torch.autograd.grad((inputs[0] * inputs[1]).tanh().sum(), leaves)
    assert [x is not None for x in mine] == list(wanted)
    for a, e in zip([x for x in mine if x is not None], eager, strict=True):
        assert torch.allclose(a, e, atol=1e-6)


@each_device
def test_gradient_of_one_of_two_outputs(device: str) -> None:
    x = torch.randn(4, device=device, requires_grad=True)
    a, b = compiled(lambda x: (x.exp(), x.detach() * 2), fullgraph=True)(x)
    assert a.requires_grad
    assert not b.requires_grad
    a.sum().backward()
    assert torch.allclose(x.grad, x.detach().exp())


@each_device
def test_no_grad_and_inference_mode(device: str) -> None:
    x = torch.randn(4, device=device, requires_grad=True)
    called = compiled(lambda x: x.sin() * 2)
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            result = called(x)
        assert torch.allclose(result, x.sin() * 2)
        assert result.requires_grad == (context is torch.enable_grad)


@each_device
def test_no_grad_inside(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.norm()
        return x / scale

    x = torch.randn(4, device=device, requires_grad=True)
    compiled(function, fullgraph=True)(x).sum().backward()
    assert torch.allclose(x.grad, torch.full_like(x, 1 / x.detach().norm().item()))


@each_device
def test_gradients_accumulate(device: str) -> None:
    layer = nn.Linear(4, 3).to(device)
    called = compiled(layer, fullgraph=True)
    x = torch.randn(5, 4, device=device)
    called(x).sum().backward()
    once = layer.weight.grad.clone()
    called(x).sum().backward()
    assert torch.allclose(layer.weight.grad, once * 2)


@each_device
def test_two_forwards_before_two_backwards(device: str) -> None:
    x, y = (torch.randn(4, device=device, requires_grad=True) for _ in range(2))
    called = compiled(lambda x: (x.exp() * x).sum(), fullgraph=True)
    first, second = called(x), called(y)
    second.backward()
    first.backward()
    for leaf in (x, y):
        plain = leaf.detach()
        assert torch.allclose(leaf.grad, plain.exp() * (plain + 1), atol=1e-5)


@each_device
def test_custom_autograd_function(device: str) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * x.sign()

    x = torch.randn(5, device=device, requires_grad=True)
    compiled(lambda x: Double.apply(x).sum())(x).backward()
    assert torch.equal(x.grad, x.detach().sign())


@each_device
def test_checkpointing(device: str) -> None:
    layer = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).to(device)
    x = torch.randn(3, 4, device=device, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum()

    compiled(function)(x).backward()
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    assert torch.allclose(x.grad, expected, atol=1e-5)


@each_device
def test_autocast(device: str) -> None:
    layer = nn.Linear(6, 4).to(device)
    x = torch.randn(3, 6, device=device)

    def function(x: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            return F.gelu(layer(x))

    actual, eager = compiled(function, fullgraph=True)(x), function(x)
    assert actual.dtype == eager.dtype == torch.bfloat16
    exact = F.gelu(x.double() @ layer.weight.double().t() + layer.bias.double())
    assert_close(actual, eager, exact, scale=4.0)
