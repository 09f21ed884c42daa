"""Variances along columns: a kernel takes in at once all points of a column that a thread holds."""

from __future__ import annotations

import copy

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


class Block(torch.nn.Module):
    """Convolutions and norms over batches, one of them beside the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_norm = torch.nn.Conv2d(3, 24, 3, padding=1), torch.nn.BatchNorm2d(24)
        self.second, self.second_norm = torch.nn.Conv2d(24, 40, 3, stride=2, padding=1), torch.nn.BatchNorm2d(40)
        self.beside, self.beside_norm = torch.nn.Conv2d(24, 40, 1, stride=2), torch.nn.BatchNorm2d(40)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.nn.functional.silu(self.first_norm(self.first(images)))
        y = torch.nn.functional.silu(self.second_norm(self.second(x)) + self.beside_norm(self.beside(x)))
        return y.mean((2, 3)).square().sum()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format], ids=str)
def test_batch_norms_train_at_any_size(memory_format: torch.memory_format, device: str) -> None:
    """Moments and their gradients are reduced whole where a batch is small, in parts where it is large."""
    torch.manual_seed(0)
    model = Block().to(device, memory_format=memory_format).train()
    exact = copy.deepcopy(model).double()
    step = compiled(model, fullgraph=True, dynamic=True, options={"fallback": False})
    for batch, edge in ((3, 8), (5, 34), (2, 60), (3, 31)):
        images = torch.randn(batch, 3, edge, edge, device=device).to(memory_format=memory_format)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            losses = step(images), exact(images.double())
            torch.testing.assert_close(losses[0], losses[1].float(), rtol=1e-5, atol=0)
            for loss, module in zip(losses, (model, exact), strict=True):
                module.zero_grad()
                loss.backward()
        for mine, other in zip(model.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad.float(), rtol=1e-4, atol=1e-4)
        for mine, other in zip(model.buffers(), exact.buffers(), strict=True):
            torch.testing.assert_close(mine, other.to(mine.dtype), rtol=1e-5, atol=1e-6)
    for program in compiled_programs()[-2:] if memory_format is torch.channels_last else ():
        launches = [step for step in program["steps"] if step["do"] == "launch"]
        assert any(other["kernel"] is None for launch in launches for other in launch.get("alternatives", ()))
