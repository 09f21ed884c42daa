"""Ops that are called for what they raise stay in graphs, on torches that do not know it, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.effects import _get_effect

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
