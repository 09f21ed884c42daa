"""Reductions, scans and copies in many shapes: `run.py --set sweep` looks for those that a compiler is slow at.

None has a bar of its own; what counts is how each compares with its bound and with other compilers. A name has the
shape, with ``n`` for as many as make 64 MiB, and the dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.cases import Case
from benchmarks.kernels.limit_cases import widened

BYTES = 64 << 20
"""Of the largest tensor of a case."""
Dims = tuple[int, ...]
Shape = tuple[int, ...]

REDUCED: tuple[tuple[Shape, Dims], ...] = (
    *(((0, points), (1,)) for points in (3, 7, 10, 17, 33, 100, 333, 1025, 5000, 20000, 100000)),
    *(((0, points, 1024), (1,)) for points in (3, 10, 50, 100, 333)),
    ((0, 200, 512), (1,)),
    ((0, 1025, 256), (1,)),
    ((0, 5000, 96), (1,)),
    ((0, 24, 24), (1,)),
    ((0, 100, 40), (1,)),
    ((0, 16, 7), (1,)),
    ((64, 0), (0,)),
    ((1000, 0), (0,)),
    ((8, 0, 64), (0, 2)),
    ((64, 0, 1000), (0, 2)),
)
"""Shapes, 0 for as many as there is room for, and the dims that are reduced."""


def total(x: Tensor, dims: Dims) -> Tensor:
    return x.sum(dims)


def moments(x: Tensor, dims: Dims) -> tuple[Tensor, Tensor]:
    return torch.var_mean(widened(x), dims)


def exponentials(x: Tensor, dims: Dims) -> Tensor:
    """Returns the softmax over one dim or more."""
    away = widened(x) - widened(x).amax(dims, keepdim=True)
    return (away.exp() / away.exp().sum(dims, keepdim=True)).to(x.dtype)


def standardised(x: Tensor, dims: Dims) -> Tensor:
    away = widened(x) - widened(x).mean(dims, keepdim=True)
    return (away * torch.rsqrt(away.square().mean(dims, keepdim=True) + 1e-5)).to(x.dtype)


def largest(x: Tensor, dims: Dims) -> Tensor:
    return x.argmax(dims[0])


def running(x: Tensor, dims: Dims) -> Tensor:
    return x.cumsum(dims[0])


REDUCTIONS: tuple[tuple[str, Callable[[Tensor, Dims], Any], bool], ...] = (
    ("sum", total, True),
    ("var_mean", moments, True),
    ("softmax", exponentials, True),
    ("norm", standardised, True),
    ("argmax", largest, False),
    ("cumsum", running, False),
)
"""Names, functions, and whether they take several dims."""


def filled(shape: Shape, dtype: torch.dtype, scale: int) -> Shape:
    """Returns a shape with as many as there is room for in place of the 0."""
    rest = math.prod(size for size in shape if size)
    room = max(1, BYTES // torch.empty((), dtype=dtype).element_size() // rest // scale)
    return tuple(size or room for size in shape)


def reduced(shape: Shape, dims: Dims, name: str, function: Callable[[Tensor, Dims], Any]) -> Case:
    def make(dtype: torch.dtype, scale: int) -> tuple[Any, ...]:
        return (torch.randn(filled(shape, dtype, scale), dtype=dtype),)

    text = "x".join(str(size or "n") for size in shape)
    return Case(f"{name} {text} over {'+'.join(map(str, dims))}", lambda x: function(x, dims), make, bar=False)


def moved(name: str, function: Callable[[Tensor], Tensor], shape: Shape) -> Case:
    return Case(
        f"{name} {'x'.join(str(size or 'n') for size in shape)}",
        function,
        lambda dtype, scale: (torch.randn(filled(shape, dtype, scale), dtype=dtype),),
        bar=False,
    )


SWEEP_CASES: tuple[Case, ...] = (
    *(
        reduced(shape, dims, name, function)
        for name, function, takes_several in REDUCTIONS
        for shape, dims in REDUCED
        if takes_several or len(dims) == 1
    ),
    moved("channels first", lambda x: x.permute(0, 3, 1, 2) * 2, (0, 56, 56, 96)),
    moved("contiguous channels first", lambda x: (x.permute(0, 3, 1, 2) * 2).contiguous(), (0, 56, 56, 96)),
    moved("contiguous channels first", lambda x: (x.permute(0, 3, 1, 2) * 2).contiguous(), (0, 224, 224, 3)),
    moved("contiguous channels last", lambda x: (x.permute(0, 2, 3, 1) * 2).contiguous(), (0, 3, 224, 224)),
    moved("heads", lambda x: (x.permute(0, 2, 1, 3) + 1).contiguous(), (0, 512, 12, 64)),
    moved("transposed", lambda x: (x.t() + 1).contiguous(), (0, 100)),
    moved("transposed", lambda x: (x.t() + 1).contiguous(), (0, 7)),
    moved("reversed", lambda x: x.flip(1) + 1, (0, 1000)),
    moved("rolled", lambda x: x.roll(3, 1) + 1, (0, 1000)),
    moved("padded", lambda x: F.pad(x, (1, 1, 1, 1)) + 1, (0, 56, 56)),
    moved("sliced", lambda x: x[:, ::2] + 1, (0, 1001)),
    moved("shifted", lambda x: x[:, 1:] - x[:, :-1], (0, 1001)),
    moved("joined", lambda x: torch.cat((x, x[:, :10] * 2), 1), (0, 333)),
    moved("stacked", lambda x: torch.stack((x, x * 2), -1), (0, 1000)),
    moved("repeated", lambda x: x.repeat_interleave(3, 1) + 1, (0, 333)),
    moved("triangle", lambda x: x.tril() + 1, (0, 512, 512)),
    moved("pooled", lambda x: F.avg_pool2d(x, 2), (0, 56, 56)),
    moved("enlarged", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (0, 3, 112, 112)),
    moved("unfolded", lambda x: x.unfold(1, 4, 2).sum(-1), (0, 1000)),
    moved("outer", lambda x: x[:, :, None] * x[:, None, :8], (0, 100)),
)
