"""What a compiled function does beside computing: mutation, aliasing, layouts, randomness, guards, options, errors."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from against_eager import (
    assert_all_close,
    assert_close,
    assert_worked,
    backend,
    compiled,
    compiled_or_eager,
    devices,
    observed_work,
    own_only,
    widened,
)

each_device = pytest.mark.parametrize("device", devices())
Function = Callable[..., Any]


def assert_like_eager(function: Function, *inputs: Any, **options: Any) -> Any:
    """Runs both on their own copies of the inputs; fails unless results and inputs agree. Returns ferrite's results."""
    mine, theirs, wide = ([x.clone() if isinstance(x, Tensor) else x for x in inputs] for _ in range(3))
    exact = function(*widened(wide))
    actual, eager = compiled(function, fullgraph=True, **options)(*mine), function(*theirs)
    assert_all_close(actual, eager, exact)
    for a, e in zip(mine, theirs, strict=True):
        if isinstance(a, Tensor):
            assert_close(a, e, e, "input afterwards")
    return actual


def shares_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


# Operators that no compiler knows


@torch.library.custom_op("ferrite_tests::swap", mutates_args=())
def swap(x: Tensor, y: Tensor) -> list[Tensor]:
    return [y.clone(), x.clone()]


@swap.register_fake
def _(x: Tensor, y: Tensor) -> list[Tensor]:
    return [torch.empty_like(y), torch.empty_like(x)]


@torch.library.custom_op("ferrite_tests::double_in_place", mutates_args=("x",))
def double_in_place(x: Tensor) -> None:
    x.mul_(2)


@double_in_place.register_fake
def _(x: Tensor) -> None:
    pass


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


# Shapes and layouts


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


# Randomness


@each_device
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.5),
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.rand(4, 5, device=x.device) + torch.randn(4, 5, device=x.device),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.randint_like(x, 10),
    ],
    ids=["dropout", "rand_like", "randn_like", "rand and randn", "bernoulli", "randint_like"],
)
def test_random_numbers_follow_the_seed(device: str, function: Function) -> None:
    x = torch.randn(4, 5, device=device)
    called = compiled(function, fullgraph=True)
    torch.manual_seed(11)
    first, second = called(x), called(x)
    torch.manual_seed(11)
    again = called(x)
    torch.manual_seed(12)
    other = called(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.isfinite(first).all()


@each_device
def test_random_numbers_have_their_distribution(device: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.rand_like(x), torch.randn_like(x)

    uniform, normal = compiled(function, fullgraph=True)(torch.empty(2000, device=device))
    assert 0.0 <= uniform.min().item() < 0.05
    assert 0.95 < uniform.max().item() < 1.0
    assert abs(uniform.mean().item() - 0.5) < 0.04
    assert abs(normal.mean().item()) < 0.12
    assert 0.9 < normal.std().item() < 1.1


# Graphs: breaks, guards, dynamic shapes


@each_device
def test_graph_break(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y.exp() + 1

    x = torch.randn(5, device=device)
    with observed_work() as work:
        actual = compiled(function)(x)
    assert torch.allclose(actual, (x * 2).exp() + 1)
    assert work.graph_breaks == 1
    assert_worked(work, kernels=2)


@each_device
def test_branch_on_data(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    called = compiled(function)
    for sign in (1.0, -1.0):
        x = torch.ones(5, device=device) * sign
        assert torch.equal(called(x), function(x))


@each_device
def test_item_in_the_middle(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        return x * (x.sum().item() + 1)

    x = torch.randn(5, device=device)
    assert torch.allclose(compiled_or_eager(function)(x), function(x))


@each_device
def test_new_shapes_recompile(device: str) -> None:
    called = compiled(lambda x: torch.softmax(x * 2, -1))
    for shape in ((3, 5), (4, 5), (4, 7), (1, 1), (3, 5)):
        x = torch.randn(shape, device=device)
        assert torch.allclose(called(x), torch.softmax(x * 2, -1), atol=1e-6)


@each_device
def test_new_dtype_recompiles(device: str) -> None:
    called = compiled(lambda x: x * 2 + 1)
    for dtype in (torch.float32, torch.float16, torch.int32, torch.float64):
        x = torch.arange(5, device=device).to(dtype)
        assert torch.equal(called(x), x * 2 + 1)


@each_device
def test_new_strides_recompile(device: str) -> None:
    called = compiled(lambda x: x + 1)
    for x in (torch.randn(4, 4, device=device), torch.randn(4, 4, device=device).t(), torch.randn(4, 8, device=device)):
        assert torch.equal(called(x), x + 1)
        assert called(x).stride() == (x + 1).stride()


@each_device
@pytest.mark.parametrize("trains", [False, True])
def test_dynamic_shapes_do_not_fail(device: str, *, trains: bool) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(x @ w, (w.shape[1],)).sum(0) * x.shape[0]

    called = compiled_or_eager(function, dynamic=True)
    w = torch.randn(4, 6, device=device, requires_grad=trains)
    for rows in (3, 5, 2):
        x = torch.randn(rows, 4, device=device)
        actual, eager = called(x, w), function(x, w)
        assert torch.allclose(actual, eager, atol=1e-4)
        if trains:
            actual.square().sum().backward()


@each_device
def test_marked_dynamic_dim(device: str) -> None:
    called = compiled_or_eager(lambda x: x.sum(-1) * x.shape[1])
    for width in (5, 9):
        x = torch.randn(3, width, device=device)
        torch._dynamo.mark_dynamic(x, 1)
        assert torch.allclose(called(x), x.sum(-1) * width, atol=1e-5)


@each_device
def test_output_shape_that_depends_on_data(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        return x[x > 0] * 2

    x = torch.randn(20, device=device)
    assert torch.allclose(compiled_or_eager(function)(x), function(x))


@each_device
def test_double_use_of_one_function(device: str) -> None:
    called = compiled(lambda x: x.tanh() * 2)
    x, y = torch.randn(5, device=device), torch.randn(5, device=device)
    assert torch.allclose(called(called(x)) + called(y), ((x.tanh() * 2).tanh() * 2) + y.tanh() * 2, atol=1e-6)


@each_device
def test_nested_compilation(device: str) -> None:
    inner = compiled(lambda x: x.exp())
    x = torch.randn(4, device=device)
    assert torch.allclose(compiled(lambda x: inner(x) + 1)(x), x.exp() + 1)


@each_device
def test_graph_without_tensors_of_its_own(device: str) -> None:
    called = compiled(lambda: torch.arange(5, device=device) * 2, fullgraph=True)
    assert called().tolist() == [0, 2, 4, 6, 8]


@each_device
def test_many_outputs_of_many_kinds(device: str) -> None:
    def function(x: Tensor) -> dict[str, Any]:
        return {"a": x + 1, "b": [x.sum(), None, 3], "c": (x.shape[0], x.t())}

    x = torch.randn(3, 4, device=device)
    result = compiled(function, fullgraph=True)(x)
    assert torch.equal(result["a"], x + 1)
    assert result["b"][1:] == [None, 3]
    assert result["c"][0] == 3
    assert shares_storage(result["c"][1], x)


@each_device
def test_constants_of_a_module(device: str) -> None:
    table = torch.arange(6.0, device=device)
    x = torch.randn(6, device=device)
    called = compiled(lambda x: x * table)
    assert torch.equal(called(x), x * table)
    table.mul_(2)
    assert torch.equal(called(x), x * table)


# Gradients


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


# Optimisers and lists


@each_device
def test_foreach_lists(device: str) -> None:
    def function(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
        torch._foreach_mul_(xs, 0.5)
        torch._foreach_addcmul_(xs, ys, ys, 0.1)
        return torch._foreach_sqrt(torch._foreach_abs(xs))

    shapes = [(3,), (2, 4), (5, 1), ()]
    mine = [torch.randn(shape, device=device) for shape in shapes]
    theirs, others = [x.clone() for x in mine], [torch.randn(shape, device=device) for shape in shapes]
    actual, eager = compiled(function, fullgraph=True)(mine, others), function(theirs, others)
    for a, e in zip([*actual, *mine], [*eager, *theirs], strict=True):
        assert torch.allclose(a, e, atol=1e-6)


@each_device
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_equal_lists_have_programs_of_their_own(device: str, *, dynamic: bool, in_place: bool) -> None:
    def function(xs: list[Tensor], ys: list[Tensor], factor: Tensor) -> list[Tensor]:
        if in_place:
            torch._foreach_lerp_(xs, ys, 0.1)
            torch._foreach_mul_(ys, factor)
            return []
        moved = torch._foreach_lerp(xs, ys, 0.1)
        return [*moved, *torch._foreach_mul(moved, factor)]

    shapes = [(37, 6)] * 5 + [(3,)] * 2
    mine = [[torch.randn(shape, device=device) for shape in shapes] for _ in range(2)]
    theirs = [[x.clone() for x in xs] for xs in mine]
    factor = torch.tensor(0.25, device=device)
    actual = compiled(function, fullgraph=True, dynamic=dynamic)(*mine, factor)
    eager = function(*theirs, factor)
    for a, e in zip([*actual, *mine[0], *mine[1]], [*eager, *theirs[0], *theirs[1]], strict=True):
        assert torch.allclose(a, e, atol=1e-6)
    if not dynamic:
        from ferrite_torch import compiled_programs

        (kernel,) = compiled_programs()[-1]["kernels"]  # one launch of two lists
        assert sorted(part["facts"]["parts"] for part in kernel["parts"]) == [2, 5]


@each_device
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_compiled_optimizer_step(device: str, kind: str) -> None:
    def trained(wrap: Callable[[Function], Function]) -> list[Tensor]:
        torch.manual_seed(4)
        weights = [torch.randn(shape, device=device, requires_grad=True) for shape in ((3, 4), (5,))]
        extra = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(weights, lr=0.1, foreach=True, **extra)
        step = wrap(optimizer.step)
        for _ in range(3):
            for w in weights:
                w.grad = w.detach() * 0.5 + 0.1
            step()
        return [w.detach() for w in weights]

    for mine, theirs in zip(trained(compiled), trained(lambda step: step), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


# Fallbacks, options, errors


@each_device
def test_complex_numbers_fall_back(device: str) -> None:
    x = torch.randn(4, dtype=torch.complex64, device=device)
    y = torch.randn(4, device=device)
    actual, power = compiled(lambda x, y: (x * y + 1, (x * x.conj()).real * 2), fullgraph=True)(x, y)
    assert torch.allclose(actual, x * y + 1)
    assert torch.allclose(power, (x * x.conj()).real * 2, atol=1e-6)


@each_device
def test_operator_without_a_lowering_falls_back(device: str) -> None:
    x = torch.randn(3, 3, device=device)
    matrix = x @ x.t() + 3 * torch.eye(3, device=device)
    actual = compiled(lambda m: torch.linalg.cholesky(m) * 2, fullgraph=True)(matrix)
    assert torch.allclose(actual, torch.linalg.cholesky(matrix) * 2, atol=1e-5)


@each_device
def test_operator_of_somebody_else_falls_back(device: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        a, b = torch.ops.ferrite_tests.swap(x + 1, y * 2)
        return a - b

    x, y = torch.randn(3, device=device), torch.randn(3, device=device)
    assert torch.allclose(compiled(function, fullgraph=True)(x, y), y * 2 - (x + 1))


@each_device
def test_operator_that_mutates_falls_back(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        torch.ops.ferrite_tests.double_in_place(y)
        torch.ops.ferrite_tests.double_in_place(x)
        return y + x

    x = torch.ones(3, device=device)
    assert compiled_or_eager(function, fullgraph=True)(x).tolist() == [6.0] * 3
    assert x.tolist() == [2.0] * 3


def test_library_error_stays_the_library_s() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.cholesky(x) + 1

    try:
        torch.compile(function, backend="aot_eager")(-torch.eye(3))
    except RuntimeError:
        with pytest.raises(RuntimeError, match=r"(?i)cholesky|positive"):
            compiled(function, fullgraph=True)(-torch.eye(3))
    else:
        pytest.skip("this torch drops the check of the result before any backend sees it: 2.11 does")


@own_only("options are the backend's own")
@each_device
def test_mode_is_accepted(device: str) -> None:
    x = torch.randn(4, device=device)
    assert torch.allclose(compiled(lambda x: x * 2, mode="default")(x), x * 2)


@own_only("options are the backend's own")
def test_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(Exception, match="no_such_option"):
        compiled(lambda x: x * 2, options={"no_such_option": 1})(torch.randn(4))


@own_only("options are the backend's own")
def test_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(Exception, match="no-such-mode"):
        compiled(lambda x: x * 2, mode="no-such-mode")(torch.randn(4))


@own_only("the name is registered by ferrite_torch")
def test_backend_is_listed() -> None:
    import ferrite_torch  # noqa: F401

    assert backend() in torch._dynamo.list_backends()


@own_only("asks ferrite for its counts")
@pytest.mark.parametrize(
    ("dtype", "size", "calls"),
    [
        (torch.bfloat16, 1024, 0),
        (torch.bfloat16, 1025, 1),
        (torch.float32, 512, 0),
        (torch.float32, 513, 1),
        (torch.int8, 600, 0),
        (torch.int64, 600, 1),
    ],
)
def test_long_rows_are_sorted_by_the_library(dtype: torch.dtype, size: int, calls: int) -> None:
    torch.manual_seed(0)
    x = torch.randperm(3 * size).view(3, size).remainder(101).to(dtype)
    with observed_work() as work:
        compiled(lambda x: torch.sort(x, stable=True, dim=-1), fullgraph=True)(x)
    assert work.extern_calls == calls


@own_only("asks ferrite for its counts")
@each_device
def test_extern_calls_are_counted(device: str) -> None:
    with observed_work() as work:
        compiled(lambda x: torch.linalg.cholesky(x @ x.t() + 3 * torch.eye(3, device=device)), fullgraph=True)(
            torch.randn(3, 3, device=device)
        )
    assert work.extern_calls >= 2


@each_device
def test_nothing_is_logged_as_a_warning(device: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        compiled(lambda x: torch.softmax(x, -1), fullgraph=True)(torch.randn(3, 4, device=device))
    assert not [record for record in caplog.records if record.name.startswith("ferrite")]


@pytest.mark.gpu
def test_another_stream() -> None:
    x = torch.randn(1 << 16, device="cuda")
    called = compiled(lambda x: x * 2 + 1, fullgraph=True)
    called(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = called(x)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(result, x * 2 + 1)


@pytest.mark.gpu
def test_inside_a_cuda_graph() -> None:
    x = torch.randn(256, 64, device="cuda")
    called = compiled(lambda x: torch.softmax(x, -1) + x, fullgraph=True)
    called(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = called(x)
    x.normal_()
    graph.replay()
    assert torch.allclose(result, torch.softmax(x, -1) + x, atol=1e-6)


@pytest.mark.gpu
def test_host_and_device_in_one_graph() -> None:
    x, y = torch.randn(5, device="cuda"), torch.randn(5)
    a, b = compiled(lambda x, y: (x * 2 + y.to("cuda"), y + 1))(x, y)
    assert torch.allclose(a.cpu(), x.cpu() * 2 + y)
    assert torch.equal(b, y + 1)


OUT_OF_BOUNDS: dict[str, Function] = {
    "index": lambda x, i: x[i] * 2,
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "embedding": lambda x, i: F.embedding(i, x),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "masked_scatter": lambda x, i: x.masked_scatter(i[:, None] >= 0, x[0, :2]),
}


@own_only("other backends read on")
@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_an_index_out_of_bounds_is_an_error_that_names_its_line(name: str) -> None:
    call = compiled(OUT_OF_BOUNDS[name], fullgraph=True)
    x = torch.randn(2, 3)
    if name != "masked_scatter":  # there, every index is one too many
        call(x, torch.tensor([1, 0]))
    with pytest.raises(IndexError, match=rf"aten.{name}.*test_behaviour.py:\d+\).*: index out of bounds of"):
        call(x, torch.tensor([0, 2]))


ON_A_GPU: dict[str, tuple[str, str, str]] = {
    "an index": ("lambda x, i: x[i] * 2", "torch.tensor([0, 4])", "index out of bounds of 4 elements"),
    "a negative index": (
        "lambda x, i: x.index_add(0, i, torch.ones(2, 3, device=x.device))",
        "torch.tensor([0, -1])",
        "index out of bounds of 4 elements",
    ),
    "an index that no load needs": (
        "lambda x, i: torch.arange(4, device=x.device)[i]",
        "torch.tensor([4])",
        "index out of bounds",
    ),
    "a probability": (
        "lambda x, p: torch.bernoulli(p)",
        "torch.tensor([0.5, 1.5])",
        "probabilities have to be in [0, 1]",
    ),
}
REFUSED_ON_A_GPU = """
import torch, ferrite_torch
call = torch.compile({function}, backend="ferrite", options={options})
x = torch.zeros(4, 3, device="cuda")
call(x, {given}.cuda())
torch.cuda.synchronize()
"""


def stderr_on_a_gpu(name: str, options: dict[str, bool]) -> tuple[int, str]:
    """Makes a call in another process: an assertion of a kernel ends the process's use of the GPU."""
    function, given, _ = ON_A_GPU[name]
    program = REFUSED_ON_A_GPU.format(function=function, given=given, options=options)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # where nothing is installed, too
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stderr


@own_only("an option of ferrite")
@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu_what_eager_refuses_stops_a_kernel(name: str) -> None:
    status, stderr = stderr_on_a_gpu(name, {})
    assert status != 0
    assert "test_behaviour" in stderr or "aten." in stderr
    assert ON_A_GPU[name][2] in stderr


@own_only("an option of ferrite")
@pytest.mark.gpu
def test_on_a_gpu_checks_can_be_left_out() -> None:
    status, stderr = stderr_on_a_gpu("a probability", {"check_indices": False})
    assert status == 0, stderr
