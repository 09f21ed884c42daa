"""Roundings to half types that a program states, or that others see in memory: bit for bit those of eager.

Between two operations a half value may keep more digits than its type has (excess precision). Conversions that the
program states take them away, and so does memory: whoever reads a value that lies there sees what lies there. Functions
that jump read what eager reads, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import compiled, devices, tensors_of
from bitwise import assert_same_bits, check_bits

each_device = pytest.mark.parametrize("device", devices())
each_half = pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)

Function = Callable[..., Any]


def numbers(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 3).to(device, dtype)


def check_all(named: dict[str, Function], *inputs: Any, native: bool = True) -> None:
    for name, function in named.items():
        check_bits(function, *inputs, about=name, native=native)


# --- conversions that the program states ------------------------------------------------------------------------------


@each_half
@each_device
def test_a_conversion_and_back_rounds(half: torch.dtype, device: str) -> None:
    x, like = numbers(5, 24, device=device), torch.zeros(1, dtype=half, device=device)
    other = torch.bfloat16 if half is torch.float16 else torch.float16

    def into_buffer(x: Tensor) -> Tensor:
        return torch.empty_like(x, dtype=half).copy_(x * 1.1).float() - x

    def into_part(x: Tensor) -> Tensor:
        buffer = torch.zeros(7, 24, dtype=half, device=x.device)
        buffer[1:6].copy_(x * 1.1)
        return buffer.float() * 3

    named: dict[str, Function] = {
        "error": lambda x: (x * 1.1).to(half).float() - x * 1.1,
        "parts": lambda x: ((h := x.to(half)), x - h.float(), (x - h.float()).to(half).float() + h.float()),
        "three": lambda x: ((h := x.to(half).float()), (m := (x - h).to(half).float()), x - h - m),
        "type_as": lambda x: (x * 3.3).type_as(like).float() + 1,
        "type": lambda x: (x * 3.3).type(half).double() + 1,
        "to_like": lambda x: (x * 3.3).to(like).float() + 1,
        "copy": into_buffer,
        "copy_part": into_part,
        "through_two": lambda x: (x * 1.7).to(half).to(other).float() * 3,
        "through_double": lambda x: (x.double() * 1.7).to(half).double() * 3,
        "from_double": lambda x: x.double().mul(1.7).float().to(half).float(),
        "sum": lambda x: (x * 1.1).to(half).float().sum(-1),
        "greatest": lambda x: (x * 1.1).to(half).float().amax(-1) - (x * 1.1).amax(-1),
        "equal": lambda x: (x * 1.1).to(half) == (x * 1.1).to(half).float() * 1.0001,
        "same": lambda x: (x.to(half).float() == x, x.to(half) == (x * 1.00001).to(half)),
        "index": lambda x: (x.abs() * 3).to(half).long() % 5,
        "taken": lambda x: x[((x[:, 0].abs() * 3.3).to(half) * 7).to(torch.int64) % 5],
        "joined": lambda x: torch.cat([(x * 1.1).to(half), (x * 1.3).to(half)]).float() * 7,
        "transposed": lambda x: (x * 1.1).to(half).t().float() * 7,
        "overflow": lambda x: torch.isinf((x * 1e6).half()),
        "underflow": lambda x: ((x * 1e-9).half() == 0, (x * 1e-9).half().float().sign()),
        "chosen": lambda x: torch.where(x > 0, (x * 1.1).to(half), (x * 1.3).to(half)).float(),
        "constant": lambda x: x * torch.full((24,), 0.1, device=x.device).to(half).float(),
        "number": lambda x: x * torch.tensor(0.1, device=x.device).to(half).float(),
        "summed_in": lambda x: (x * 1.1).sum(-1, dtype=half),
        "scattered": lambda x: torch.zeros(5, 24, device=x.device).index_put(
            (torch.arange(5, device=x.device).flip(0),), (x * 1.1).to(half).float()
        ),
    }
    if device == "cpu":  # eager's scan on a GPU adds halves in halves, ours in float32: one of them rounds more often
        named["running_in"] = lambda x: (x[:, :6] * 1.1).cumsum(-1, dtype=half)
    check_all(named, x)


@each_device
def test_conversions_to_eight_bits_and_single_precision_round(device: str) -> None:
    x = numbers(4, 24, device=device)
    for narrow in (torch.float8_e4m3fn, torch.float8_e5m2):
        check_all(
            {
                "error": lambda x, narrow=narrow: (x * 1.1).to(narrow).float() - x * 1.1,
                "of_halves": lambda x, narrow=narrow: (x * 1.1).half().to(narrow).half().float() - x,
            },
            x,
            native=False,
        )
    check_bits(lambda x: (x * 1.1).float().double() - x * 1.1, x.double() + 1e-12)


@each_half
@each_device
def test_a_half_result_read_as_another_type_is_rounded(half: torch.dtype, device: str) -> None:
    x, y = numbers(5, 24, device=device, dtype=half), numbers(5, 24, device=device, dtype=half, seed=1)
    named: dict[str, Function] = {
        "product": lambda x, y: (x * y).float() - x.float() * y.float(),
        "view": lambda x, y: (x * y).t()[1:].float() * 1.3,
        "copy": lambda x, y: (x * y).clone().float() * 1.3,
        "double": lambda x, y: (x + y).double() * 1.3,
        "integer": lambda x, y: ((x * y).to(torch.int32), (x * 33.3).to(torch.int8)),
        "truth": lambda x, y: (x * y).bool(),
        "bits": lambda x, y: (x * y).view(torch.int16) & 1,
        "bits_again": lambda x, y: (x * y).view(torch.int16).view(half).float() * 1.3,
        "bytes": lambda x, y: (x * y).view(torch.uint8),
        "summed_in": lambda x, y: (x * y).sum(-1, dtype=torch.float64),
        "other": lambda x, y: (x * y).to(torch.bfloat16 if half is torch.float16 else torch.float16).float(),
        "divided": lambda x, y: (x / y).float() * 3,
        "copied": lambda x, y: torch.empty(5, 24, device=x.device).copy_(x * y) * 3,
    }
    check_all(named, x, y)


@each_device
def test_autocast_products_are_rounded(device: str) -> None:
    x, weight = numbers(8, 8, device=device), torch.eye(8, device=device)

    def product(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(device, torch.bfloat16):
            y = F.linear(x, weight)
            z = y * 1.1
        return y.float() - x, z.float() * 3

    check_bits(product, x, weight, native=False)


# --- one value, many readers ------------------------------------------------------------------------------------------


@each_device
def test_an_overflowed_half_is_infinite_for_all_readers(device: str) -> None:
    x = torch.full((4, 40), 300.0, dtype=torch.float16, device=device)

    def changed_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(x)
        return x.isinf(), x - x

    named: dict[str, Function] = {
        "tests": lambda x: ((y := x * x), y.isinf(), torch.where(y.isinf(), 0, y), y.isfinite().all(), y.nan_to_num()),
        "alone": lambda x: (x * x).isinf(),
        "quotient": lambda x: ((y := x.exp()), y / y),
        "difference": lambda x: ((y := x * x), y - y),
        "copy": lambda x: ((y := x * x).clone(), y - y),
        "joined": lambda x: ((y := x * x), torch.cat([y, x]), y - y),
        "parts": lambda x: (torch.stack([(y := x * x), x]), y - y),
        "contiguous": lambda x: ((y := x * x).t().contiguous(), y - y),
        "sorted": lambda x: ((y := x * x).sort(-1).values, y - y),
        "row": lambda x: ((y := x * x)[1], (y - y)[2]),
        "sums": lambda x: ((y := x * x), (y - y).sum(-1), y.amax(-1) - 1),
        "negative": lambda x: ((y := -(x * x)), y - y, y > -7e4, y.sign()),
        "in_place": changed_in_place,
        "two_kernels": lambda x: ((y := x * x), (y.sum(0, keepdim=True) - y).cumsum(1)),
        "library": lambda x: (torch.fft.rfft((y := x * x).float()).real, y - y),
    }
    check_all({name: function for name, function in named.items() if name != "library"}, x.clone())
    check_bits(named["library"], x, native=False)


@each_half
@each_device
def test_steps_of_a_half_value(half: torch.dtype, device: str) -> None:
    x = numbers(4, 256, device=device, dtype=half)

    def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round().clamp(-128, 127).to(torch.int8), scale

    named: dict[str, Function] = {
        "floor": lambda x: ((y := x * 33.3), y.floor(), y.to(torch.int32)),
        "alone": lambda x: ((x * 33.3).floor(), (x * 33.3).ceil(), (x * 33.3).round(), (x * 33.3).trunc()),
        "fraction": lambda x: (x * 33.3).frac(),
        "remainder": lambda x: ((x * 33.3) % 3, torch.fmod(x * 33.3, 3), (x * 33.3) // 3),
        "compared": lambda x: (x * 1.1 > 2, (x * 1.1) == (x * 1.1).round(), x * 1.1 >= x),
        "signs": lambda x: ((x * 1e-5 * 1e-5).sign(), (x * 1e-6 * 1e-4) != 0, torch.logical_not(x * 1e-6 * 1e-4)),
        "shrunk": lambda x: (F.hardshrink(x * 1.1, 2.0), F.threshold(x * 1.1, 2.0, 9.0)),
        "places": lambda x: ((x * 1.1).argmax(-1), (x * 1.1).min(-1).indices),
        "order": lambda x: torch.argsort(x * 1.1, stable=True, dim=-1),
        "counted": lambda x: (torch.count_nonzero(x * 1e-6 * 1e-4), (x * 1e-6 * 1e-4).any(-1)),
        "found": lambda x: torch.bucketize(x * 1.1, torch.arange(-9.0, 9.0, 0.5, device=x.device, dtype=half)),
        "quantised": quantise,
    }
    check_all(named, x)


def gradients_of(function: Function, *inputs: Tensor) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    results = tensors_of(function(*leaves))
    wanted = [result for result in results if result.requires_grad]
    seeds = [torch.linspace(0.5, 1.5, r.numel(), device=r.device).view(r.shape).to(r.dtype) for r in wanted]
    return [*results, *torch.autograd.grad(wanted, [leaf for leaf in leaves if leaf.requires_grad], seeds)]


@each_half
@each_device
def test_gradients_through_conversions(half: torch.dtype, device: str) -> None:
    x, w = numbers(4, 24, device=device), numbers(4, 24, device=device, seed=1)
    named: dict[str, Function] = {
        "there_and_back": lambda x, w: (x.to(half).float() * w).to(half),
        "halves": lambda x, w: (x.to(half) * w.to(half)).float() * 1.7,
        "seen": lambda x, w: ((h := x.to(half)), h.float() * w),
        "relu": lambda x, w: ((h := x.to(half) * w.to(half)), torch.relu(h).float()),
    }
    for name, function in named.items():
        torch._dynamo.reset()
        eager = gradients_of(function, x, w)
        mine = gradients_of(compiled(function, fullgraph=True, dynamic=False), x, w)
        assert_same_bits(mine, eager, name)


@each_half
def test_stated_conversions_of_dynamic_sizes(half: torch.dtype) -> None:
    def split(x: Tensor) -> tuple[Tensor, ...]:
        high = x.to(half)
        y = high * 1.7
        return high, x - high.float(), y, y.floor(), y.sum(-1).float()[:1] * 0

    torch._dynamo.reset()
    fast = compiled(split, fullgraph=True, dynamic=True)
    for rows in (3, 5, 17):
        x = numbers(rows, 2 * rows)
        assert_same_bits(fast(x), split(x), f"{rows}")


@each_half
@each_device
def test_a_returned_half_is_the_same_in_backward(half: torch.dtype, device: str) -> None:
    """The backward computes the product anew: it is smaller than what it is made of is kept for anyway."""
    x, w = numbers(4, 24, device=device, dtype=half), numbers(4, 24, device=device, dtype=half, seed=1)
    v = numbers(24, 4, device=device, seed=2)
    named: dict[str, Function] = {
        "product": lambda x, w, v: ((h := x * w), h * v.t()),
        "view": lambda x, w, v: ((h := x * w).t(), h * v.t()),
        "copy": lambda x, w, v: ((h := x * w).t().contiguous(), h * v.t()),
    }
    for name, function in named.items():
        torch._dynamo.reset()
        eager = gradients_of(function, x, w, v)
        mine = gradients_of(compiled(function, fullgraph=True, dynamic=False), x, w, v)
        assert_same_bits([*mine[:2], mine[-1]], [*eager[:2], eager[-1]], name)


# --- extremes, which are values of others -----------------------------------------------------------------------------


EXTREMES: dict[str, Function] = {
    "largest": lambda y: ((s := y.amax(1, keepdim=True)), (s - y).sqrt()),
    "largest, and where": lambda y: (*(found := y.max(1, keepdim=True)), (found[0] - y).sqrt()),
    "smallest": lambda y: ((s := torch.aminmax(y, dim=1, keepdim=True).min), (y - s).sqrt()),
    "so far": lambda y: ((s := y.cummax(1).values), (s - y).sqrt()),
    "of all": lambda y: ((s := y.amin()), (y - s).sqrt()),
}


@each_half
@each_device
@pytest.mark.parametrize("shape", [(7, 4, 64), (5, 300)], ids=str)
@pytest.mark.parametrize("name", EXTREMES)
def test_nothing_is_beyond_an_extreme_that_is_stored(
    name: str, shape: tuple[int, ...], half: torch.dtype, device: str
) -> None:
    x = numbers(*shape, device=device, dtype=half)
    *_, distance = compiled(lambda x: EXTREMES[name](x.sin()))(x)
    assert not distance.isnan().any()
    assert (distance == 0).any()


@each_half
@each_device
def test_the_sum_of_one_element_is_that_element(half: torch.dtype, device: str) -> None:
    x = numbers(300, 4, 1, device=device, dtype=half)
    _, rest = compiled(lambda x: ((s := (y := x.sin()).sum(2, keepdim=True)), y - s))(x)
    assert not rest.any()
