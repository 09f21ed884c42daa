"""Exact quotients of float32: by what the interpreter computes, and by what a GPU would."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fmath.test_fmath import assert_same_bits, run

torch = pytest.importorskip("torch")


def numbers(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns dividends and divisors of all bit patterns, and each special value by each."""
    drawn = np.random.default_rng(0).integers(0, 1 << 32, (2, number), dtype=np.uint32).view(np.float32)
    ends = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -3.0, 1e-40, -1e-40, 3.4028235e38, 2.0**126])
    a, b = ends.repeat(len(ends)), ends.repeat_interleave(len(ends))
    return torch.cat((torch.from_numpy(drawn[0]), a)), torch.cat((torch.from_numpy(drawn[1]), b))


def assert_divided(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Fails unless quotients are rounded to nearest; those of or to tiny numbers may be off by their last bit."""
    exact = a / b
    is_tiny = (a.abs() < 2.0**-100) | (exact.abs() < 2.0**-100)
    is_tiny &= (a != 0) & exact.isfinite()
    assert_same_bits(found[~is_tiny], exact[~is_tiny])
    torch.testing.assert_close(found[is_tiny], exact[is_tiny], rtol=2**-23, atol=2**-149)


@pytest.mark.parametrize("text", ["quotient(a, b)", "reciprocal(b)"])
def test_quotients_are_rounded_to_nearest(text: str) -> None:
    a, b = numbers(2000)
    if text == "reciprocal(b)":
        a = torch.ones_like(b)
    assert_divided(run(f"fmath.{text}", a, b, dtype="f32"), a, b)


NUMBERS = (0.1, -0.3, 0.99, 1e-30, 0.873651385307312, 3.7, -1e30)


def without_the_last(exact: torch.Tensor) -> torch.Tensor:
    """Returns where quotients are none of the last finite numbers."""
    return ~((exact.abs() > 3.4028231e38) & exact.isfinite())


@pytest.mark.parametrize("number", NUMBERS)
def test_what_a_gpu_computes_for_a_quotient_by_a_number_overflows_as_eager(number: float) -> None:
    x = np.linspace(-3.4e38, 3.4e38, 100_001, dtype=np.float32)
    divisor = np.float32(number)
    inverse = np.float32(1) / divisor
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = x * inverse
        rest = (-quotient.astype(np.float64) * divisor + x).astype(np.float32)
        found = np.where((np.abs(rest) > 0) & (np.abs(rest) < np.inf), quotient + rest * inverse, quotient)
        exact = torch.from_numpy(x / divisor)
    is_sure = without_the_last(exact)
    torch.testing.assert_close(torch.from_numpy(found)[is_sure], exact[is_sure], rtol=2**-22, atol=0)
