"""Attention as products and a softmax, forward and backward, by the kernels that serve it on each device."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, gradients, widened
from ferrite_torch import compiled_programs


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT * 0.125).masked_fill(hidden, -math.inf)
    return F.dropout(scores.softmax(-1), 0.1, training=False) @ v


def banded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(q.shape[-2], device=q.device)
    seen = (place[:, None] - place).abs() < 5
    return torch.where(seen, q @ k.mT, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("attend", [plain, causal, banded])
def test_values_and_gradients(attend: Callable[..., Tensor], dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    inputs = tuple(torch.randn(2, 2, 48, 64, device=device).to(dtype) / 2 for _ in range(3))

    def run(call: Callable[..., Tensor], values: tuple[Tensor, ...]) -> list[Tensor]:
        leaves = [value.detach().clone().requires_grad_() for value in values]
        result = call(*leaves)
        # Gradients lie as those of attention do: heads side by side.
        return [result.detach(), *(gradient.contiguous() for gradient in gradients([result], leaves))]

    mine = run(compiled(attend, fullgraph=True, dynamic=False), inputs)
    programs = compiled_programs()[-2:]
    targets = [step.get("target", "") for program in programs for step in program["steps"]]
    forms = [kernel["form"] for program in programs for kernel in program["kernels"]]
    assert any("scaled_dot_product" in target for target in targets) or "attention" in forms
    assert_all_close(mine, run(attend, inputs), run(attend, tuple(map(widened, inputs))))
