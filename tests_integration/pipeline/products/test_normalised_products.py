"""Products of matrices with normalised vectors: the product computes the norm, too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, own_only, widened

# As few programs as there are rows here are enough.
OPTIONS = {"fallback": False, "verify": True, "policy": {"programs_per_processor": 0}}


def norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def product(x: Tensor, w: Tensor, matrix: Tensor) -> Tensor:
    return matrix @ norm(x, w)


def dequantised(x: Tensor, w: Tensor, matrix: Tensor) -> Tensor:
    codes = (matrix * 20).to(torch.int8)
    return (codes.to(x.dtype) * w[0]) @ norm(x, w)


def given(dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(shape, device=device).to(dtype) for shape in ((200,), (200,), (24, 200)))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [product, dequantised])
def test_values(function, dtype: torch.dtype, device: str) -> None:
    inputs = given(dtype, device)
    mine = compiled(function, fullgraph=True, dynamic=False, options=OPTIONS)(*inputs)
    assert_all_close([mine], [function(*inputs)], [function(*map(widened, inputs))])


@own_only("looks at its kernels")
def test_one_kernel_does_both() -> None:
    from ferrite_torch import compiled_programs

    compiled(product, fullgraph=True, dynamic=False, options=OPTIONS)(*given(torch.float32, "cpu"))
    (kernel,) = compiled_programs()[-1]["kernels"]
    assert kernel["facts"]["reductions"] == 2
