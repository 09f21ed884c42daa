"""Binary searches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

each_side = pytest.mark.parametrize("right", [False, True])


@each_side
@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9])
def test_sequences_of_every_length(agree: Any, size: int, *, right: bool) -> None:
    sequence = torch.arange(size) * 2
    agree(lambda s, x: torch.searchsorted(s, x, right=right), sequence, torch.arange(-1, 2 * size + 2))


@each_side
@pytest.mark.parametrize("size", [64, 100, 127])
def test_sequences_whose_first_halvings_are_selected(agree: Any, size: int, *, right: bool) -> None:
    generator = torch.Generator().manual_seed(size)
    sequence = torch.randint(0, size, (size,), generator=generator).sort().values.float()
    x = torch.arange(-1.0, size + 2, 0.5)
    agree(lambda s, x: torch.searchsorted(s, x, right=right), sequence, x)
    disordered = sequence[torch.randperm(size, generator=generator)]
    disordered[size // 3] = math.nan
    agree(lambda s, x: torch.searchsorted(s, x, right=right), disordered, x)


@each_side
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_types(agree: Any, dtype: torch.dtype, *, right: bool) -> None:
    sequence, x = torch.tensor([1, 1, 2, 5, 5, 5, 9]).to(dtype), torch.arange(11).reshape(1, 11).to(dtype)
    agree(lambda s, x: torch.searchsorted(s, x, right=right), sequence, x)
    agree(lambda s, x: torch.bucketize(x, s, right=right, out_int32=True), sequence, x)


@each_side
def test_a_row_for_each_row(agree: Any, *, right: bool) -> None:
    rows, x = torch.randint(0, 9, (2, 3, 6)).sort(-1).values, torch.randint(0, 9, (2, 3, 4))
    agree(lambda s, x: torch.searchsorted(s, x, right=right), rows, x)


@each_side
def test_a_number(agree: Any, *, right: bool) -> None:
    sequence = torch.tensor([0.5, 1.0, 1.0, 2.5])
    agree(lambda s: (torch.searchsorted(s, 1.0, right=right), torch.bucketize(1, s, right=right)), sequence)
    agree(lambda s, x: torch.searchsorted(s, x, right=right), sequence, torch.tensor(2.0))


@each_side
def test_order_given_by_positions(agree: Any, *, right: bool) -> None:
    rows, x = torch.randint(0, 9, (3, 6)), torch.randint(0, 9, (3, 4))
    order = rows.argsort(-1)
    agree(lambda s, o, x: torch.searchsorted(s, x, right=right, sorter=o), rows, order, x)
    agree(lambda s, o, x: torch.searchsorted(s, x, side="right" if right else "left", sorter=o), rows, order, x)


@each_side
def test_what_is_not_in_order_is_searched_as_torch_does(agree: Any, *, right: bool) -> None:
    sequence = torch.tensor([1.0, 5.0, 2.0, math.nan, 4.0, 3.0, math.nan])
    x = torch.tensor([math.nan, 0.0, 2.5, 5.0, math.inf])
    agree(lambda s, x: torch.searchsorted(s, x, right=right), sequence, x)
