"""Integers that a program computes in Python have no width: what 64 bits do not hold is refused, not wrapped around."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from against_eager import compiled_or_eager

Call = Callable[[torch.Tensor, int], Any]
NUMBERS = (3, 300, 40_000, 70_000, 3_037_000_500, 1 << 40, -5)
"""The square of the fifth lies between the integers with and without a sign; that of the sixth beyond both."""

COMPUTED: dict[str, Call] = {
    "a sum": lambda x, k: x + k * k,
    "a sum with floats": lambda x, k: x.double() + k * k,
    "a product": lambda x, k: x.double() * (k * k),
    "a power": lambda x, k: x + k**3,
    "a difference": lambda x, k: x - (-k * k),
    "a quotient": lambda x, k: x.double() / (k * k),
    "a remainder": lambda x, k: x % (k * k + 1),
    "a comparison": lambda x, k: x < k * k,
    "a choice": lambda x, k: torch.where(x > 0, k * k, x),
    "a constant": lambda x, k: torch.full((3,), k * k),
    "a constant of floats": lambda x, k: torch.full((3,), k * k, dtype=torch.float64),
    "a range": lambda x, k: torch.arange(k * k, k * k + 3),
    "a shift": lambda x, k: x + (k << 20),
    "a factor of a sum": lambda x, k: torch.add(x, x, alpha=k * k),
    "a bound": lambda x, k: x.clamp(max=k * k),
    "what is left of large ones": lambda x, k: x + (k * k * k) // (k * k),
    "sizes": lambda x, k: x * (x.size(0) ** 2 + k),
}
CONVERTED: dict[str, Call] = {
    "a constant of 32 bits": lambda x, k: torch.full((3,), k, dtype=torch.int32),
    "a constant of half floats": lambda x, k: torch.full((3,), k, dtype=torch.float16),
    "what is filled": lambda x, k: x.to(torch.int8).fill_(k),
    "what is filled by a mask": lambda x, k: x.to(torch.int16).masked_fill(x > 0, k),
    "a constant like another": lambda x, k: torch.full_like(x, k, dtype=torch.uint8),
}


def outcome(call: Call, number: int) -> Any:
    """Returns what a call gives, or nothing but that it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # graphs of numbers that eager takes otherwise run eagerly
        try:
            return call(torch.arange(-2, 3), number)
        except (OverflowError, RuntimeError, ValueError):
            return None


@pytest.mark.parametrize("name", [*COMPUTED, *CONVERTED])
def test_what_does_not_fit_is_refused_as_in_eager(name: str) -> None:
    function = (COMPUTED | CONVERTED)[name]
    call = compiled_or_eager(function, dynamic=True)
    for number in NUMBERS:
        expected, found = outcome(function, number), outcome(call, number)
        assert (found is None) is (expected is None), (number, expected, found)
        if expected is not None:
            assert torch.equal(found, expected), (number, expected, found)


@pytest.mark.parametrize("name", [*COMPUTED, *CONVERTED])
def test_numbers_that_fit_share_a_graph(name: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    import ferrite_torch  # noqa: F401 - registers the backend

    counter = CompileCounterWithBackend("ferrite")
    call = torch.compile((COMPUTED | CONVERTED)[name], backend=counter, dynamic=True)
    for number in (3, 11, 100):
        call(torch.arange(-2, 3), number)
    assert counter.frame_count == 1


def test_a_marked_size_stays_any_size() -> None:
    call = compiled_or_eager(lambda x: x * x.size(0) ** 3)
    x = torch.rand(6)
    torch._dynamo.mark_dynamic(x, 0)
    torch.testing.assert_close(call(x), x * 216)
