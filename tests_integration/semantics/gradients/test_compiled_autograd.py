"""Compiled autograd: the whole backward, hooks and accumulation included, traced by dynamo into one graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd

import ferrite_torch.backend
from against_eager import assert_worked, compiled, compiled_or_eager, observed_work, own_only, own_statistics
from ferrite_torch.errors import Unsupported

Wrap = Callable[[Callable[..., object]], Callable[..., object]]


def smooth(x: Tensor) -> Tensor:
    return (x.sin() * x.exp()).tanh()


class Steeper(torch.autograd.Function):
    """An exponential whose gradient is wrong on purpose, to tell it from one that was traced through."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.exp() * 1.5


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def accumulated(function: Wrap, step: Wrap) -> list[Tensor]:
    """Returns gradients after three steps, with hooks on the input and after it."""
    x, called, sums = leaf(4, 4), function(smooth), []
    x.register_hook(lambda grad: grad * 2)
    x.register_post_accumulate_grad_hook(lambda x: sums.append(x.grad.sum().detach()))
    take = step(lambda x: called(x).sum().backward())
    for _ in range(3):
        take(x)
    return [x.grad, *sums]


def of_any_size(function: Wrap, step: Wrap) -> list[Tensor]:
    called, found = function(smooth), []
    take = step(lambda x: called(x).sum().backward())
    for size in (3, 5, 7):
        x = leaf(size, 4)
        take(x)
        found.append(x.grad)
    return found


def trained(function: Wrap, step: Wrap) -> list[Tensor]:
    layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer, called = torch.optim.SGD(layers.parameters(), 0.1), function(layers)

    def one(x: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(called(x), target)
        loss.backward()
        return loss

    take, losses = step(one), []
    for _ in range(2):
        losses.append(take(torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])).detach())
        optimizer.step()
        optimizer.zero_grad()
    return [*losses, *(parameter.detach() for parameter in layers.parameters())]


def with_own_gradient(function: Wrap, step: Wrap) -> list[Tensor]:
    x, called = leaf(4, 4), function(smooth)
    step(lambda x: (Steeper.apply(called(x)) * x).sum().backward(retain_graph=True))(x)
    return [x.grad]


PROGRAMS = {program.__name__: program for program in (accumulated, of_any_size, trained, with_own_gradient)}


def plain(function: Callable[..., object]) -> Callable[..., object]:
    return function


EAGER, COMPILED, STEP = "around an eager function", "around a compiled function", "inside a step"
CASES = [
    *(("accumulated", where) for where in (EAGER, COMPILED, STEP)),
    ("of_any_size", COMPILED),
    ("trained", STEP),
    ("with_own_gradient", COMPILED),
]


@pytest.mark.parametrize(("name", "where"), CASES)
def test_gradients_are_those_of_eager(name: str, where: str) -> None:
    program = PROGRAMS[name]
    torch.manual_seed(0)
    expected = program(plain, plain)
    torch.manual_seed(0)
    with observed_work() as work:
        if where == STEP:
            with torch._dynamo.config.patch(compiled_autograd=True):
                found = program(plain, compiled)
        else:
            with compiled_autograd._enable(compiled):
                found = program(compiled if where == COMPILED else plain, plain)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert_worked(work)


@own_only("it makes our backend refuse")
def test_what_is_refused_runs_eagerly_in_the_same_calling_convention(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Unsupported("a graph for this test")

    monkeypatch.setattr(ferrite_torch.backend, "_check_layouts", refuse)
    x = leaf(3)
    loss = smooth(x).sum()
    with compiled_autograd._enable(compiled_or_eager):
        loss.backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(smooth(x).sum(), x)[0])
    assert any("a graph for this test" in reason for reason in own_statistics()["fallbacks"])
