"""What a kernel makes of rows that it holds is stored for readers that take other points, by that kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, gradients, own_only, widened

OPTIONS = {"fallback": False, "verify": True}


def activated(x: Tensor) -> Tensor:
    return F.silu(torch.tanh(x * 2)) * 3


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(activated(x), 1)


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(activated(x).permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)


ROWS = {"softmax": softmax, "log_softmax": lambda x: torch.log_softmax(activated(x), 1), "layer_norm": layer_norm}
READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "overlapping windows": lambda v: F.max_pool2d(v, 3, 2, 1),
    "windows apart": lambda v: F.avg_pool2d(v, 2),
    "larger": lambda v: F.interpolate(v, scale_factor=2, mode="bilinear"),
    "padded": lambda v: F.pad(v, (1, 1, 1, 1)),
    "rolled and its points": lambda v: v.roll(1, 2) - v,
    "the other axes": lambda v: v.mean((2, 3)),
    "along its rows": lambda v: v.amax(1),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("form", ["as it comes", "row-major"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("reader", list(READERS))
@pytest.mark.parametrize("rows", list(ROWS))
def test_values_and_gradients(rows: str, reader: str, layout: torch.memory_format, form: str, device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 24, 9, 9, device=device).to(torch.bfloat16).contiguous(memory_format=layout)

    def function(x: Tensor) -> Tensor:
        result = READERS[reader](ROWS[rows](x))
        return result.contiguous() if form == "row-major" else result

    def run(call: Callable[[Tensor], Tensor], value: Tensor) -> list[Tensor]:
        leaf = value.detach().clone().requires_grad_()
        result = call(leaf)
        return [result.detach(), *gradients([result.float().square()], [leaf])]

    mine, eager = run(compiled(function, fullgraph=True, dynamic=False, options=OPTIONS), x), run(function, x)
    assert_all_close(mine, eager, run(function, widened(x)))
    assert mine[0].stride() == eager[0].stride()


@own_only("looks at its kernels")
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("rows", list(ROWS))
def test_rows_that_windows_read_are_one_kernel(rows: str, device: str) -> None:
    x = torch.randn(4, 64, 17, 17, device=device).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)

    def function(x: Tensor) -> Tensor:
        return F.max_pool2d(ROWS[rows](x), 3, 2, 1).contiguous()

    compiled(function, fullgraph=True, dynamic=False, options={**OPTIONS, "use_cache": False})(x)
    first, second = ferrite_torch.compiled_programs()[-1]["kernels"]
    assert (first["form"], second["form"]) == ("persistent", "pointwise")
