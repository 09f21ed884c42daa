"""A product that several values are made of is one number for all of them, bit for bit eager's.

GPUs multiply and add with one rounding. What sees the product beside such a sum would see another number.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from against_eager import devices
from bitwise import check_bits

Function = Callable[[Tensor, Tensor], object]

FUNCTIONS: dict[str, Function] = {
    "less itself": lambda x, y: x * y - x * y,
    "square less itself": lambda x, y: x * x - x.square(),
    "less itself, the other way round": lambda x, y: x * y - y * x,
    "by a number, less itself rounded": lambda x, y: x * 1.1 - (x * 1.1).bfloat16().to(x.dtype),
    "stored, and part of a sum": lambda x, y: ((p := x * 1.1), p - y),
    "stored by a view, and part of a sum": lambda x, y: ((p := x * y).t(), p + x),
    "in two sums": lambda x, y: ((p := x * y) + 1, p - y),
    "less the greatest of them": lambda x, y: (p := x * y) - p.amax(-1, keepdim=True),
    "negative, and added": lambda x, y: (p := x * y) + -p,
    "in a choice and a sum": lambda x, y: torch.where((p := x * y) > 0, p, 0.0) + p,
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_product_is_one_number_for_all_that_read_it(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 24, 24, dtype=dtype).to(device)
    for name, function in FUNCTIONS.items():
        check_bits(function, x, y, about=name)
