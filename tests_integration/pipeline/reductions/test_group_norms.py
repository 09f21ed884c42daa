"""Group norms of images in both layouts: a channels-last one reads few neighbours of a group at a time."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, gradients, own_only, widened

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


@own_only("looks at its kernels")
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("images", "size", "points"), [(1, 8, 4), (2, 8, 4), (3, 16, 4), (2, 6, 9)])
def test_parts_of_images_and_channels_of_groups_are_reduced_at_once(
    images: int, size: int, points: int, device: str
) -> None:
    torch.manual_seed(0)
    shapes = ((images, 40, size, size), (40,), (40,))
    x, w, b = (torch.randn(shape, device=device) for shape in shapes)
    # Means far from zero, and from each other.
    x = (x + 100 * torch.arange(40, device=device).view(-1, 1, 1)).to(memory_format=torch.channels_last)
    policy = {"small_kernel_bytes": 1 << 10, "split_minimum": 8, "split_chunk": 4, "register_norms": False}
    options = {**OPTIONS, "use_cache": False, "policy": policy, "target": {"launch_seconds": 0.0}}
    mine = compiled(normalise, fullgraph=True, dynamic=False, options=options)(x, w, b)
    assert_all_close([mine], [normalise(x, w, b)], [normalise(*map(widened, (x, w, b)))])
    _, middle, _ = ferrite_torch.compiled_programs()[-1]["kernels"]
    reduced = [axis["size"] for axis in middle["axes"] if axis["name"] in ("b", "r")]
    assert math.prod(reduced) == 5 * size * size // points
    # What channels make of the moments is in the same kernel, where it is computed before it is used. A GPU's results
    # are contiguous: rows of the last kernel are then the channels of one image, and it computes that once for each.
    is_in_order = images == 1 and not mine.is_contiguous(memory_format=torch.channels_last)
    assert len(reduced) == (1 if size <= 6 or is_in_order else 2)
