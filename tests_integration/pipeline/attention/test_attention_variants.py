"""Variants of `flex_attention` that public code uses, forward and backward: those that are measured on GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from against_eager import assert_all_close, compiled, devices, forms, is_own, widened
from benchmarks.kernels.attention_variants import NAMES, Sizes, variants

BATCH, HEADS, HEAD, LENGTH = 2, 8, 32, 100
SAMPLE = ("soft cap in a window", "padded rows", "narrower values", "learned buckets")
"""Those that are no repetition: all others are slow."""


pytestmark = pytest.mark.usefixtures("flex_gradients_on_cpu")


def results(call: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = call(*leaves)
    return [out.detach(), *torch.autograd.grad((out.double() * 3).sin().sum(), leaves)]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_values_and_gradients(name: str, device: str) -> None:
    variant = variants(Sizes(LENGTH, LENGTH, HEADS, BATCH, device, block=32))[name]()
    generator = torch.Generator().manual_seed(0)
    head, key_heads = variant.head or HEAD, HEADS // variant.group
    shapes = [(BATCH, heads, LENGTH, width) for heads, width in ((HEADS, head), (key_heads, head))]
    shapes += [(BATCH, key_heads, LENGTH, variant.width or head), *variant.learned]
    inputs = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    mine = results(compiled(variant.call, fullgraph=True, dynamic=False), inputs)
    assert_all_close(mine, results(variant.call, inputs), results(variant.call, [widened(x) for x in inputs]))
    assert not is_own() or "attention" in forms()
