from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ferrite_torch.graphs.lowered_module import LoweredModule

Lower = Callable[..., dict[str, LoweredModule]]


@pytest.mark.parametrize(
    "function",
    [
        lambda xs, ys: torch._foreach_add(xs, ys, alpha=2),
        lambda xs, ys: torch._foreach_mul(xs, 3.0),
        lambda xs, ys: torch._foreach_mul(xs, [2.0, 3.0]),
        lambda xs, ys: torch._foreach_addcmul(xs, ys, ys, 0.5),
        lambda xs, ys: torch._foreach_addcdiv(xs, ys, ys, [0.5, 0.25]),
        lambda xs, ys: torch._foreach_sqrt(xs),
        lambda xs, ys: torch._foreach_maximum(xs, 1.0),
        lambda xs, ys: torch._foreach_norm(xs),
    ],
)
def test_lists_are_lowered_tensor_by_tensor(lowered: Lower, function: Callable[..., Any]) -> None:
    xs, ys = [torch.rand(3, 3), torch.rand(4).t()], [torch.rand(3, 3), torch.rand(4)]
    found = lowered(function, xs, ys)["inference"]
    assert found.externs == ()
    assert len(found.graph.outputs) == 2


def test_each_result_lies_as_its_own_fake_does(lowered: Lower) -> None:
    xs = [torch.rand(3, 3), torch.rand(3, 3).t()]
    found = lowered(torch._foreach_neg, xs)["inference"]
    assert [output.strides for output in found.graph.outputs] == [(3, 1), (1, 3)]  # type: ignore[union-attr]
