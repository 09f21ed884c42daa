"""Nested tensors of jagged layout: rows of any lengths that lie one after the other, compiled once for all lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from against_eager import assert_close, compiled, compiled_or_eager, devices, gradients, observed_work, own_only

each_device = pytest.mark.parametrize("device", devices())
WIDTH = 4
LENGTHS = ((3, 5), (1, 2, 7), (4,), (40, 2))


def jagged(lengths: Sequence[int], device: str, *, trains: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = [torch.randn(length, WIDTH, generator=generator).to(device) for length in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=trains)


def values(x: Tensor) -> Tensor:
    return x.values() if x.is_nested else x


def attention(x: Tensor) -> Tensor:
    heads = x.unflatten(-1, (2, WIDTH // 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elements": lambda x: (x.sin() * 2 + x).relu(),
    "layer norm": lambda x: F.layer_norm(x, (WIDTH,)) * 2,
    "softmax of elements": lambda x: torch.softmax(x, -1),
    "softmax of rows": lambda x: torch.softmax(x * 2, 1),
    "sum of rows": lambda x: x.exp().sum(1),
    "mean of rows": lambda x: x.exp().mean(1),
    "padded": lambda x: torch.nested.to_padded_tensor(x * 2, 0.0).cos(),
    "values": lambda x: x.cos().values().sum(0),
}


@each_device
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_of_any_lengths(device: str, name: str) -> None:
    function = FUNCTIONS[name]
    torch._dynamo.reset()
    call = compiled(function, fullgraph=True)
    for lengths in LENGTHS:
        x = jagged(lengths, device)
        exact = function(x.double())
        found, eager = call(x), function(x)
        assert found.is_nested is eager.is_nested
        assert_close(values(found), values(eager), values(exact), f"{name} of {lengths}")
        if eager.is_nested:
            assert torch.equal(found.offsets(), eager.offsets())


@each_device
@own_only("counts graphs")
def test_one_graph_serves_all_lengths_but_the_first(device: str) -> None:
    torch._dynamo.reset()
    call = compiled(FUNCTIONS["elements"], fullgraph=True)
    several = [lengths for lengths in LENGTHS if len(lengths) > 1]  # torch makes an extent of 1 a number
    with observed_work() as work:
        for lengths in several * 2:
            call(jagged(lengths, device))
    assert work.graphs == 2
    assert work.kernels == 2


@each_device
@own_only("about graphs that are kept on disk")
def test_graphs_that_would_be_kept_compile_too(device: str) -> None:
    """Graphs that are verified are not kept: those of the other tests."""
    torch._dynamo.reset()
    function = FUNCTIONS["elements"]
    call = compiled(function, fullgraph=True, options={"fallback": False})
    with observed_work() as work:
        for lengths in LENGTHS:
            x = jagged(lengths, device)
            assert_close(call(x).values(), function(x).values(), function(x.double()).values(), str(lengths))
    assert work.kernels == work.graphs > 0


@each_device
def test_attention_within_each_sequence(device: str) -> None:
    """On a CPU torch breaks the graph: its attention makes nested tensors of another layout there."""
    torch._dynamo.reset()
    call = compiled_or_eager(lambda x: attention(x * 2))
    for lengths in LENGTHS:
        x = jagged(lengths, device)
        found, eager, exact = call(x), attention(x * 2), attention(x.double() * 2)
        assert_close(found.values(), eager.values(), exact.values(), str(lengths))


@each_device
def test_training(device: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, 3, device=device)

    def function(x: Tensor, layer: nn.Module) -> Tensor:
        return F.gelu(layer(x)).values()

    def trained(function: Callable[..., Any], x: Tensor, layer: nn.Linear) -> list[Tensor]:
        found = gradients(function(x, layer), [x, layer.weight])
        return [values(grad) for grad in found if grad is not None]

    torch._dynamo.reset()
    call = compiled(function, fullgraph=True)
    wide = nn.Linear(WIDTH, 3, device=device).double()
    wide.load_state_dict(layer.state_dict())
    for lengths in LENGTHS:
        mine, theirs = (jagged(lengths, device, trains=True) for _ in range(2))
        exact = trained(function, theirs.detach().double().requires_grad_(), wide)
        for name, *found in zip("xw", trained(call, mine, layer), trained(function, theirs, layer), exact, strict=True):
            assert_close(*found, f"gradient of {name}, {lengths}")


@each_device
def test_made_inside(device: str) -> None:
    def function(rows: Tensor, offsets: Tensor) -> Tensor:
        return torch.nested.nested_tensor_from_jagged(rows, offsets).sin().values() * 2

    torch._dynamo.reset()
    call = compiled(function, fullgraph=True)
    for ends in ((0, 3, 8), (0, 3, 8, 9)):
        rows, offsets = torch.randn(ends[-1], WIDTH, device=device), torch.tensor(ends, device=device)
        assert_close(call(rows, offsets), function(rows, offsets), function(rows.double(), offsets), str(ends))
