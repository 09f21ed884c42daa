"""Gradients along rows and down columns from one kernel: its programs take rows one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, gradients, own_only, widened

# Rows that divide into chunks for the processors of an H200, and some that do not.
OPTIONS = {"fallback": False, "verify": True, "policy": {"chunk_minimum": 1 << 14}}


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def rms_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    v = x if x.dtype == torch.float64 else x.float()
    return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w + b


def biased_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x * w + b)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "layer norm": layer_norm,
    "rms norm": rms_norm,
    "biased gelu": biased_gelu,
}


def outcome(call: Callable[..., Any], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    result = call(*leaves)
    return [result.detach(), *gradients([result], leaves)]


def given(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    columns = shape[-1]
    shapes = (shape, (columns,), (columns,))
    return tuple(torch.randn(size, device=device).to(dtype) for size in shapes)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(400, 256), (4, 200, 300), (401, 256)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    function, inputs = FUNCTIONS[name], given(shape, dtype, device)
    mine = outcome(compiled(function, fullgraph=True, dynamic=False, options=OPTIONS), inputs)
    wide = tuple(map(widened, inputs))
    assert_all_close(mine, outcome(function, inputs), outcome(function, wide))


@own_only("looks at its kernels")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_kernel_reads_the_rows(name: str) -> None:
    from ferrite_torch import compiled_programs

    inputs = given((400, 512), torch.float32, "cpu")
    outcome(compiled(FUNCTIONS[name], fullgraph=True, dynamic=False, options=OPTIONS), inputs)
    backward = compiled_programs()[-1]
    chunked = [kernel for kernel in backward["kernels"] if "chunk" in kernel["facts"]]
    assert [kernel["facts"]["chunk"] for kernel in chunked] == [2]
    assert chunked[0]["grid"] == 200


class Rows(torch.nn.Module):
    """A function with its vectors as parameters: their lengths are static whatever the rows are."""

    def __init__(self, name: str, columns: int, device: str) -> None:
        super().__init__()
        self.name = name
        self.w = torch.nn.Parameter(torch.linspace(0.5, 1.5, columns, device=device))
        self.b = torch.nn.Parameter(torch.linspace(-1, 1, columns, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return FUNCTIONS[self.name](x, self.w.to(x.dtype), self.b.to(x.dtype))


def run_of_rows(module: Callable[..., Tensor], x: Tensor, parameters: list[torch.nn.Parameter]) -> list[Tensor]:
    leaf = x.detach().clone().requires_grad_()
    result = module(leaf)
    return [result.detach(), *gradients([result], [leaf, *parameters])]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_number_of_rows(name: str, device: str) -> None:
    from ferrite_torch import compiled_programs

    torch.manual_seed(0)
    module = Rows(name, 300, device)
    parameters = list(module.parameters())
    apart = {**OPTIONS["policy"], "mixed_combos": False}  # their grids are to be seen
    options = {**OPTIONS, "policy": apart, "target": {"processors": 16}}  # so that a few rows are many
    call = compiled(module, fullgraph=True, dynamic=True, options=options)
    for rows in (24, 2, 3, 15, 31, 32, 33, 65):
        x = torch.randn(2, rows, 300, device=device)
        torch._dynamo.mark_static(x, 0)
        torch._dynamo.mark_static(x, 2)
        mine = run_of_rows(call, x, parameters)
        wide = Rows(name, 300, device).double()
        exact = run_of_rows(wide, x.double(), list(wide.parameters()))
        assert_all_close(mine, run_of_rows(module, x, parameters), exact)
    backward = compiled_programs()[-1]
    assert [kernel["grid"] for kernel in backward["kernels"] if "chunk" in kernel["facts"]] == [32, 32]
