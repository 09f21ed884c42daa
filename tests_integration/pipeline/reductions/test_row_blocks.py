"""Statistics of rows and of blocks of what is made of them, in one kernel: norms with a scale for some columns each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, own_only, widened

OPTIONS = {"fallback": False, "verify": True}


def norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def scaled_blocks(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    blocks = norm(x, w).unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True) / 448
    return (blocks / scale).clamp(-448, 448).flatten(-2), scale.squeeze(-1)


def normed_blocks(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Returns a layer norm, and a layer norm of each block of it."""
    rows = F.layer_norm(x, x.shape[-1:], w)
    blocks = rows.unflatten(-1, (-1, 32))
    return rows, F.layer_norm(blocks, (32,))


def block_sums(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Returns sums of blocks, and what a row adds up to when each of them is divided by its own."""
    blocks = (x * w).exp().unflatten(-1, (-1, 32))
    sums = blocks.sum(-1)
    return sums, (blocks / sums.unsqueeze(-1)).flatten(-2).mul(w).sum(-1), x.sum(-1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "scaled blocks": scaled_blocks,
    "normed blocks": normed_blocks,
    "block sums": block_sums,
}


def given(rows: int, columns: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, columns, device=device).to(dtype), torch.rand(columns, device=device).to(dtype) + 0.5


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(7, 128), (7, 160), (1, 160)], ids=["whole", "past the end", "one row"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, rows: int, columns: int, dtype: torch.dtype, device: str) -> None:
    function, inputs = FUNCTIONS[name], given(rows, columns, dtype, device)
    mine = compiled(function, fullgraph=True, dynamic=False, options=OPTIONS)(*inputs)
    assert_all_close(list(mine), list(function(*inputs)), list(function(*map(widened, inputs))))


@own_only("looks at its kernels")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_kernel_holds_the_row(name: str) -> None:
    from ferrite_torch import compiled_programs

    compiled(FUNCTIONS[name], fullgraph=True, dynamic=False, options=OPTIONS)(*given(7, 160, torch.float32, "cpu"))
    (kernel,) = compiled_programs()[-1]["kernels"]
    assert [axis["name"] for axis in kernel["axes"]] == ["x", "b", "r"]
    assert kernel["blocks"] == {"BBLOCK": 8, "RBLOCK": 32}


@own_only("looks at its kernels")
def test_it_compiles_without_a_gpu() -> None:
    from ferrite_runtime import KernelSpec
    from ferrite_runtime.compilation.triton_adapter import Job, compile_job
    from ferrite_runtime.devices.descriptors import known_devices
    from ferrite_runtime.policies.candidates import configs
    from ferrite_torch import compiled_programs

    compiled(scaled_blocks, fullgraph=True, dynamic=False, options=OPTIONS)(*given(7, 160, torch.bfloat16, "cpu"))
    (kernel,) = (KernelSpec.from_mapping(kernel) for kernel in compiled_programs()[-1]["kernels"])
    device = known_devices()["h200"]
    for config in configs(kernel, device):
        assert compile_job(Job(kernel, config, device.target)).local_bytes == 0, "no spills"


@pytest.mark.parametrize("device", devices())
def test_blocks_of_rows_whose_elements_lie_apart(device: str) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        norms = x.abs().add(0.5).norm(dim=0, keepdim=True)
        halves = norms.view(torch.int16)
        place = torch.full((3,), 31, device=x.device)
        added = halves.put(place, torch.ones_like(place, dtype=halves.dtype), accumulate=True)
        return added.float().double() - added.double() == 0, (y @ y.mT) * 0.125, norms

    torch.manual_seed(0)
    x = torch.randn(400).to(device).as_strided((8, 1, 16), (3, 1, 24))
    y = torch.randn(400).bfloat16().to(device).as_strided((16, 1, 16), (18, 1, 1))
    torch.testing.assert_close(compiled(function)(x, y), function(x, y))
