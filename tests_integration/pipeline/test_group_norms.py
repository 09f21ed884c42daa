"""Group norms of images in both layouts: a channels-last one reads few neighbours of a group at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, gradients, widened

OPTIONS = {"fallback": False, "verify": True, "policy": {"small_kernel_bytes": 1 << 10}}


def normalise(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 8, w, b))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
def test_values_and_gradients(layout: torch.memory_format, dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape, device=device).to(dtype) for shape in ((2, 40, 12, 9), (40,), (40,)))

    def run(call, values: tuple[Tensor, ...]) -> list[Tensor]:
        image, *rest = (value.detach().clone() for value in values)
        leaves = [image.contiguous(memory_format=layout).requires_grad_(), *(value.requires_grad_() for value in rest)]
        result = call(*leaves)
        return [result.detach(), *gradients([result], leaves)]

    mine = run(compiled(normalise, fullgraph=True, dynamic=False, options=OPTIONS), inputs)
    assert_all_close(mine, run(normalise, inputs), run(normalise, tuple(map(widened, inputs))))
