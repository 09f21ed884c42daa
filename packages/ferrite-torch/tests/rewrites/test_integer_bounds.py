"""Numbers beside integers of few bits: bounds and fillings that their type does not have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

SMALL = torch.tensor([-100, -3, 0, 5, 127], dtype=torch.int8)
UNSIGNED = torch.tensor([0, 3, 255], dtype=torch.uint8)


def outcome(function: Callable[[Tensor], Tensor], x: Tensor) -> object:
    """Returns what a function gives, with its type, or that it raises."""
    try:
        result = function(x)
    except Exception:  # noqa: BLE001  # whatever it is, both raise
        return "raises"
    return result.tolist(), result.dtype


@pytest.mark.parametrize("x", [SMALL, UNSIGNED, SMALL.to(torch.int16), SMALL.to(torch.int32), SMALL.to(torch.int64)])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(0, 300),
        lambda x: x.clamp(-300, 300),
        lambda x: x.clamp_min(-300),
        lambda x: x.clamp_max(300),
        lambda x: x.clamp_max(-5),
        lambda x: x.clamp(200, 300),
        lambda x: x.clamp(0, 1 << 40),
        lambda x: x.clamp(0, float("inf")),
        lambda x: x.clamp(min=-1000.5),
        lambda x: F.hardtanh(x, -300, 300),
        lambda x: F.threshold(x, 1, -1),
        lambda x: torch.where(x > 0, x, -1),
        lambda x: torch.full_like(x, -1),
        lambda x: x.masked_fill(x > 0, -1),
        lambda x: F.pad(x, (1, 1), value=-1),
    ],
)
def test_numbers_beside_integers_are_eager_s(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    assert outcome(torch.compile(function, backend="ferrite"), x) == outcome(function, x)
