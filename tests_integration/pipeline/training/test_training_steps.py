"""What people do around a training step: hooks, gradients that stay, graphs that are kept, modes that look for errors.

All of it with programs called from the host, and with programs that are played as graphs, whose calls are settled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphed_training import Graphs, Layer, Pair, backward, graphs, saved_memory, train

__all__ = ["graphs"]

SETTLED = 7
"""Steps after which all parts are captured and their calls settled."""


@pytest.fixture(params=["host", "graphs"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Returns a module and its compiled copy after some steps."""
    played = request.getfixturevalue("graphs") if request.param == "graphs" else None
    torch._dynamo.reset()
    made = Pair()
    train(made, SETTLED)
    if played is not None:
        assert played.played > 0
        assert all(each.playback is not None for one in played for each in one.generations.values() if each.captured)
    return made


def test_gradients_that_stay_are_added_to(pair: Pair) -> None:
    x = torch.randn(4, 8)
    for _ in range(3):
        pair.each(lambda module: backward(module(x)))
    kept = [parameter.grad for parameter in pair.ours.parameters()]
    for each in pair.optimizers:
        each.zero_grad(set_to_none=False)
    pair.each(lambda module: backward(module(x)))
    assert all(one is parameter.grad for one, parameter in zip(kept, pair.ours.parameters(), strict=True))


def test_gradients_are_taken_over_as_they_are(pair: Pair) -> None:
    """A result of a backward that autograd would have to copy costs a kernel each."""
    returned: list[int] = []
    x = torch.randn(4, 8, requires_grad=True)
    y = pair.compiled(x)
    assert y.grad_fn is not None
    node: Any = y.grad_fn
    while not hasattr(type(node), "_forward_cls"):
        node = node.next_functions[0][0]
    node.register_hook(lambda inputs, outputs: returned.extend(each.data_ptr() for each in inputs if each is not None))
    y.sum().backward()
    assert {parameter.grad.data_ptr() for parameter in pair.ours.parameters()} <= set(returned)  # type: ignore[union-attr]


def test_hooks_of_parameters_are_called(pair: Pair) -> None:
    seen: list[str] = []
    ours = pair.ours
    ours.up.weight.register_hook(lambda gradient: seen.append("gradient") or gradient * 2)
    ours.up.bias.register_post_accumulate_grad_hook(lambda parameter: seen.append("accumulated"))
    x = torch.randn(4, 8)
    for _ in range(3):
        ours.zero_grad()
        pair.eager.zero_grad()
        backward(pair.eager(x))
        backward(pair.compiled(x))
        torch.testing.assert_close(ours.up.weight.grad, pair.eager.up.weight.grad * 2, rtol=1e-5, atol=1e-5)
    assert sorted(seen) == ["accumulated"] * 3 + ["gradient"] * 3


def test_gradients_of_some_parameters(pair: Pair) -> None:
    x = torch.randn(4, 8)

    def some(module: Callable[..., Any]) -> Any:
        owner = pair.eager if module is pair.eager else pair.ours
        return torch.autograd.grad(module(x).square().sum(), [owner.up.weight, owner.norm.bias])

    for _ in range(2):
        torch.testing.assert_close(some(pair.compiled), some(pair.eager), rtol=1e-5, atol=1e-5)
    assert all(parameter.grad is None for parameter in pair.ours.parameters())


def test_a_graph_that_is_kept_runs_again(pair: Pair) -> None:
    x = torch.randn(4, 8)

    def twice(module: Callable[..., Any]) -> Any:
        y = module(x).square().sum()
        y.backward(retain_graph=True)
        y.backward()
        return y.detach()

    for _ in range(2):
        pair.each(twice)
        pair.step()


def test_a_second_derivative_is_refused_as_torch_refuses_it(pair: Pair) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(pair.compiled(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()
    train(pair, 2)


def test_anomalies_are_looked_for(pair: Pair) -> None:
    x = torch.randn(4, 8)
    with torch.autograd.set_detect_anomaly(mode=True):
        pair.each(lambda module: backward(module(x)))
        y = pair.compiled(x) * torch.tensor(float("nan"))
        with pytest.raises(RuntimeError, match="returned nan values"):
            y.sum().backward()
    for owner in (pair.eager, pair.ours):
        owner.zero_grad()
    train(pair, 2)


def test_a_write_to_what_is_saved_is_noticed(pair: Pair) -> None:
    y = pair.compiled(torch.randn(4, 8))
    with torch.no_grad():
        pair.ours.down.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("change", [lambda x: x.double(), lambda x: x.to(torch.float16), torch.clone])
def test_hooks_for_saved_tensors_see_each(pair: Pair, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    shapes: list[torch.Size] = []

    def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        shapes.append(tensor.shape)
        return change(tensor.detach()) if tensor.is_floating_point() else tensor, tensor.dtype

    x = torch.randn(4, 8)
    for _ in range(2):
        pair.ours.zero_grad()
        pair.eager.zero_grad()
        backward(pair.eager(x))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[0].to(packed[1])):
            backward(pair.compiled(x))
        for one, other in zip(pair.eager.parameters(), pair.ours.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-2, atol=1e-2)
    assert torch.Size([4, 16]) in shapes


class Views(nn.Module):
    """Saves what are views of its own products, and returns two views of one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x).view(2, 2, 2, 4).transpose(1, 2)
        return (y.exp() * y.reshape(2, 2, 8).sin().view(2, 2, 2, 4)).flatten(1)


@pytest.mark.parametrize("played", [False, True])
def test_views_are_saved_as_they_are(played: bool, request: pytest.FixtureRequest) -> None:  # noqa: FBT001
    graphs: Graphs | None = request.getfixturevalue("graphs") if played else None
    torch._dynamo.reset()
    train(Pair(Views), SETTLED)
    assert graphs is None or saved_memory(graphs) == 0
