"""Gradients of 0-d tensors that an op takes for a number: what fills, bounds, scales or is an exponent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from against_eager import compiled

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

ROWS = torch.tensor([0, 3, 3])


def with_element(x: torch.Tensor, place: Any, value: torch.Tensor) -> torch.Tensor:
    """Returns a copy with an assignment done."""
    copy = x * 1
    copy[place] = value
    return copy


FUNCTIONS: dict[str, Function] = {
    "index_fill": lambda x, v: x.index_fill(0, ROWS, v),
    "index_fill_": lambda x, v: (x * 1).index_fill_(1, torch.tensor([0, 0, 2]), v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "masked_fill_": lambda x, v: (x * 1).masked_fill_(x > 0, v),
    "fill_": lambda x, v: (x * 1).fill_(v) + x,
    "at a mask": lambda x, v: with_element(x, x > 0, v),
    "at rows": lambda x, v: with_element(x, ROWS, v),
    "at a slice": lambda x, v: with_element(x, (slice(None), 1), v),
    "where": lambda x, v: torch.where(x > 0, x, v),
    "where, twice": lambda x, v: torch.where(x > 0, v, x * v),
    "clamp below": lambda x, v: x.clamp(min=v),
    "clamp": lambda x, v: x.clamp(-v, v),
    "index_put": lambda x, v: x.index_put((torch.tensor([0, 3]),), v),
    "index_put, added": lambda x, v: x.index_put((ROWS,), v, accumulate=True),
    "lerp": lambda x, v: torch.lerp(x, x * 2, v),
    "lerp to": lambda x, v: torch.lerp(x, v, 0.3),
    "addcmul": lambda x, v: torch.addcmul(x, x, v, value=0.5),
    "addcdiv": lambda x, v: torch.addcdiv(x, x, v, value=0.5),
    "exponent": lambda x, v: x.abs() ** v,
    "base": lambda x, v: v**x,
    "xlogy": lambda x, v: torch.xlogy(x, v) + torch.xlogy(v, x.abs() + 1),
    "copysign": lambda x, v: torch.copysign(v, x) * x,
    "maximum": torch.maximum,
    "remainder": lambda x, v: torch.remainder(x * 5, v) + torch.fmod(x * 3, v),
    "atan2": lambda x, v: torch.atan2(x, v) + torch.hypot(x, v),
    "logaddexp": torch.logaddexp,
    "add alpha": lambda x, v: torch.add(x, v, alpha=3) + torch.rsub(x, v, alpha=2),
    "quotients": lambda x, v: x / v + v / x,
    "prelu": lambda x, v: F.prelu(x, v.reshape(1)),
    "scatter": lambda x, v: x.scatter(0, torch.zeros(1, 3, dtype=torch.int64), v.expand(1, 3)),
    "index_copy": lambda x, v: x.index_copy(0, torch.tensor([1]), v.expand(1, 3)),
    "index_add": lambda x, v: x.index_add(0, ROWS, v.expand(3, 3), alpha=2),
    "select_scatter": lambda x, v: x.select_scatter(v.expand(3), 0, 1),
    "diagonal_scatter": lambda x, v: x.diagonal_scatter(v.expand(3)),
    "addmm": lambda x, v: torch.addmm(v, x, x.t()),
    "huber": lambda x, v: F.huber_loss(x, v.expand(5, 3), reduction="none"),
    "cumprod": lambda x, v: (x * v).cumprod(0),
}
BATCHES = [list(FUNCTIONS)[first : first + 13] for first in range(0, len(FUNCTIONS), 13)]


def gradients(function: Callable[..., Any], count: int) -> tuple[torch.Tensor, ...]:
    """Returns the gradients of a tensor and a number for each of several functions, which get tensors of their own."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(5, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(count)]
    numbers = [torch.tensor(0.7, dtype=torch.float64, requires_grad=True) for _ in range(count)]
    results = function(tensors, numbers)
    weights = [torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).view(x.shape) for x in results]
    return torch.autograd.grad(results, [*tensors, *numbers], weights)


@pytest.mark.parametrize("names", BATCHES, ids=[names[0] for names in BATCHES])
def test_gradients_of_numbers(names: list[str]) -> None:
    def function(tensors: list[torch.Tensor], numbers: list[torch.Tensor]) -> list[torch.Tensor]:
        return [FUNCTIONS[name](x, v) for name, x, v in zip(names, tensors, numbers, strict=True)]

    actual, expected = (gradients(f, len(names)) for f in (compiled(function), function))
    for name, one, other in zip([*names, *names], actual, expected, strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")
