"""Checks of a tensor's value that a program writes without a message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Check = Callable[[Tensor], Tensor]


def beside(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all())
    return x.sin()


def of_the_op(x: Tensor) -> Tensor:
    torch.ops.aten._assert_async.default(x[0, 0])
    return x.sin()


def alone(x: Tensor) -> Tensor:
    torch._assert_async(x[0, 0])
    return x


def in_a_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(beside, x, use_reentrant=False)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [beside, of_the_op, alone, in_a_checkpoint])
def test_a_check_raises_what_eager_raises(function: Check, *, dynamic: bool) -> None:
    compiled = torch.compile(function, backend="ferrite", dynamic=dynamic, options={"fallback": False})
    x = torch.ones(3, 4, requires_grad=True)
    torch.testing.assert_close(compiled(x), function(x))
    for each in (function, compiled):
        with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value, but got zero"):
            each(torch.zeros(3, 4, requires_grad=True))


def test_a_check_of_several_values_is_refused() -> None:
    def function(x: Tensor) -> Tensor:
        torch._assert_async(x)
        return x.sin()

    compiled = torch.compile(function, backend="ferrite", options={"fallback": False})
    with pytest.raises(RuntimeError, match="more than one value is ambiguous"):
        compiled(torch.ones(3))
