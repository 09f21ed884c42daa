"""Products of a matrix and weights, with what is computed before and after them, and their inputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def product(x: Tensor, w: Tensor, *_: Tensor) -> Tensor:
    return F.linear(x, w)


def with_bias(x: Tensor, w: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    return F.silu(F.linear(x, w, bias))


def scaled(x: Tensor, w: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    return torch.addmm(bias, x, w.t(), beta=0.5, alpha=2.0)


def residual(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    return y + F.linear(x, w, bias)


def gated(x: Tensor, w: Tensor, bias: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def normalised(x: Tensor, w: Tensor, *_: Tensor) -> Tensor:
    return F.linear(F.rms_norm(x, x.shape[-1:]), w)


def dequantised(x: Tensor, w: Tensor, bias: Tensor, *_: Tensor) -> Tensor:
    codes = (w * 20).round().to(torch.int8)
    return F.linear(x, codes.to(x.dtype) * bias[:, None])


def drawn(rows: int, dtype: torch.dtype, device: str, k: int, n: int) -> tuple[Tensor, ...]:
    """Returns the input of ``rows`` rows of ``k``, weights (n, k), a bias, a residual (rows, n) and second weights."""
    torch.manual_seed(0)
    shapes = ((rows, k), (n, k), (n,), (rows, n), (n, k))
    return tuple(torch.randn(shape, device=device).to(dtype) for shape in shapes)


def kernels() -> list[dict[str, Any]]:
    """Returns the kernels of the program that was compiled last."""
    from ferrite_torch import compiled_programs

    found: list[dict[str, Any]] = compiled_programs()[-1]["kernels"]
    return found
