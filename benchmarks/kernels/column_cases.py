"""Scans and softmaxes along columns, whole sums, scatters of few rows: `run.py --set columns`.

Shapes that random programs had when they lost (`benchmarks/RESULTS.md`, "Scans along columns"); none has a bar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.cases import Case

Shape = tuple[int, ...]


def hinge(x: Tensor, y: Tensor) -> Tensor:
    return torch.clamp(1 - x * y.sign(), min=0).mean()


def soft_margin(x: Tensor, y: Tensor) -> Tensor:
    return torch.log1p(torch.exp(-x * y.sign())).mean()


def scattered(x: Tensor, rows: Tensor, added: Tensor) -> Tensor:
    return x.scatter_add(0, rows[:, None].expand(added.shape), added)


SCANS: tuple[tuple[str, Callable[[Tensor], Any], tuple[Shape, ...]], ...] = (
    ("reversed sum over 0 of", lambda x: x.flip(0).cumsum(0).flip(0), ((47599, 25), (3418, 396))),
    ("cumsum over 0 of", lambda x: x.cumsum(0), ((2386, 3120), (107431, 44))),
    ("twice the cumsum over 0, and more, of", lambda x: x.cumsum(0) * 2 + x, ((7919, 517),)),
    ("cummax over 0 of", lambda x: x.cummax(0).values, ((2602, 210),)),
    ("logcumsumexp over 1 of", lambda x: x.logcumsumexp(1), ((21, 38006), (32, 45282), (54, 99803))),
    ("logcumsumexp over 0 of", lambda x: x.logcumsumexp(0), ((10171, 43),)),
    ("softmax over 0 of", lambda x: F.softmax(x, 0), ((4909, 978), (2000, 978), (1000, 978), (1500, 300), (700, 2000))),
    ("log_softmax over 0 of", lambda x: F.log_softmax(x, 0), ((4909, 978),)),
    ("sum of exponentials of", lambda x: x.float().exp().sum(), ((131, 4297),)),
)
LOSSES: tuple[tuple[str, Callable[[Tensor, Tensor], Any], Shape, bool], ...] = (
    ("hinge loss of", hinge, (29, 56369), False),
    ("soft margin loss with gradients of", soft_margin, (25, 194947), True),
)
SCATTERS: tuple[tuple[int, int, int], ...] = (
    (35963, 253, 3055),
    (28081, 497, 4096),
    (32768, 77, 3063),
    (37701, 80, 9333),
    (12739, 74, 16082),
)
"""Rows and columns of what is added to, and how many rows are."""


def text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def scan(name: str, function: Callable[[Tensor], Any], shape: Shape) -> Case:
    make = lambda dtype, scale: (torch.randn(max(1, shape[0] // scale), shape[1], dtype=dtype),)  # noqa: E731
    return Case(f"{name} {text(shape)}", function, make, bar=False)


def loss(name: str, function: Callable[[Tensor, Tensor], Any], shape: Shape, *, trains: bool) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        size = (shape[0], max(1, shape[1] // scale))
        pair = tuple(torch.randn(size, dtype=dtype).requires_grad_(trains) for _ in range(2))
        return (*pair, torch.ones((), dtype=dtype)) if trains else pair

    return Case(f"{name} {text(shape)}", function, make, bar=False, trains=trains)


def scatter(rows: int, columns: int, count: int) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        size = max(1, rows // scale)
        added = torch.randn(max(1, count // scale), columns, dtype=dtype)
        return torch.randn(size, columns, dtype=dtype), torch.randint(0, size, (len(added),)), added

    return Case(f"scatter_add of {count} rows into {rows}x{columns}", scattered, make, bar=False)


COLUMN_CASES: tuple[Case, ...] = (
    *(scan(name, function, shape) for name, function, shapes in SCANS for shape in shapes),
    *(loss(name, function, shape, trains=trains) for name, function, shape, trains in LOSSES),
    *(scatter(*each) for each in SCATTERS),
)
