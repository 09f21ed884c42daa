"""Training with CUDA graphs whose backward lends the gradients: as eager's, whoever holds them, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ferrite_runtime.engines import lent_memory
from ferrite_runtime.engines.lent_memory import is_lent, memory_of
from graphed_training import Graphs, Layer, Pair, backward, graphs, saved_memory, train

__all__ = ["graphs"]


def lent_gradients(pair: Pair) -> int:
    return sum(is_lent(memory_of(each.grad)) for each in pair.ours.parameters() if each.grad is not None)


def test_gradients_are_what_the_graph_made(graphs: Graphs) -> None:
    pair = Pair()
    train(pair, 6)
    x = torch.randn(4, 8)
    pair.each(lambda module: backward(module(x)))
    assert lent_gradients(pair) == 6  # autograd took them as they are, and copied none
    _, backwards = graphs
    assert any(each.is_held() for each in backwards.generations.values())
    pair.step()
    assert saved_memory(graphs) == 0


@pytest.mark.parametrize("steps", [2, 3])
def test_gradients_of_several_steps_add_up(graphs: Graphs, steps: int) -> None:
    pair = Pair()
    for _ in range(8):
        for x in torch.randn(steps, 4, 8):
            pair.each(lambda module, x=x: backward(module(x)))
        pair.step()
    host = graphs.from_host
    for x in torch.randn(steps, 4, 8):
        pair.each(lambda module, x=x: backward(module(x)))
    assert graphs.from_host == host
    _, backwards = graphs
    assert max(key[0] for key in backwards.generations) == 2, "those that copy"


def test_gradients_that_are_kept_until_there_are_new_ones(graphs: Graphs) -> None:
    """A loop over ``autograd.grad``: what was returned before dies when the name is bound again."""
    pair = Pair()
    kept: list[Any] = []
    for _ in range(40):
        x = torch.randn(4, 8)
        expected = torch.autograd.grad(pair.eager(x).square().sum(), list(pair.eager.parameters()))
        found = torch.autograd.grad(pair.compiled(x).square().sum(), list(pair.ours.parameters()))
        kept = [*kept[-1:], (found, expected)]
        for each in kept:
            torch.testing.assert_close(*each, rtol=1e-5, atol=1e-5)
    _, backwards = graphs
    assert max(key[0] for key in backwards.generations) == 2
    host = graphs.from_host
    torch.autograd.grad(pair.compiled(x).sum(), list(pair.ours.parameters()))
    assert graphs.from_host == host


def test_gradients_that_stay_set_to_zero(graphs: Graphs) -> None:
    pair = Pair()
    for _ in range(8):
        x = torch.randn(4, 8)
        pair.each(lambda module, x=x: backward(module(x)))
        for each in pair.optimizers:
            each.step()
            each.zero_grad(set_to_none=False)
    assert graphs.played > graphs.from_host


def test_gradients_that_are_dropped_late_do_not_add_generations(graphs: Graphs) -> None:
    """A gradient in the memory of a saved tensor would hold the graph of the forward until the next backward."""
    pair = Pair()

    def late(module: Any) -> torch.Tensor:
        y = module(x)
        module.zero_grad(set_to_none=True)
        return backward(y)

    for _ in range(12):
        x = torch.randn(4, 8)
        pair.each(late)
    assert all(max(key[0] for key in program.generations) <= 2 for program in graphs)
    host = graphs.from_host
    pair.each(late)
    assert graphs.from_host == host


def test_a_gradient_that_users_write_to(graphs: Graphs) -> None:
    pair = Pair()

    def clipped(module: Any) -> torch.Tensor:
        y = backward(module(x))
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        return y

    for _ in range(8):
        x = torch.randn(4, 8)
        pair.each(clipped)
        pair.step()


def test_one_gradient_for_two(graphs: Graphs) -> None:
    """``a + b``: both get one gradient, and each may be written to by itself."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
            self.layer = Layer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x * (self.a + self.b))

    pair = Pair(Sum)
    for _ in range(8):
        x = torch.randn(4, 8)
        pair.each(lambda module, x=x: backward(module(x)))
        for module in (pair.eager, pair.ours):
            module.a.grad.mul_(2)
        torch.testing.assert_close(pair.ours.b.grad, pair.eager.b.grad, rtol=1e-5, atol=1e-5)
        pair.step()


def test_streams_that_read_a_gradient_are_waited_for(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    lent_memory._hear_readers.cache_clear()
    pair, followed = Pair(), []
    train(pair, 6)
    for program in graphs:
        recorder = program._recorder
        object.__setattr__(recorder, "follow", followed.append)
    for stream in (None, "side", None):
        x = torch.randn(4, 8)
        pair.each(lambda module, x=x: backward(module(x)))
        if stream is not None:
            for each in pair.ours.parameters():
                each.grad.record_stream(stream)
                torch.randn(2).record_stream(stream)
        pair.step()
    assert [each for each in followed if each is not None] == ["side"]
    lent_memory._hear_readers.cache_clear()
