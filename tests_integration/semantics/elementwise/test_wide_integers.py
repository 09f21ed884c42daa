"""Integers past 32 bits: positions times numbers, constants, quotients, shifts, in every kind of kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from against_eager import compiled, tensors_of
from bitwise import check_bits

BIG = 1500000000
Function = Callable[..., Any]


def squares(dtype: torch.dtype) -> torch.Tensor:
    positions = torch.arange(70000, dtype=dtype)
    return (positions * positions)[-5:]


OF_POSITIONS: dict[str, Function] = {
    "beside a tensor": lambda z: (torch.arange(5) * BIG, z * 2),
    "beside a float": lambda z: (torch.arange(5) * BIG, z.float() * 2),
    "beside a row": lambda z: (torch.arange(5) * BIG, torch.arange(70) * 40000000, z + 1),
    "two products": lambda z: (torch.arange(5) * BIG, torch.arange(5) * 1400000000),
    "two hashes": lambda z: ((torch.arange(5) * 2654435761) % 1000, (torch.arange(5) * 805459861) % 1000),
    "hash of two positions": lambda z: ((torch.arange(5)[:, None] * 2654435761) ^ (torch.arange(7) * 805459861)) % 1024,
    "squares": lambda z: (squares(torch.int64), squares(torch.int64).double()),
    "squares in 32 bits wrap": lambda z: squares(torch.int32),
    "sum of products": lambda z: (torch.arange(5) * BIG).sum(),
    "sum along rows": lambda z: ((torch.arange(9)[:, None] + torch.arange(700)) * BIG).sum(1),
    "running sum": lambda z: (torch.arange(5) * BIG).cumsum(0),
    "greatest": lambda z: ((torch.arange(700) * 40000000) % 12345678901).max(),
    "sorted": lambda z: (torch.arange(5) * -BIG).sort(),
    "looked up": lambda z: z[(torch.arange(5) * BIG) % 5],
    "compared": lambda z: torch.arange(5) * BIG > 2**31,
    "chosen numbers": lambda z: torch.where(z == 0, BIG, -BIG) * 4,
    "chosen by position": lambda z: torch.where(torch.arange(5) > 2, BIG, 7) * 4 + z,
    "a truth times a number": lambda z: (z == 0) * BIG * 4,
    "a byte times a number": lambda z: z.to(torch.uint8).add(200).long() * 90000000,
    "numbers past 32 bits": lambda z: (z + 2**40, z - 2**40, z * 2**40 + 1, (z + 1) * (2**62 + 12345)),
    "quotients": lambda z: ((torch.arange(-5, 5) * BIG) // 7, (torch.arange(-5, 5) * BIG) % 7),
    "quotients by negatives": lambda z: ((torch.arange(-5, 5) * BIG) // -7, (torch.arange(-5, 5) * BIG) % -7),
    "shifts": lambda z: ((z + 3) << 40, (torch.arange(5) << 40) >> 38, torch.arange(5) << 33),
    "powers": lambda z: (torch.arange(5) ** 20, (z + 7) ** 22, torch.arange(70000) ** 2),
    "clamped": lambda z: (torch.arange(5) * BIG).clamp(-10, 2**33),
    "filled": lambda z: (torch.full((5,), 2**40) + z, torch.full_like(z, -(2**62)) * 2),
    "products past 64 bits": lambda z: ((torch.arange(5) * BIG + 1)[-2:] * 3037000500 + 1, z),
    "signs of products past 64 bits": lambda z: (torch.arange(5) * BIG * 3037000500 < 0, z),
    "scattered": lambda z: z.scatter_add(0, torch.zeros(5, dtype=torch.int64), torch.arange(5) * BIG),
}


@pytest.mark.parametrize("first", range(0, len(OF_POSITIONS), 9))
def test_whole_numbers_past_32_bits(first: int) -> None:
    names = list(OF_POSITIONS)[first : first + 9]
    z = torch.zeros(5, dtype=torch.int64)
    for name in names:
        torch._dynamo.reset()
        check_bits(lambda z, name=name: tensors_of(OF_POSITIONS[name](z)), z, about=name)
    torch._dynamo.reset()
    check_bits(lambda z: [x for name in names for x in tensors_of(OF_POSITIONS[name](z))], z, about=", ".join(names))


NUMBERS: dict[str, Function] = {
    "quotient of a product": lambda z, n: (torch.arange(5) * n) // 3 + z,
    "rest of a product": lambda z, n: (torch.arange(5) * n) % 1000 + z,
    "product": lambda z, n: (torch.arange(5) * n, z + 1),
    "squares": lambda z, n: (z + n * n, (torch.arange(5) + n) * n),
    "difference": lambda z, n: torch.arange(5) * 3 - n + z,
    "compared": lambda z, n: torch.arange(5) * n > z + n,
    "nested": lambda z, n: ((torch.arange(5) * n) // 3 * n) // 7 + z,
    "filled": lambda z, n: torch.full((5,), n) * 2 + z,
}


def test_dynamic_numbers_past_32_bits() -> None:
    def function(z: torch.Tensor, n: int) -> list[Any]:
        return [NUMBERS[name](z, n) for name in NUMBERS]

    dynamic = compiled(function, dynamic=True)
    z = torch.zeros(5, dtype=torch.int64)
    for number in (2**31 + 1, -(2**31) - 1, 5, -7, 2**31 - 1):
        actual, expected = dynamic(z, number), function(z, number)
        for name, one, other in zip(NUMBERS, actual, expected, strict=True):
            torch.testing.assert_close(tensors_of(one), tensors_of(other), msg=lambda text, n=name: f"{n}: {text}")


NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_integers_wrap_as_their_type_does(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 0, 1, 100, 77], dtype=dtype)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + x
        sums = [y, y // 3, y % 7, x * x, (x * x).long() * 3, x * 5 - 1, -x, (x * x) >> 1, (x + 1) > x]
        return [*sums, torch.where(x > 1, x, 100) * 3, x.sum(), x.cumsum(0), x.prod(), (x * 3).long() * BIG]

    check_bits(function, x, about=str(dtype))
