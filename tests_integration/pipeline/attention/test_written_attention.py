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


def written_to(part: Tensor, o: Tensor) -> Tensor:
    """Returns what products see of a result once something that is made of it was written to."""
    part.add_(1)
    return o @ torch.ones(o.shape[-1], 3, dtype=o.dtype, device=o.device)


READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "an element-wise op": lambda o: o * o.sigmoid(),
    "a view of its result": lambda o: (o * 2).view(o.shape[0], o.shape[1], -1),
    "heads joined with images": lambda o: o.flatten(0, 1),
    "cut elements": lambda o: o.reshape(*o.shape[:3], 8, -1),
    "chunks": lambda o: o.chunk(2, 1)[1] + 1,
    "a place": lambda o: o.mul_(2),
    "zeros like it": torch.zeros_like,
    "joined heads": lambda o: o.transpose(1, 2).reshape(o.shape[0], o.shape[2], -1) + 1,
    "a write to what may be a view": lambda o: written_to(o.reshape(*o.shape[:2], -1), o),
    "a write to what may be a copy": lambda o: written_to(o.transpose(1, 2).flatten(2), o),
    "operands by name": lambda o: torch.transpose(input=o, dim0=1, dim1=2) + 1,
    "a layer whose operands have names": lambda o: F.linear(input=o, weight=o.new_ones(3, o.shape[-1])),
    "a product": lambda o: o.relu() @ o.new_ones(o.shape[-1], 3),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("what", READERS)
def test_what_is_made_of_the_result_lies_as_in_eager_mode(what: str, batch: int, device: str) -> None:
    """Attention lays out its result as heads side by side, a product by rows."""
    torch.manual_seed(0)
    inputs = [torch.randn(batch, 40, 6, 64, device=device).bfloat16().transpose(1, 2) for _ in range(3)]

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return READERS[what](plain(q, k, v))

    mine = compiled(function, fullgraph=True, dynamic=False)(*inputs)
    assert_all_close([mine], [function(*inputs)], [function(*map(widened, inputs))])


def test_operands_that_have_names() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = F.softmax(input=q @ k.mT / 8.0, dim=-1)
        return F.dropout(input=weights, p=0.0) @ v

    inputs = [torch.randn(1, 2, 8, 8) for _ in range(3)]
    mine = compiled(function, fullgraph=True, dynamic=False)(*inputs)
    torch.testing.assert_close(mine, function(*inputs))
