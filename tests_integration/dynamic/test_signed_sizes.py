"""Sizes that are quotients of numbers with a sign: ranges that run down, parts counted from the end, roundings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ferrite_torch
from against_eager import own_only

pytestmark = own_only("it compiles with ferrite's own options")

FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "range, down": (lambda x, by: torch.arange(512, -512, by), [(-1,), (-3,), (-700,)]),
    "range, up": (lambda x, by: torch.arange(-512, 512, by), [(1,), (7,), (2000,)]),
    "range, down, short": (lambda x, by: torch.arange(10, -3, by), [(-4,), (-1,), (-13,)]),
    "range between numbers": (lambda x, a, b: torch.arange(a, b, -3), [(9, -9), (100, 2), (-2, -30)]),
    "range by all three": (lambda x, a, b, by: torch.arange(a, b, by), [(9, -9, -2), (30, 2, -5)]),
    "range of floats": (lambda x, by: torch.arange(8, -8, by, dtype=torch.float32), [(-1,), (-5,)]),
    "range times a tensor": (lambda x, by: torch.arange(512, -512, by) * x[0], [(-1,), (-9,)]),
    "quotient by a negative number": (lambda x, n: x.new_zeros(n // -2 + n), [(7,), (12,)]),
    "quotient of a negative number": (lambda x, n: torch.ones(-(-n // 3)) * 2, [(7,), (9,)]),
    "quotient of two numbers": (lambda x, n, by: torch.full((n // by,), 3.0), [(-9, -2), (-8, -3)]),
    "rest of a negative number": (lambda x, n: torch.full((-n % 8 + 1,), 2), [(3,), (8,)]),
    "rest by a negative number": (lambda x, n: x[: n % -5 + 6] * 2, [(7,), (9,)]),
    "part from the end": (lambda x, n: x[: -(n // 2)] + 1, [(5,), (8,)]),
    "slice from a negative place": (lambda x, n: x[n // -2 :] + 1, [(5,), (8,)]),
    "last ones": (lambda x, n: x[n:] * 2, [(-5,), (-1,), (-23,)]),
    "last ones, to beyond the end": (lambda x, a, b: x[a:b] * 2, [(-3, 100), (-7, 40)]),
    "last ones but some": (lambda x, a, b: x[a:b] * x[0], [(-5, -1), (-9, -2)]),
    "rows and columns from the end": (
        lambda x, a, b: x[:20].view(4, 5)[a:, b:].sum(0),
        [(-3, -2), (-2, -4)],
    ),
    "every other": (lambda x, by: x[1::by] + 1, [(2,), (3,), (50,)]),
    "windows": (lambda x, size, by: x.unfold(0, size, by) + 1, [(3, 2), (4, 5)]),
    "larger half of two, broadcast": (
        lambda x, n: x[4:n].narrow(0, (n - 4) // 2, n - 4 - (n - 4) // 2) * x[4:n],
        [(6,)],
    ),
    "one of a part, broadcast": (lambda x, a, b: x[a:b] * x[:7], [(3, 4), (9, 10)]),
    "rounded up": (lambda x, n: x.new_ones(-(n // -4)), [(5,), (9,)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signed_sizes(name: str) -> None:
    function, calls = FUNCTIONS[name]
    x = torch.arange(23.0)
    ferrite_torch.reset_statistics()
    compiled = torch.compile(function, backend="ferrite", dynamic=True, options={"fallback": False, "verify": True})
    for numbers in calls:
        expected = function(x, *numbers)
        torch.full_like(expected, 77)  # what lies in memory that nobody writes
        torch.testing.assert_close(compiled(x, *numbers), expected, rtol=0, atol=0)
