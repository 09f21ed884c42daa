"""Ops that are called for what they raise stay in graphs, on torches that do not know it, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.effects import _get_effect

import ferrite_torch
from ferrite_runtime import Bundle, ProgramFailed, load
from ferrite_torch.torch_private.effects import _CHECKS, keeping_checks


def test_what_torch_knew_before_it_knows_afterwards() -> None:
    before = [_get_effect(name) for name in _CHECKS]
    with keeping_checks():
        assert all(_get_effect(name) is not None for name in _CHECKS)
    assert [_get_effect(name) for name in _CHECKS] == before


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "function",
    [torch.linalg.inv, torch.linalg.cholesky, lambda x: torch.linalg.solve(x, x.sum(0)), lambda x: x.inverse().sin()],
)
def test_what_has_no_factors_is_an_error(
    function: Callable[[Tensor], Tensor], *, dynamic: bool | None, wants_gradient: bool
) -> None:
    fine, singular = torch.tensor([[2.0, 1.0], [1.0, 3.0]]), -torch.ones(2, 2)
    call = torch.compile(function, backend="ferrite", dynamic=dynamic)
    given, expected = (fine.clone().requires_grad_(wants_gradient) for _ in range(2))
    result = call(given)
    torch.testing.assert_close(result, function(expected))
    if wants_gradient:
        result.sum().backward()
        function(expected).sum().backward()
        torch.testing.assert_close(given.grad, expected.grad)
    with pytest.raises(torch.linalg.LinAlgError):
        call(singular.requires_grad_(wants_gradient))


@pytest.mark.parametrize("training", [False, True])
def test_bundles_of_models_with_effects_compute_and_check(*, training: bool) -> None:
    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.linalg.solve(x, y).sin(), torch.linalg.cholesky(x @ x.mT + torch.eye(2))

    numbers = [[2.0, 1.0], [1.0, 3.0]], [[1.0, 2.0], [0.5, -1.0]]
    given = tuple(torch.tensor(rows, requires_grad=training) for rows in numbers)
    bundle = ferrite_torch.export(model, given, targets=["cpu"], training=training)
    call = load(Bundle.from_bytes(bundle.to_bytes()))
    mine, theirs = ([each.detach().clone().requires_grad_(training) for each in given] for _ in range(2))
    found, expected = call(*mine), model(*theirs)
    torch.testing.assert_close(found, expected)
    if training:
        gradients = torch.autograd.grad(sum(each.sum() for each in found), mine)
        torch.testing.assert_close(gradients, torch.autograd.grad(sum(each.sum() for each in expected), theirs))
    with pytest.raises(ProgramFailed, match="singular"):
        call(-torch.ones(2, 2), given[1])
