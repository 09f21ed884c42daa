"""Compiled functions write their inputs as eager does, and their results share memory where eager's do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from against_eager import compiled
from behaviour_checks import assert_like_eager, each_device, shares_storage

# Mutation


@each_device
def test_input_is_mutated(device: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x * 2

    assert_like_eager(function, torch.randn(3, 5, device=device), torch.randn(3, 5, device=device))


@each_device
def test_mutation_alone_returns_nothing(device: str) -> None:
    def function(x: Tensor) -> None:
        x.mul_(2).add_(1)

    x = torch.randn(7, device=device)
    expected = x * 2 + 1
    assert compiled(function, fullgraph=True)(x) is None
    assert torch.allclose(x, expected)


@each_device
def test_view_of_an_input_is_mutated(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        x[1:, ::2].mul_(-1)
        x.t()[0] = 7.0
        return x.sum()

    assert_like_eager(function, torch.randn(4, 6, device=device))


@each_device
def test_input_is_read_before_and_after_its_mutation(device: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        before = x * 3
        x.copy_(x.flip(0))
        return before, x + 1

    assert_like_eager(function, torch.randn(6, 4, device=device))


@each_device
def test_buffers_of_batch_norm_move(device: str) -> None:
    norm, plain = nn.BatchNorm1d(4).to(device), nn.BatchNorm1d(4).to(device)
    step = compiled(norm, fullgraph=True)
    for _ in range(3):
        x = torch.randn(6, 4, device=device) * 2 + 1
        assert torch.allclose(step(x), plain(x), atol=1e-5)
    for (name, mine), theirs in zip(norm.named_buffers(), plain.buffers(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5), name


@each_device
def test_counter_buffer_counts(device: str) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x * self.count

    counter = Counter().to(device)
    called = compiled(counter, fullgraph=True)
    results = [called(torch.ones(3, device=device))[0].item() for _ in range(3)]
    assert results == [1.0, 2.0, 3.0]
    assert counter.count.item() == 3


@each_device
def test_mutation_under_autograd(device: str) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).mul_(2).relu_().sum()

    w = torch.randn(5, device=device, requires_grad=True)
    x = torch.randn(5, device=device)
    compiled(function, fullgraph=True)(x, w).backward()
    (expected,) = torch.autograd.grad(function(x, w), w)
    assert torch.allclose(w.grad, expected)


@each_device
def test_out_variant(device: str) -> None:
    def function(x: Tensor, out: Tensor) -> Tensor:
        return torch.add(x, 1, out=out)

    x, out = torch.randn(5, device=device), torch.empty(5, device=device)
    result = compiled(function, fullgraph=True)(x, out)
    assert torch.equal(out, x + 1)
    assert result is out


# Aliasing


@each_device
def test_view_of_an_input_is_returned_as_a_view(device: str) -> None:
    x = torch.randn(4, 6, device=device)
    view, other = compiled(lambda x: (x.t()[1:], x * 2), fullgraph=True)(x)
    assert shares_storage(view, x)
    assert (view.storage_offset(), view.stride()) == (x.t()[1:].storage_offset(), x.t()[1:].stride())
    assert not shares_storage(other, x)


@each_device
def test_input_itself_is_returned(device: str) -> None:
    x = torch.randn(3, device=device)
    same, more = compiled(lambda x: (x, x + 1), fullgraph=True)(x)
    assert same is x
    assert not shares_storage(more, x)


@each_device
def test_mutated_input_is_returned(device: str) -> None:
    x = torch.randn(3, device=device)
    assert compiled(lambda x: x.add_(1), fullgraph=True)(x) is x


@each_device
def test_outputs_that_alias_each_other(device: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        return y, y.view(-1), y[1]

    y, flat, row = assert_like_eager(function, torch.randn(3, 4, device=device))
    assert shares_storage(y, flat)
    assert shares_storage(y, row)
    flat[0] = 99.0
    assert y[0, 0].item() == 99.0


@each_device
def test_same_value_returned_twice(device: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y, y

    first, second = compiled(function, fullgraph=True)(torch.randn(4, device=device))
    assert torch.equal(first, second)


@each_device
def test_equal_values_do_not_share_memory(device: str) -> None:
    a, b = compiled(lambda x: (x + 1, x + 1), fullgraph=True)(torch.zeros(4, device=device))
    a.fill_(9)
    assert b.tolist() == [1.0] * 4


@each_device
def test_result_does_not_alias_an_input_that_eager_copies(device: str) -> None:
    x = torch.randn(4, 6, device=device)
    for function in (torch.clone, lambda x: x + 0, lambda x: x * 1, lambda x: x.t().contiguous().t().clone()):
        torch._dynamo.reset()
        assert not shares_storage(compiled(function, fullgraph=True)(x), x)


@each_device
def test_results_of_two_calls_are_apart(device: str) -> None:
    called = compiled(lambda x: x * 2, fullgraph=True)
    first = called(torch.ones(5, device=device))
    second = called(torch.zeros(5, device=device))
    assert first.tolist() == [2.0] * 5
    assert not shares_storage(first, second)


@each_device
def test_same_tensor_twice(device: str) -> None:
    x = torch.randn(4, 4, device=device)
    assert torch.allclose(compiled(lambda a, b: a * b + a, fullgraph=True)(x, x), x * x + x)


@each_device
def test_same_tensor_twice_and_mutated(device: str) -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a * b

    x = torch.randn(4, device=device)
    y = x.clone()
    assert torch.allclose(compiled(function)(x, x), function(y, y))
    assert torch.allclose(x, y)


@each_device
def test_overlapping_views_as_inputs(device: str) -> None:
    base = torch.randn(8, device=device)
    result = compiled(lambda a, b: a * b, fullgraph=True)(base[:5], base[3:])
    assert torch.allclose(result, base[:5] * base[3:])
