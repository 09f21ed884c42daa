"""What a forward saves: of what the caller has the tensor, not a view, whose version counter nobody moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import ferrite_torch  # noqa: F401  # registers the backend

WRITTEN = "modified by an inplace operation"

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "transposed weight": lambda x, w: ((x @ w).relu(), w.sum()),
    "weight of a layer": lambda x, w: (torch.nn.functional.linear(x, w).tanh(),),
    "weight that is saved as well": lambda x, w: ((x @ w) * w.sin(),),
    "part of a weight": lambda x, w: (x @ w[:, :2],),
    "pieces of a weight": lambda x, w: tuple(x @ piece for piece in w.chunk(2, 1)),
    "weight that is expanded": lambda x, w: (x[None] * w.expand(3, 4, 4).sin(),),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_write_to_what_was_saved_a_view_of_is_refused(name: str, *, dynamic: bool) -> None:
    function = FUNCTIONS[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ferrite", dynamic=dynamic, options={"fallback": False})
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    leaf = w.clone().requires_grad_()
    actual = torch.autograd.grad([each.sum() for each in compiled(x, leaf)], (x, leaf), allow_unused=True)
    expected = torch.autograd.grad([each.sum() for each in function(x, leaf)], (x, leaf), allow_unused=True)
    torch.testing.assert_close(actual, expected)
    results = compiled(x, leaf)
    with torch.no_grad():
        leaf.add_(1)
    with pytest.raises(RuntimeError, match=WRITTEN):
        torch.autograd.grad([each.sum() for each in results], (x, leaf), allow_unused=True)


def test_a_write_to_a_result_whose_transposed_was_saved_is_refused() -> None:
    def function(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y, y @ v

    torch._dynamo.reset()
    x, v = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    expected = torch.autograd.grad([each.sum() for each in function(x, v)], (x, v))
    compiled = torch.compile(function, backend="ferrite", options={"fallback": False})
    torch.testing.assert_close(torch.autograd.grad([each.sum() for each in compiled(x, v)], (x, v)), expected)
    y, product = compiled(x, v)
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match=WRITTEN):
        product.sum().backward()


def test_an_input_that_the_forward_writes_to_is_saved_as_it_was() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w.clone()
        w.add_(1)
        return y

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ferrite", options={"fallback": False})
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    mine = w.clone()
    (gradient,) = torch.autograd.grad(compiled(x, mine).sum(), x)
    torch.testing.assert_close(gradient, torch.ones(4, 4) @ w.t())
    torch.testing.assert_close(mine, w + 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_backward_computes_again_is_made_of_inputs_as_they_were(*, dynamic: bool) -> None:
    def function(x: Tensor, buffer: Tensor) -> Tensor:
        y = (x + buffer.clone()).sin()
        buffer.add_(1)
        return y * buffer

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ferrite", dynamic=dynamic, options={"fallback": False})
    given, twin = torch.zeros(4), torch.zeros(4)
    for _ in range(2):
        x = torch.randn(4, 4, requires_grad=True)
        expected = torch.autograd.grad(function(x, twin).sum(), x)
        torch.testing.assert_close(torch.autograd.grad(compiled(x, given).sum(), x), expected)
        torch.testing.assert_close(given, twin)
