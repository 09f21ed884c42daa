"""Sequences that are padded and cut into chunks, as linear attention and state-space models do, at any length.

What torch itself tells apart, such as a single chunk (an extent of 1 is another kind), it captures again; nothing else
compiles anew.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import ferrite_torch
from against_eager import devices

CHUNK = 16
LENGTHS = (37, 9, 48, 100, 16, 33, 5)


def chunked(x: Tensor) -> Tensor:
    """Returns ``[batch, heads, chunks, CHUNK]``, the last chunk padded."""
    batch, heads, length = x.shape
    padded = F.pad(x, (0, (CHUNK - length % CHUNK) % CHUNK))
    return padded.reshape(batch, heads, -1, CHUNK)


def decays(x: Tensor) -> Tensor:
    """Returns how much of each place of a chunk is left at each later one (Dao and Gu, "Mamba-2", 2024)."""
    summed = chunked(x).cumsum(-1)
    return (summed.unsqueeze(-1) - summed.unsqueeze(-2)).tril().exp()


def cut_back(x: Tensor) -> Tensor:
    """Returns sums of chunks, each at the places of its chunk that the sequence has."""
    sums = chunked(x).sum(-1, keepdim=True) * chunked(x)
    return sums.flatten(2)[..., : x.shape[-1]] + x


def captures(function: Callable[[Tensor], Tensor]) -> int:
    """Returns how often torch captures a function by itself."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    called = torch.compile(function, backend=counter, dynamic=True, fullgraph=True)
    for length in LENGTHS:
        called(torch.ones(2, 3, length))
    return int(counter.frame_count)


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("function", [chunked, decays, cut_back], ids=lambda function: function.__name__)
@pytest.mark.parametrize("device", devices())
def test_lengths_compile_nothing_anew(device: str, function: Callable[[Tensor], Tensor], *, trains: bool) -> None:
    expected_graphs = captures(function) * (1 + trains)
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    called = torch.compile(function, backend="ferrite", dynamic=True, fullgraph=True, options={"fallback": False})
    for length in LENGTHS:
        x = -torch.rand(2, 3, length, device=device)
        mine, eager = (x.clone().requires_grad_(trains) for _ in range(2))
        found, expected = called(mine), function(eager)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        if trains:
            found.square().sum().backward()
            expected.square().sum().backward()
            torch.testing.assert_close(mine.grad, eager.grad, rtol=1e-4, atol=1e-4)
    statistics = ferrite_torch.statistics()
    assert not statistics["specialised"]
    assert statistics["graphs"] <= expected_graphs


@pytest.mark.parametrize("device", devices())
def test_parts_of_listed_sizes_compile_once(device: str) -> None:
    """As many rows for each expert as a list says, which torch asks to be neither 0 nor 1."""

    def parts(x: Tensor, counts: list[int]) -> Tensor:
        first, second, third = x.split(counts)
        return first.sum(0) + second.amax(0) * 2 + third.sum(0)

    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    called = torch.compile(parts, backend="ferrite", dynamic=True, fullgraph=True, options={"fallback": False})
    for counts in ([3, 4, 5], [2, 6, 7], [9, 2, 3]):
        x = torch.randn(sum(counts), 4, device=device)
        torch.testing.assert_close(called(x, counts), parts(x, counts))
    statistics = ferrite_torch.statistics()
    assert not statistics["specialised"]
    assert statistics["graphs"] == 1
