"""Strides that no element depends on, of dims of one element, are eager's where ops go element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import compiled

LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "a row that was a column": ((4, 1, 1), (1, 4, 1)),
    "an image of one channel": ((2, 1, 3, 3), (9, 1, 3, 1)),
    "one image, channels last": ((1, 3, 2, 2), (12, 1, 6, 3)),
    "one pixel, channels last": ((2, 3, 1, 1), (3, 1, 3, 3)),
    "a slice": ((3, 1, 2), (8, 4, 2)),
    "expanded and narrowed": ((1, 3), (0, 1)),
    "a transposed column": ((1, 5), (1, 1)),
    "any": ((2, 1, 2), (2, 7, 1)),
}
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "a comparison": lambda x: x > 0.5,
    "a sum with a number": lambda x: x + 1,
    "a sum": lambda x: x + x,
    "one operand": lambda x: (torch.relu(x), x.exp(), -x),
    "clamped": lambda x: x.clamp(0, 1),
    "a number in front": lambda x: 1 - x,
    "a transpose": lambda x: x.transpose(0, -1) * 2,
    "a view of a result": lambda x: (x * 2).transpose(0, 1),
    "one after the other": lambda x: ((x > 0) & (x < 1)).logical_not(),
    "a power": lambda x: x**2,
    "a sign": lambda x: x.copysign(-1.0),
    "a choice": lambda x: torch.where(x > 0, x, x * 2),
    "broadcast": lambda x: x * x[:1],
    "cast": lambda x: x.to(torch.float64) + 1,
    "rounded": lambda x: x.round(decimals=1),
    "a copy": lambda x: (x.clone(), torch.zeros_like(x)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_strides_are_those_of_eager(name: str, layout: str) -> None:
    shape, strides = LAYOUTS[layout]
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    x = torch.arange(float(extent)).sin().as_strided(shape, strides)
    function = FUNCTIONS[name]
    expected, found = function(x), compiled(function, dynamic=False)(x)
    for mine, theirs in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, expected)), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride()
        for memory in (torch.contiguous_format, torch.channels_last)[: 2 if mine.dim() == 4 else 1]:
            assert mine.is_contiguous(memory_format=memory) == theirs.is_contiguous(memory_format=memory)


def test_views_whose_sizes_change_keep_what_is_known() -> None:
    """A slice from a symbolic place, with a dim of one element."""

    def function(x: Tensor, n: int) -> Tensor:
        return x[n:].unsqueeze(0) * 2

    call = compiled(function, dynamic=True)
    for n in (-5, -1, -7):
        x = torch.arange(24.0)
        assert torch.equal(call(x, n), function(x, n))


# From programs that the fuzzer found.
SORTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "one operand": lambda x, y: y // (x.abs() + 1),
    "two": lambda x, y: y // (x * x + 1),
    "a comparison": lambda x, y: (y == x.abs()).select_scatter(x.expand(3, 1, 4, 5).select(1, 0) > 0, 1, 0),
    "no op before": lambda x, y: y // x,
    "a number": lambda x, y: y // (x + 1),
    "in place": lambda x, y: y // x.clone().mul_(x),
    "in place, an input": lambda x, y: y // x.mul_(x),
    "into a result": lambda x, y: y // torch.mul(x, x, out=torch.empty_like(x)),
    "allocated like its operand": lambda x, y: y * torch.nan_to_num(x),
    "clamped": lambda x, y: y * F.hardtanh(x, 1, 3),
}


@pytest.mark.parametrize("name", SORTED)
def test_axes_are_sorted_by_the_strides_that_kernels_give(name: str) -> None:
    """A kernel's result goes by rows where its operands do, whatever strides their axes of one element have."""
    x, y = torch.arange(1, 16).as_strided((3, 1, 1, 5), (5, 1, 5, 1)), torch.arange(4).view(4, 1)
    function, own = SORTED[name], x.clone()
    expected, found = function(x, y), compiled(function, dynamic=False)(own, y)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()
