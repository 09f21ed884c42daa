"""Variances along columns: a kernel takes in at once all points of a column that a thread holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, widened
from ferrite_torch import compiled_programs

OPTIONS = {"fallback": False, "policy": {"split_minimum": 1 << 20}}  # whole columns to a program


def moments(x: Tensor) -> tuple[Tensor, ...]:
    return torch.var_mean(x, 1)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 1024, 64), (1, 2048, 48), (2, 1000, 64)], ids=str)
def test_values_far_from_zero_keep_their_variance(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Of numbers near 1000 the squares would lose all of it."""
    torch.manual_seed(0)
    x = (torch.randn(shape, device=device) * 4 + 1000).to(dtype)
    mine = compiled(moments, fullgraph=True, dynamic=False, options=OPTIONS)(x)
    assert_all_close(mine, moments(x), moments(widened(x)))
    (kernel,) = compiled_programs()[-1]["kernels"]
    has_groups = "squares_" in kernel["source"]
    assert has_groups == (shape[1] % 128 == 0), "blocks that reach past the end are taken in point by point"
    assert kernel["facts"].get("rows_together", 1) == (8 if has_groups else 1)


@pytest.mark.parametrize("device", devices())
def test_infinities_and_nan_stay_in_their_column(device: str) -> None:
    x = torch.randn(1, 1024, 8, device=device)
    x[0, 3, 1], x[0, 900, 2] = float("inf"), float("nan")
    variance, mean = compiled(moments, fullgraph=True, dynamic=False, options=OPTIONS)(x)
    rest = [0, 3, 4, 5, 6, 7]
    torch.testing.assert_close(variance[:, rest], x.var(1)[:, rest])
    torch.testing.assert_close(mean[:, rest], x.mean(1)[:, rest])
    assert variance[0, 1:3].isnan().all()
    assert not mean[0, 1:3].isfinite().any()
