"""Attention as products and a softmax, drawn from seeds: products, scales, masks, types of the softmax, heads.

Each becomes a call of attention, and that a kernel of ours.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, is_own, widened

BATCH, HEADS, QUERIES, HEAD = 2, 4, 24, 32

SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda q, k: q @ k.mT,
    "transpose": lambda q, k: torch.matmul(q, k.transpose(-2, -1)),
    "permute": lambda q, k: q.matmul(k.permute(0, 1, 3, 2)),
    "einsum": lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k),
    "ellipsis": lambda q, k: torch.einsum("...qd,...kd->...qk", q, k),
}
RESULTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda w, v: w @ v,
    "einsum": lambda w, v: torch.einsum("bhqk,bhkd->bhqd", w, v),
    "heads inside": lambda w, v: torch.einsum("bhqk,bhkd->bqhd", w, v).flatten(2),
    "joined": lambda w, v: torch.matmul(w, v).transpose(1, 2).reshape(BATCH, QUERIES, -1),
}
SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda s: s.softmax(-1),
    "float": lambda s: torch.softmax(s.float(), dim=-1).to(s.dtype),
    "typed": lambda s: F.softmax(s, dim=-1, dtype=torch.promote_types(s.dtype, torch.float32)).type_as(s),
    "dropout": lambda s: F.dropout(F.softmax(s, -1), 0.1, training=False),
}
SHARED: dict[str, Callable[[Tensor], Tensor]] = {
    "each": lambda x: x,
    "repeated": lambda x: x[:, ::2].repeat_interleave(2, 1),
    "expanded": lambda x: x[:, ::2, None].expand(-1, -1, 2, -1, -1).reshape(x.shape),
}


def triangle(s: Tensor) -> Tensor:
    return torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1 + s.shape[-1] - s.shape[-2])


MASKS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "none": lambda s, seen, bias: s,
    "causal": lambda s, seen, bias: s.masked_fill(triangle(s), -math.inf),
    "padding": lambda s, seen, bias: s.masked_fill(~seen, -math.inf),
    "padding by a number": lambda s, seen, bias: s.masked_fill(seen == 0, -1e9),
    "padding by the least number": lambda s, seen, bias: torch.where(seen, s, torch.finfo(s.dtype).min),
    "bias": lambda s, seen, bias: s + bias,
    "added padding": lambda s, seen, bias: s + torch.zeros_like(bias).masked_fill(~seen, torch.finfo(bias.dtype).min),
    "bias and padding": lambda s, seen, bias: (s + bias).masked_fill(~seen, -math.inf),
    "bias, causal": lambda s, seen, bias: (s + bias).masked_fill(triangle(s), -1e9),
}
SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda s: s,
    "divided": lambda s: s / math.sqrt(HEAD),
    "multiplied": lambda s: s * 0.125,
}


@dataclass(frozen=True, slots=True)
class Program:
    """A way to write attention, of the parts with these names."""

    scores: str
    scale: str
    mask: str
    softmax: str
    result: str
    shared: str

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor) -> Tensor:
        share = SHARED[self.shared]
        scores = SCALES[self.scale](SCORES[self.scores](q, share(k)))
        weights = SOFTMAXES[self.softmax](MASKS[self.mask](scores, seen, bias))
        return RESULTS[self.result](weights, share(v))


def drawn(seed: int) -> Program:
    """Returns a program; masks come in turn."""
    pick = random.Random(seed)
    mask = list(MASKS)[seed % len(MASKS)]
    parts = [pick.choice(list(table)) for table in (SCORES, SCALES, SOFTMAXES, RESULTS, SHARED)]
    return Program(parts[0], parts[1], mask, *parts[2:])


pytestmark = pytest.mark.usefixtures("small_on_cpu")


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    "seed", [seed if seed < 9 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(20)]
)
def test_values_and_gradients(seed: int, device: str) -> None:
    program, generator = drawn(seed), torch.Generator().manual_seed(seed)
    keys = QUERIES + 8 * (seed % 2)
    shapes = [(BATCH, HEADS, QUERIES, HEAD), *[(BATCH, HEADS, keys, HEAD)] * 2, (1, HEADS, QUERIES, keys)]
    q, k, v, bias = (torch.randn(shape, generator=generator).to(device, torch.bfloat16) for shape in shapes)
    seen = torch.arange(keys, device=device) < torch.tensor([keys - 3, keys - 9], device=device)[:, None, None, None]

    def results(call: Callable[..., Tensor], inputs: tuple[Tensor, ...], bias: Tensor) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        out = call(*leaves, seen, bias)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(device, out.dtype)
        # Gradients lie as those of attention do: heads side by side.
        return [out.detach(), *(each.contiguous() for each in torch.autograd.grad(out, leaves, grad))]

    mine = results(compiled(program, fullgraph=True, dynamic=False), (q, k, v), bias)
    exact = results(program, tuple(map(widened, (q, k, v))), bias.double())
    assert_all_close(mine, results(program, (q, k, v), bias), exact)
    if is_own():
        programs: list[Any] = ferrite_torch.compiled_programs()[-2:]
        found = [[kernel["form"] for kernel in each["kernels"]].count("attention") for each in programs]
        assert found == [1, 2], program
        assert not any(step["do"] == "extern" for each in programs for step in each["steps"]), program
