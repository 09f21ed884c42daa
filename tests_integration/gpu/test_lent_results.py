"""CUDA graphs that lend their results: whoever holds one, and however long, finds in it what eager mode gives."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ferrite_torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
WIDTH, TURNS = 64, 60


class Layer(nn.Module):
    """Temporary values of several sizes, so that graphs that share memory would write over each other's results."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))).sin().softmax(-1)).cos()


class Row(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: Tensor) -> list[Tensor]:
        results = []
        for layer in self.layers:
            x = layer(x)
            results.append(x)
        return results


def pair(count: int) -> tuple[Row, Row]:
    """Returns layers in a row, and a copy whose layers are compiled one by one, to be played as CUDA graphs."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    eager = Row(count).cuda()
    ours = copy.deepcopy(eager)
    for layer in ours.layers:
        layer.compile(backend="ferrite", options={"cuda_graph": True, "fallback": False})
    return eager, ours


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def hold_some(run: Callable[[Any], list[Tensor]], eager: Row, ours: Row, seed: int) -> None:
    """Holds some results for some calls, and compares all that are held after each call."""
    drawn, held = random.Random(seed), []
    for _ in range(TURNS):
        x = torch.randn(8, WIDTH, device="cuda")
        wanted, found = run((eager, x)), run((ours, x))
        for each in zip(found, wanted, strict=True):
            close(*each)
        if drawn.random() < 0.6:
            held += drawn.sample(list(zip(found, wanted, strict=True)), drawn.randint(1, 3))
        drawn.shuffle(held)
        del found, wanted
        held = held[: drawn.randint(0, 6)]
        for each in held:
            close(*each)
    assert ferrite_torch.statistics()["captures"], "nothing was played"


@pytest.mark.parametrize("seed", range(4))
def test_results_of_layers_in_a_row(seed: int) -> None:
    eager, ours = pair(4)
    with torch.no_grad():
        hold_some(lambda given: given[0](given[1]), eager, ours, seed)


@pytest.mark.parametrize("seed", range(2))
def test_gradients_of_layers_in_a_row(seed: int) -> None:
    eager, ours = pair(3)

    def gradients(given: tuple[Row, Tensor]) -> list[Tensor]:
        row, x = given
        return list(torch.autograd.grad(row(x)[-1].square().sum(), list(row.parameters())))

    hold_some(gradients, eager, ours, seed)


@pytest.mark.parametrize("keeps", [0, 1, 3])
def test_a_loop_that_reads_what_it_gave(keeps: int) -> None:
    """The results of all calls, of which the last few are held."""
    eager, ours = pair(1)
    with torch.no_grad():
        for _ in range(4):
            x = wanted = torch.randn(8, WIDTH, device="cuda")
            held: list[tuple[Tensor, Tensor]] = []
            for _ in range(12):
                x, wanted = ours(x)[0], eager(wanted)[0]
                held = [*held, (x, wanted)][-keeps:] if keeps else []
                for each in held:
                    close(*each)
            close(x, wanted)


def test_layers_in_a_row_copy_nothing_but_what_moves() -> None:
    """Counted by the profiler: kernels and copies that the host asks for beside the graphs."""
    _, ours = pair(6)
    x = torch.randn(8, WIDTH, device="cuda")

    def call() -> Tensor:
        with torch.no_grad():
            y = x
            for layer in ours.layers:
                y = layer(y)
            return y

    for _ in range(12):
        call()
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
        call()
        torch.cuda.synchronize()
    names = [each.key for each in profile.key_averages() for _ in range(each.count)]
    assert sum(name.startswith("cudaGraphLaunch") for name in names) == 6
    assert not [name for name in names if name.startswith(("cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpy"))]
