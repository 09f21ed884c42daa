"""Integer arithmetic, bit for bit as in eager: signs, limits, shifts, powers, divisors, unsigned types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from against_eager import compiled, devices
from bitwise import check_bits

each_device = pytest.mark.parametrize("device", devices())
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
TYPES = (*SIGNED, torch.uint8)
LATE = (torch.uint16, torch.uint32, torch.uint64)
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


def corners(dtype: torch.dtype, device: str) -> Tensor:
    """Returns the ends of a type and numbers about zero."""
    limits = torch.iinfo(dtype)
    small = [0, 1, 2, 3, 5, 7, limits.max, limits.max - 1, limits.max // 2, limits.min, limits.min + 1]
    if dtype.is_signed:
        small += [-1, -2, -3, -7]
    return torch.tensor(small, dtype=dtype, device=device)


def grid(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    x = corners(dtype, device)
    return x.repeat_interleave(len(x)), x.repeat(len(x))


DIVISIONS: list[Callable[..., Tensor]] = [
    torch.floor_divide,
    torch.remainder,
    torch.fmod,
    lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    lambda a, b: torch.div(a, b, rounding_mode="floor"),
    lambda a, b: a // b,
    lambda a, b: a % b,
]


@each_device
@each_type
def test_division_by_the_signs(dtype: torch.dtype, device: str) -> None:
    a, b = grid(dtype, device)
    # Without zero divisors, and the one quotient that overflows, which traps on a CPU.
    kept = (b != 0) & ~((b == -1) & (a == torch.iinfo(dtype).min)) if dtype.is_signed else b != 0
    a, b = a[kept], b[kept]
    for number, divide in enumerate(DIVISIONS):
        check_bits(divide, a, b, about=f"division {number}")
        check_bits(lambda a, divide=divide: divide(a, 3), a, about=f"division {number} by 3")
        if dtype.is_signed:
            check_bits(lambda a, divide=divide: divide(a, -7), a, about=f"division {number} by -7")


@each_device
@each_type
def test_true_division_gives_floats(dtype: torch.dtype, device: str) -> None:
    a, b = grid(dtype, device)
    check_bits(torch.true_divide, a, b)
    check_bits(lambda a: a / 4, a)
    check_bits(lambda a: a / 0, a)
    third = compiled(lambda a: a / 3)(a)  # eager on a GPU multiplies by the rounded third
    assert torch.equal(third.cpu(), a.cpu() / 3)


@each_device
@each_type
def test_extremes_of_negated_numbers(dtype: torch.dtype, device: str) -> None:
    """The assembler for NVIDIA's GPUs lost a minus here, or that the least number has no negative in its type.

    Rows lie within threads, and a third operand follows two.
    """
    a, b = grid(dtype, device)
    rows, ends = a[: a.numel() // 8 * 8].view(-1, 8), (torch.amin, torch.amax)
    check_bits(lambda a: [end(-x, (d,)) for end in ends for x in (a, a.t().contiguous()) for d in (0, 1)], rows)
    pairs = [(f, g) for f in (torch.minimum, torch.maximum) for g in (torch.minimum, torch.maximum)]
    check_bits(lambda a, b: [g(f(a, -b), a + b) for f, g in pairs], a, b)
    check_bits(lambda a, b: [f(a) < b for f in (torch.neg, torch.abs)], a, b)
    check_bits(lambda a, b: [f(a).long() + b for f in (torch.neg, torch.abs)], a, b)


def check_division_raises(divide: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Checks that a division by zero raises in eager mode and compiled, also where the quotient is thrown away."""
    a, b = grid(dtype, "cpu")
    if dtype.is_signed:
        b = torch.where(b == -1, 0, b)
    call = compiled(lambda a, b: torch.where(b != 0, divide(a, b), 77))
    for run in (divide, call):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(a, b)


@each_type
def test_division_by_zero_raises_on_a_cpu(dtype: torch.dtype) -> None:
    """As eager does there; a process that traps would end with the first of them."""
    check_division_raises(torch.floor_divide, dtype)


def test_every_division_by_zero_raises_on_a_cpu() -> None:
    for divide in DIVISIONS:
        check_division_raises(divide, torch.int32)


@each_device
def test_divisions_of_elements_that_are_not_read(device: str) -> None:
    """Where padding begins the kernel divides nothing: what it has there instead of a divisor raises nothing."""
    count = torch.arange(16, dtype=torch.int32, device=device)
    padded = compiled(lambda count: torch.nn.functional.pad(count // (count.abs() + 1), (1, 2), value=1))
    assert padded(count).tolist() == [1, *[0] * 16, 1, 1]


@pytest.mark.gpu
@each_type
def test_conditions_hold_beside_divisions_by_zero(dtype: torch.dtype) -> None:
    """A division on a GPU is no promise that the divisor is not zero, where its result is thrown away."""
    a, b = grid(dtype, "cuda")
    if dtype.is_signed:
        b = torch.where(b == -1, 0, b)
    safe = torch.where(b == 0, 1, b)
    for number, divide in enumerate(DIVISIONS):
        found = compiled(lambda a, b, divide=divide: torch.where(b != 0, divide(a, b), 77))(a, b)
        assert torch.equal(found, torch.where(b != 0, divide(a, safe), 77)), f"division {number}"


@pytest.mark.gpu
@each_type
def test_division_by_zero_on_a_gpu(dtype: torch.dtype) -> None:
    a = corners(dtype, "cuda")
    for divide in DIVISIONS:
        check_bits(divide, a, torch.zeros_like(a))


@each_device
@each_type
@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
def test_shifts_by_any_count(name: str, dtype: torch.dtype, device: str) -> None:
    shift = getattr(torch, name)
    x = corners(dtype, device)
    bits = torch.iinfo(dtype).bits
    counts = [0, 1, bits - 2, bits - 1, bits, bits + 1, 100]
    counts += [-1, -bits] if dtype.is_signed else []
    given = torch.tensor(counts, dtype=dtype, device=device)
    check_bits(shift, x[:, None], given, about=name)
    for count in (0, 3, bits - 1, bits, *([-1] if dtype.is_signed else [])):
        check_bits(lambda x, count=count: shift(x, count), x, about=f"{name} by {count}")


@each_device
@each_type
def test_arithmetic_wraps(dtype: torch.dtype, device: str) -> None:
    a, b = grid(dtype, device)
    functions: list[Callable[..., Any]] = [
        torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.bitwise_and, torch.bitwise_or,
        torch.bitwise_xor, torch.eq, torch.lt, torch.ge, torch.rsub,
        lambda a, b: torch.add(a, b, alpha=3), lambda a, b: torch.sub(a, b, alpha=3), torch.heaviside,
    ]  # fmt: skip
    for number, function in enumerate(functions):
        check_bits(function, a, b, about=f"function {number}")
    for number, one in enumerate([torch.neg, torch.abs, torch.sign, torch.bitwise_not, torch.square, torch.relu]):
        check_bits(one, a, about=f"function {number} of one")


@each_device
@each_type
def test_common_divisors_and_multiples(dtype: torch.dtype, device: str) -> None:
    a, b = grid(dtype, device)
    kept = (a > torch.iinfo(dtype).min) & (b > torch.iinfo(dtype).min)  # whose quotient by -1 traps in eager
    check_bits(torch.gcd, a[kept], b[kept])
    # Eager's multiples end the process on a CPU where both are zero: Python's are the judge.
    small = (a < 8) & (b < 8) & (a > -8) & (b > -8) if dtype.is_signed else (a < 8) & (b < 8)
    a, b = a[small], b[small]
    expected = [math.lcm(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert compiled(lambda a, b: torch.lcm(a, b))(a, b).tolist() == expected  # noqa: PLW0108


@each_device
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8], ids=str)
def test_multiples_beyond_a_narrow_type(dtype: torch.dtype, device: str) -> None:
    """The sign is dropped in 32 bits, and only then is the number cut to its type."""
    a = torch.arange(1, torch.iinfo(dtype).max, 3 if dtype is not torch.int16 else 701).to(dtype).to(device)
    b = a.flip(0) if dtype is torch.uint8 else -a.flip(0)
    check_bits(torch.lcm, a, b)
    check_bits(torch.lcm, b, a[:, None])


@each_device
@each_type
def test_integer_powers(dtype: torch.dtype, device: str) -> None:
    x = corners(dtype, device)
    exponents = torch.tensor(
        [0, 1, 2, 3, 5, 31, *([-1, -2, -3] if dtype.is_signed else [])], dtype=dtype, device=device
    )
    check_bits(torch.pow, x[:, None], exponents)
    for exponent in (0, 1, 2, 3, 7):
        check_bits(lambda x, e=exponent: x**e, x, about=f"power {exponent}")
    check_bits(lambda e: 2**e, exponents.clamp(min=0))
    check_bits(lambda x: torch.float_power(x, -1), x)


@each_device
@pytest.mark.parametrize("name", ["add", "sub", "mul", "bitwise_and", "bitwise_xor", "eq", "lt", "maximum", "div"])
@pytest.mark.parametrize("dtype", LATE, ids=str)
def test_late_unsigned_types(name: str, dtype: torch.dtype, device: str) -> None:
    """What eager can do with the unsigned types that came late, and no error where it can not."""
    a, b = grid(dtype, device)
    function = getattr(torch, name)
    try:
        function(a, b)
    except (RuntimeError, NotImplementedError):
        pytest.skip("eager has no such operation on this type")
    check_bits(function, a, b, about=name, native=False)


@each_device
def test_bools_are_no_numbers(device: str) -> None:
    a = torch.tensor([True, True, False, False], device=device)
    b = torch.tensor([True, False, True, False], device=device)
    functions: list[Callable[..., Any]] = [
        torch.add, torch.mul, torch.logical_xor, torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, torch.eq,
        torch.lt, torch.le, torch.maximum, torch.minimum, torch.true_divide,
        lambda a, b: a + 1, lambda a, b: a * 2.5, lambda a, b: ~a, lambda a, b: a ^ True,
        lambda a, b: torch.where(a, b, 3), lambda a, b: a.sum() + b, lambda a, b: a.float() + b,
    ]  # fmt: skip
    for number, function in enumerate(functions):
        check_bits(function, a, b, about=f"function {number}")
