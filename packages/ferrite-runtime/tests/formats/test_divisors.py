"""What is promised of sizes."""

from __future__ import annotations

import math

import pytest

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.divisors import PROMISES, divisor_of, divisor_text, take_divisors
from ferrite_runtime.formats.json_fields import Fields


@pytest.mark.parametrize("size", [*range(70), 1000, 5000, 8191, 8192, 8193, 2**40, 2**40 + 8])
def test_a_promise_is_the_greatest_of_those_that_divide(size: int) -> None:
    right = max((promise for promise in PROMISES if size % promise == 0), default=1)
    assert divisor_of(size) == right
    assert eval(divisor_text("n"), {"n": size}) == right
    assert eval(divisor_text("n * 6"), {"n": size}) == divisor_of(size * 6)
    assert math.gcd(size, right) == right


@pytest.mark.parametrize("wrong", [3, [1, 2], [[1]], [[1, 3]], [[1, 32]], [["x", 8]], [[True, 8]], [[1, 8.0]]])
def test_what_is_no_list_of_promises_is_named(wrong: object) -> None:
    with pytest.raises(SpecError, match="divisors"):
        take_divisors(Fields({"divisors": wrong}, "pin"))


def test_promises_are_read_as_they_are_written() -> None:
    assert take_divisors(Fields({"divisors": [[1, 8], [4, 16]]}, "pin")) == ((1, 8), (4, 16))
