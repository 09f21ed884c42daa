"""Rows combined into fewer rows, in the order of their places: what meets in a tile, in part of one, or in several."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, widened

OPTIONS = {
    "fallback": False,
    "verify": True,
    "policy": {"reduce_segments": False, "sort_scatters": True, "sorted_bytes": 0, "sorted_row": 1},
}
PLACES = 5


def added(index: Tensor, x: Tensor) -> Tensor:
    return x.new_ones(PLACES, x.shape[1]).index_add(0, index, x)


def largest(index: Tensor, x: Tensor) -> Tensor:
    return x.new_full((PLACES, x.shape[1]), -100.0).scatter_reduce(0, index[:, None].expand_as(x), x, "amax")


def smallest(index: Tensor, x: Tensor) -> Tensor:
    return x.new_full((PLACES, x.shape[1]), 100.0).scatter_reduce(0, index[:, None].expand_as(x), x, "amin")


def looked_up(index: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(x, index, PLACES, -1, False)


def places(kind: str, count: int) -> Tensor:
    return {
        "few": torch.randint(PLACES, (count,)),
        "one": torch.full((count,), 3),
        "long": torch.arange(count) * (PLACES - 1) // count,
    }[kind]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("kind", "count"), [("few", 128), ("one", 77), ("long", 77)])
@pytest.mark.parametrize("call", [added, largest, smallest, looked_up])
def test_values(call, count: int, kind: str, device: str) -> None:
    torch.manual_seed(0)
    index = places(kind, count).to(device)
    for dtype, width in ((torch.float32, 120), (torch.bfloat16, 128)):
        x = torch.randn(count, width, device=device).to(dtype)
        if call is not looked_up:
            x[count // 2, 1] = torch.nan
        mine = compiled(call, fullgraph=True, dynamic=False, options=OPTIONS)(index, x)
        program = ferrite_torch.compiled_programs()[-1]
        assert "aten.sort.stable" in [step.get("target") for step in program["steps"]]
        assert any("_segments(" in kernel["source"] for kernel in program["kernels"])
        assert_all_close([mine], [call(index, x)], [call(index, widened(x))])
