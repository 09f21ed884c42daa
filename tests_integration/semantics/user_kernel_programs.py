"""Programs around Triton kernels of their own, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

import jitted_kernels as kernels


def blocks(n: int) -> Callable[[Any], tuple[int]]:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def add_to(x: Tensor, y: Tensor) -> None:
    kernels.add_in_place[blocks(x.numel())](x, y, x.numel(), BLOCK=128)


def between(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.scaled_sum[(9,)](x * 2, y, out, x.numel(), 3.0, BLOCK=128)
    return out.relu() + y


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    add_to(z, y)
    return z.sin() + 1


def read_before(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    before = z + 1
    add_to(z, y)
    return z.sin(), before * z


def to_an_input(x: Tensor, y: Tensor) -> Tensor:
    add_to(x, y)
    return x.sin()


def to_an_input_read_later(x: Tensor, y: Tensor) -> Tensor:
    old = x.sin()
    add_to(x, y)
    return x * old


def same_twice(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    add_to(z, z)
    return z.sin() + y


def same_twice_in_order(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    kernels.running_sum[(1,)](z, z, z.numel())
    return z + y


def two_results(x: Tensor, y: Tensor) -> Tensor:
    low, high = torch.empty_like(x), torch.empty_like(x)
    kernels.neighbours[blocks(x.numel())](x + y, low, high, x.numel(), BLOCK=64)
    return low * high


def one_result_read(x: Tensor, y: Tensor) -> Tensor:
    low, high = torch.empty_like(x), torch.empty_like(x)
    kernels.neighbours[blocks(x.numel())](x + y, low, high, x.numel(), BLOCK=64)
    return high.exp()


def tuned(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.doubled_tuned[blocks(x.numel())](x + y, out, x.numel())
    return out + 1


def by_heuristics(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.doubled_by_heuristics[blocks(x.numel())](x + y, out, x.numel(), BLOCK=8)
    return out + 1


def with_defaults(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.shifted[(17,)](x + y, out, x.numel())
    return out + 1


def several_launches(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    for _ in range(3):
        add_to(z, y)
    return z.sin() + 1


def halves(x: Tensor, y: Tensor) -> Tensor:
    z, n = x * 2, x.numel() // 2
    kernels.add_in_place[(5,)](z[:n], y[n : 2 * n], n, BLOCK=128)
    return z.sin()


def added_halves(x: Tensor, y: Tensor) -> Tensor:
    n = x.numel() // 2
    return torch.cat([2 * x[:n] + y[n : 2 * n], 2 * x[n:]]).sin()


def transposed(x: Tensor, y: Tensor) -> Tensor:
    columns = (x[:990] * 2).view(33, 30).t()
    out = torch.empty(30, 33, device=x.device)
    kernels.scaled_columns[(30, 1)](columns, out, 30, 33, columns.stride(0), columns.stride(1), BLOCK=64)
    return out.relu().sum(0) + y[0]


def written_to_input(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x.sin()


@dataclass(frozen=True, slots=True)
class Case:
    """A program, what it computes, how many kernels of ours and of its own it launches, and for which sizes."""

    program: Callable[..., Any]
    meaning: Callable[..., Any]
    kernels: int = 2
    own: int = 1
    sizes: tuple[int, ...] = (1000, 1001, 1024)


CASES = {
    each.program.__name__: each
    for each in (
        Case(between, lambda x, y: (x * 6 + y).relu() + y),
        Case(in_place, lambda x, y: (x * 2 + y).sin() + 1),
        Case(read_before, lambda x, y: ((x * 2 + y).sin(), (x * 2 + 1) * (x * 2 + y))),
        Case(to_an_input, written_to_input, 1),
        Case(to_an_input_read_later, lambda x, y: x.sin() * x.add_(y)),
        Case(same_twice, lambda x, y: (x * 4).sin() + y),
        Case(same_twice_in_order, lambda x, y: (x * 2).cumsum(0) + y, sizes=(100, 101)),
        Case(two_results, lambda x, y: (x + y - 1) * (x + y + 1)),
        Case(one_result_read, lambda x, y: (x + y + 1).exp()),
        Case(tuned, lambda x, y: (x + y) * 2 + 1),
        Case(by_heuristics, lambda x, y: (x + y) * 2 + 1),
        Case(with_defaults, lambda x, y: x + y + 2.5),
        Case(several_launches, lambda x, y: (x * 2 + 3 * y).sin() + 1, own=3),
        Case(halves, added_halves, 3),
        Case(
            transposed,
            lambda x, y: (2 * x[:990].view(33, 30).t() * torch.arange(33, device=x.device)).relu().sum(0) + y[0],
            sizes=(1000, 1001),
        ),
    )
}
