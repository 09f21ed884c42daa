"""Positions that are computed in floats: what their bounds decide is what their roundings give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from against_eager import compiled

ROWS = 64


def upsampled() -> Tensor:
    """Returns positions that grow by a half, the last of them 64.5."""
    return torch.arange(128).float() * 0.5 + 1


WITHIN: dict[str, Callable[[Tensor], Tensor]] = {
    "a limit that is rounded up": lambda x: (upsampled().clamp(0, ROWS - 1e-6).long() < ROWS)[:, None] * x[:1],
    "one": lambda x: x * (torch.arange(ROWS).float() * 0 + 1).clamp(max=1 - 1e-8).long()[:, None],
    "numbers of 64 bits": lambda x: (
        x[:10] + (torch.arange(10).double().clamp(max=2.9999999999).float().long() < 3).float()[:, None]
    ),
    "what is too small": lambda x: x[:10] + ((torch.arange(10).float() + 1) * 1e-30 * 1e-30).ceil()[:, None].long(),
    "a position before the first": lambda x: x[((torch.arange(10).float() + 1) * 1e-30 * 1e-30).ceil().long() - 1],
    "nearest": lambda x: x[(torch.arange(160).float() * 0.4).floor().long()],
    "between": lambda x: x[(torch.arange(128).float() * 0.5 - 0.25).clamp(min=0).long()],
}


@pytest.mark.parametrize("name", WITHIN)
def test_bounds_are_those_of_rounded_numbers(name: str) -> None:
    x = torch.arange(3.0 * ROWS).view(ROWS, 3) + 1
    assert torch.equal(compiled(WITHIN[name], dynamic=False)(x), WITHIN[name](x))


OUTSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "of 32 bits": lambda x: x[upsampled().clamp(0, ROWS - 1e-6).long()],
    "of 64 bits": lambda x: x[upsampled().double().clamp(0, ROWS - 1e-6).float().long()],
    "negative": lambda x: x[(torch.arange(8).float() * -0.5).long() - ROWS],
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_position_that_is_rounded_past_the_end_is_refused(name: str) -> None:
    x = torch.ones(ROWS, 3)
    for function in (OUTSIDE[name], compiled(OUTSIDE[name], dynamic=False)):
        with pytest.raises(IndexError):
            function(x)
