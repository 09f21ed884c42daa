"""Scalars, empty tensors, strides, offsets and alignments of inputs and results of compiled functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from against_eager import compiled
from behaviour_checks import Function, assert_like_eager, each_device


@each_device
def test_scalar_tensors(device: str) -> None:
    x, y = torch.tensor(2.5, device=device), torch.tensor(3, device=device)
    assert_like_eager(lambda x, y: (x * y, x.exp(), y + 1, x.sum()), x, y)


@each_device
def test_host_scalar_among_device_tensors(device: str) -> None:
    x = torch.randn(4, device=device)
    assert torch.allclose(compiled(lambda x, s: x * s + s, fullgraph=True)(x, torch.tensor(1.5)), x * 1.5 + 1.5)


@each_device
def test_python_numbers(device: str) -> None:
    called = compiled(lambda x, a, b: x * a + b)
    x = torch.randn(4, device=device)
    for a, b in ((2, 0.5), (3, 0.5), (3, -1.25)):
        assert torch.allclose(called(x, a, b), x * a + b)


@each_device
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 3)])
def test_empty_tensors(device: str, shape: tuple[int, ...]) -> None:
    assert_like_eager(lambda x: (x * 2, x.sum(), x.sum(-1), torch.cat((x, x))), torch.randn(shape, device=device))


@each_device
def test_empty_result_of_a_full_input(device: str) -> None:
    assert_like_eager(lambda x: (x[2:2] * 2, x.sum(0)), torch.randn(3, 4, device=device))


@each_device
def test_expanded_input(device: str) -> None:
    x = torch.randn(3, 1, device=device).expand(3, 5)
    eager = x * 2 + 1
    actual = compiled(lambda x: x * 2 + 1, fullgraph=True)(x)
    assert torch.allclose(actual, eager)
    assert actual.stride() == eager.stride()


@each_device
def test_channels_last_stays(device: str) -> None:
    x = torch.randn(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)
    for function in (lambda x: x * 2, lambda x: F.relu(x) + x.sum((2, 3), keepdim=True), lambda x: F.pad(x, (1, 1))):
        torch._dynamo.reset()
        actual, eager = compiled(function, fullgraph=True)(x), function(x)
        assert torch.allclose(actual, eager)
        assert actual.stride() == eager.stride()


@each_device
def test_convolution_on_channels_last(device: str) -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1).to(device, memory_format=torch.channels_last)
    x = torch.randn(2, 3, 5, 5, device=device).to(memory_format=torch.channels_last)
    actual, eager = compiled(lambda x: conv(x).relu() * 2, fullgraph=True)(x), conv(x).relu() * 2
    assert torch.allclose(actual, eager, atol=1e-4)
    assert actual.stride() == eager.stride()


@each_device
def test_storage_offset(device: str) -> None:
    base = torch.randn(50, device=device)
    called = compiled(lambda x: x * 2 + x.sum(), fullgraph=True)
    for start in (1, 3, 7):  # pointers that are not multiples of 16 bytes
        x = base[start : start + 33]
        assert torch.allclose(called(x), x * 2 + x.sum(), atol=1e-4)


@each_device
def test_alignment_changes_between_calls(device: str) -> None:
    base = torch.randn(65, device=device)
    called = compiled(lambda x: x.exp(), fullgraph=True)
    for start in (0, 1, 0, 1):
        assert torch.allclose(called(base[start : start + 64]), base[start : start + 64].exp())


@each_device
def test_strided_input(device: str) -> None:
    x = torch.randn(8, 12, device=device)[::2, 1::3]
    actual, eager = compiled(lambda x: x * 2, fullgraph=True)(x), x * 2
    assert torch.allclose(actual, eager)
    assert actual.stride() == eager.stride()


@each_device
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.permute(2, 0, 1) + 1,
        lambda x: torch.empty_like(x.transpose(0, 1)).fill_(3.0),
        lambda x: x.transpose(0, 1).exp().sum(1),
        lambda x: torch.softmax(x.transpose(0, 2), -1),
        lambda x: torch.cat((x.transpose(0, 1), x.transpose(0, 1))),
        lambda x: x.transpose(1, 2) @ x,
        lambda x: x.transpose(0, 1).sort(-1).values,
        lambda x: torch.where(x.transpose(0, 1) > 0, 1.0, 2.0),
        lambda x: x.transpose(0, 1).to(torch.float64),
        lambda x: x.transpose(0, 1).contiguous(),
    ],
)
def test_strides_are_those_of_eager(device: str, function: Function) -> None:
    assert_like_eager(function, torch.randn(2, 3, 4, device=device))
