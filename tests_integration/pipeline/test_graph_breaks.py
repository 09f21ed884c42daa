"""Graph breaks, guards and dynamic shapes of compiled functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import assert_worked, compiled, compiled_or_eager, observed_work
from behaviour_checks import each_device, shares_storage


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
