"""Tensors made from numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

aten, prims = torch.ops.aten, torch.ops.prims

MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "full": lambda x: torch.full((3, 4), 2.5),
    "full of integers": lambda x: torch.full((3,), 2, dtype=torch.int32),
    "full of nan": lambda x: torch.full((2,), math.nan),
    "full of bools": lambda x: torch.full((2,), True),
    "full_like": lambda x: torch.full_like(x, 3),
    "new_full": lambda x: x.new_full((3,), math.inf),
    "zeros": lambda x: torch.zeros(3, 4),
    "zeros_like": lambda x: torch.zeros_like(x.to(torch.int32)),
    "new_zeros": lambda x: x.new_zeros(3),
    "ones": lambda x: torch.ones(3, dtype=torch.bfloat16),
    "new_ones": lambda x: x.new_ones(3, 4),
    "arange": lambda x: torch.arange(5),
    "arange in steps": lambda x: torch.arange(2, 9, 3),
    "arange down": lambda x: torch.arange(9, 2, -2),
    "arange in fractions": lambda x: torch.arange(0.5, 3, 0.3),
    "arange of floats": lambda x: torch.arange(5, dtype=torch.float32),
    "iota": lambda x: prims.iota(5, start=2, step=3, dtype=torch.int64, device="cpu", requires_grad=False),
    "linspace": lambda x: torch.linspace(0, 1, 7),
    "linspace of one": lambda x: torch.linspace(3, 1, 1),
    "eye": lambda x: torch.eye(3),
    "eye of integers": lambda x: torch.eye(3, 5, dtype=torch.int64),
    "scalar_tensor": lambda x: torch.scalar_tensor(3.0),
    "fill": lambda x: aten.fill.Scalar(x, 2),
    "fill with a tensor": lambda x: aten.fill.Tensor(x, x[0, 0]),
    "copy": lambda x: aten.copy(x, x[0].to(torch.float64)),
    "constant": lambda x: x + torch.tensor(2.0),
}


@pytest.mark.parametrize("name", MADE)
def test_creation(agree: Any, name: str) -> None:
    agree(MADE[name], torch.randn(3, 4))


def test_negative_zero_keeps_its_sign(drawn: Any) -> None:
    (result,) = drawn(lambda x: x * 0 + torch.full((2,), -0.0) * 1, torch.tensor([-1.0, -1.0]))
    assert torch.signbit(result).all()


def test_uninitialised_memory_is_allocated_not_computed(lower_one: Any) -> None:
    module = lower_one(lambda x: (torch.empty_like(x), x.new_empty(3)), torch.randn(3, 4))
    targets = [definition.target for definition in module.graph.definitions]
    assert targets == ["aten.empty_strided.default"] * 2
    assert not module.externs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_uninitialised_memory_is_filled_where_nothing_may_depend_on_it(agree: Any, dtype: torch.dtype) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        agree(lambda x: (torch.empty_like(x), x.new_empty(3)), torch.zeros(3, 4, dtype=dtype))
    finally:
        torch.use_deterministic_algorithms(False)
