"""Conversions, bit for bit as in eager: out of range, NaN, narrow floats, bits seen as another type."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from against_eager import devices
from bitwise import check_bits

each_device = pytest.mark.parametrize("device", devices())
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
HALVES = (torch.float16, torch.bfloat16)
WIDE = (torch.float32, torch.float64)
NATIVE_EIGHTS = (torch.float8_e4m3fn, torch.float8_e5m2)
EIGHTS = (*NATIVE_EIGHTS, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def every_half(dtype: torch.dtype, device: str) -> Tensor:
    """Returns all numbers of a 16-bit type, NaN and infinities included."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).to(device)


def floats(dtype: torch.dtype, device: str) -> Tensor:
    """Returns numbers about the limits of all integer types and of the narrow floats."""
    torch.manual_seed(0)
    edges = [0.0, -0.0, 0.5, -0.5, 0.99, -0.99, 1.5, 2.5, -1.5, 1e-8, 1e-40, 65504.0, 65519.0, 65520.0, 3.4e38]
    edges += [
        sign * (2.0**power + off) for power in (7, 8, 15, 16) for off in (-1, -0.5, 0, 0.5, 1) for sign in (1, -1)
    ]
    edges += [16.0, 17.0, 18.0, 240.0, 247.9, 248.0, 448.0, 463.9, 464.0, 465.0, 57344.0, 61440.0, 61439.0, 2.0**-9]
    edges += [2.0**-10, 2.0**-16, 2.0**-17, 2.0**-18, 0.0009765624]
    return torch.cat([torch.tensor(edges, dtype=torch.float64), torch.randn(200, dtype=torch.float64) * 100]).to(
        device, dtype
    )


OUTSIDE = [3e9, -3e9, 1e10, -1e10, 1e19, -1e19, 1e30, -1e30, math.inf, -math.inf, math.nan]


@each_device
@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [*WIDE, *HALVES], ids=str)
def test_floats_to_integers_inside_of_their_range(source: torch.dtype, target: torch.dtype, device: str) -> None:
    limits = torch.iinfo(target)
    x = floats(source, device)
    low = limits.min - 0.5 if target.is_signed else 0.0
    x = x[(x > low) & (x < limits.max)]
    check_bits(lambda x: x.to(target), x)


@each_device
@pytest.mark.parametrize("target", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("source", [*WIDE, *HALVES], ids=str)
def test_floats_to_integers_outside_of_their_range(source: torch.dtype, target: torch.dtype, device: str) -> None:
    """C leaves it open; eager on a CPU gives the lowest number, CUDA the nearest, and so do compiled programs there."""
    x = torch.tensor(OUTSIDE * 8, dtype=source, device=device)
    check_bits(lambda x: x.to(target), x)


@each_device
@pytest.mark.parametrize("target", [torch.int8, torch.int16, torch.uint8], ids=str)
@pytest.mark.parametrize("source", WIDE, ids=str)
def test_floats_to_small_integers_wrap(source: torch.dtype, target: torch.dtype, device: str) -> None:
    x = torch.tensor([300.0, -300.0, 70000.0, -70000.0, -1.0, -129.0, 256.0, 32768.0] * 8, dtype=source, device=device)
    check_bits(lambda x: x.to(target), x)


@each_device
@pytest.mark.parametrize("source", HALVES, ids=str)
def test_halves_become_everything(source: torch.dtype, device: str) -> None:
    x = every_half(source, device)
    for target in (torch.float32, torch.float64, torch.bool, *HALVES):
        check_bits(lambda x, target=target: x.to(target), x, about=str(target))


@each_device
@pytest.mark.parametrize("target", HALVES, ids=str)
@pytest.mark.parametrize("source", WIDE, ids=str)
def test_rounding_to_halves(source: torch.dtype, target: torch.dtype, device: str) -> None:
    middle = every_half(target, "cpu").double()
    middle = middle[middle.isfinite()]
    ties = (middle[1:] + middle[:-1]) / 2
    x = torch.cat(
        [ties, ties * (1 + 2**-20), ties * (1 - 2**-20), torch.tensor([math.inf, -math.inf, math.nan, 1e300])]
    )
    check_bits(lambda x: x.to(target), x.to(device, source))


@each_device
@pytest.mark.parametrize("target", EIGHTS, ids=str)
@pytest.mark.parametrize("source", [*WIDE, *HALVES], ids=str)
def test_rounding_to_eight_bits(source: torch.dtype, target: torch.dtype, device: str) -> None:
    special = torch.tensor([math.inf, -math.inf, math.nan], dtype=source, device=device)
    x = torch.cat([floats(source, device), -floats(source, device), special])
    check_bits(lambda x: x.to(target), x, native=target in NATIVE_EIGHTS)


@each_device
@pytest.mark.parametrize("source", EIGHTS, ids=str)
def test_eight_bits_become_everything(source: torch.dtype, device: str) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(source).to(device)
    for target in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        check_bits(lambda x, target=target: x.to(target), x, about=str(target), native=source in NATIVE_EIGHTS)
    check_bits(lambda x: x.float() * 2 + 1, x, native=source in NATIVE_EIGHTS)
    check_bits(lambda x: (x.view(16, 16).t().contiguous(), torch.cat([x, x]), x[3::2]), x, native=False)


@each_device
def test_powers_of_two_in_eight_bits(device: str) -> None:
    x = torch.arange(256, dtype=torch.uint8, device=device).view(torch.float8_e8m0fnu)
    check_bits(lambda x: x.to(torch.float32), x, native=False)
    check_bits(lambda x: x.to(torch.float8_e8m0fnu), floats(torch.float32, device).abs(), native=False)


@each_device
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int32),
        (torch.int64, torch.float64),
        (torch.bfloat16, torch.int16),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.int16),
        (torch.float64, torch.int32),
        (torch.int64, torch.uint8),
        (torch.int16, torch.float32),
        (torch.uint8, torch.int64),
        (torch.uint8, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float64),
        (torch.int32, torch.float8_e4m3fn),
    ],
    ids=str,
)
def test_bits_seen_as_another_type(source: torch.dtype, target: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (6, 64), dtype=torch.uint8).view(source).to(device)
    check_bits(lambda x: x.view(target), x)
    check_bits(lambda x: (x.view(target), x.view(target).view(source)), x)


@each_device
def test_bits_are_computed_with(device: str) -> None:
    x = floats(torch.float32, device)
    check_bits(lambda x: (x.view(torch.int32) ^ (1 << 31)).view(torch.float32), x)
    check_bits(lambda x: (x.view(torch.int32) >> 23) & 255, x)


@each_device
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_next_numbers_of_halves(dtype: torch.dtype, device: str) -> None:
    x = every_half(dtype, device)
    for goal in (0.0, -0.0, math.inf, -math.inf, 1.0, math.nan):
        check_bits(torch.nextafter, x, torch.full_like(x, goal), about=f"towards {goal}")
    check_bits(torch.nextafter, x, x)


@each_device
@pytest.mark.parametrize("dtype", [*WIDE, *HALVES], ids=str)
def test_mantissa_and_exponent(dtype: torch.dtype, device: str) -> None:
    x = every_half(dtype, device) if dtype in HALVES else floats(dtype, device)
    x = torch.cat([x[x.isfinite()], torch.tensor([torch.finfo(dtype).tiny / 4, 0.0], dtype=dtype, device=device)])
    check_bits(lambda x: tuple(torch.frexp(x)), x)


@each_device
@pytest.mark.parametrize("through", [torch.uint16, torch.uint32, torch.uint64], ids=str)
@pytest.mark.parametrize("source", [torch.int8, torch.int16, torch.int32], ids=str)
def test_negative_integers_to_floats_through_unsigned_ones(
    source: torch.dtype, through: torch.dtype, device: str
) -> None:
    """All of the wide type's bits count: compilers narrow what they know to be copies of a sign."""
    x = torch.randint(-120, 120, (4096,), device=device).to(source)
    for target in (*WIDE, *HALVES):
        check_bits(lambda x, target=target: x.to(through).to(target), x)
    # Float32 and float64 of one number, of which each alone is made in another way.
    check_bits(lambda x: x.to(through).to(torch.float32).double() - x.to(through).double(), x)
