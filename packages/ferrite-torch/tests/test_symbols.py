"""Torch's symbolic integers as sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from ferrite_ir import sizes
from ferrite_torch.symbols import size_of


@pytest.mark.parametrize(
    "function",
    [lambda n: math.ceil(n / 32) * 32, lambda n: math.floor(n / 7), lambda n: n // 3 + n % 3, lambda n: (n + 1) * n],
)
def test_size_is_what_torch_computes(function: Callable[[Any], Any]) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC])
    length = mode.from_tensor(torch.empty(17), symbolic_context=context).shape[0]
    found, symbol = size_of(function(length)), size_of(length)
    for number in (2, 6, 7, 31, 32, 33, 64, 1000):
        assert sizes.evaluate(found, {str(symbol): number}) == function(number)
