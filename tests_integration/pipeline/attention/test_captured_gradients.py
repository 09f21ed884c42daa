"""Gradients of tensors that a score modification of `flex_attention` has captured: what all scores add at places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from against_eager import assert_all_close, compiled, devices, forms, is_own, own_only, widened
from attention_cases import causal

BATCH, HEADS, LENGTH, HEAD = 2, 4, 70, 32


pytestmark = pytest.mark.usefixtures("flex_gradients_on_cpu")


SCORES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Any]]] = {
    "bias of each score": ((BATCH, HEADS, LENGTH, LENGTH), lambda t: lambda s, b, h, i, j: s + t[b, h, i, j]),
    "bias of heads": ((HEADS, LENGTH, LENGTH), lambda t: lambda s, b, h, i, j: s + t[h, i, j]),
    "by distance": ((HEADS, 2 * LENGTH), lambda t: lambda s, b, h, i, j: s + t[h, i - j + LENGTH]),
    "from the end": ((LENGTH,), lambda t: lambda s, b, h, i, j: s + t[i - j]),
    "temperature": ((HEADS,), lambda t: lambda s, b, h, i, j: s * t[h]),
    "soft cap": ((HEADS,), lambda t: lambda s, b, h, i, j: t[h] * torch.tanh(s / t[h])),
    "read twice": ((2 * LENGTH,), lambda t: lambda s, b, h, i, j: s + t[i] * t[j + LENGTH]),
    "one of three": ((3,), lambda t: lambda s, b, h, i, j: s * t[1]),
    "hidden scores": (
        (HEADS,),
        lambda t: lambda s, b, h, i, j: torch.where(i >= j, s + t[h] * (i - j), -float("inf")),
    ),
}


def given(device: str, dtype: torch.dtype, *shape: int, key_heads: int = HEADS, batch: int = BATCH) -> list[Tensor]:
    """Returns queries, keys, values, and what is captured."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, HEADS, LENGTH, HEAD), *[(batch, key_heads, LENGTH, HEAD)] * 2, shape]
    return [torch.randn(each, generator=generator).to(device, dtype) for each in shapes]


def results(attend: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad((out.double() * 3).sin().sum(), leaves)]


def check(attend: Callable[..., Tensor], inputs: list[Tensor], **options: Any) -> None:
    mine = results(compiled(attend, fullgraph=True, **{"dynamic": False, **options}), inputs)
    assert_all_close(mine, results(attend, inputs), results(attend, [widened(x) for x in inputs]))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("what", SCORES)
def test_gradients(what: str, dtype: torch.dtype, device: str) -> None:
    shape, score = SCORES[what]
    check(lambda q, k, v, t: flex_attention(q, k, v, score(t)), given(device, dtype, *shape))
    assert not is_own() or "attention" in forms()


@pytest.mark.parametrize("device", devices())
def test_scores_on_their_way_through_memory_keep_their_digits(device: str) -> None:
    """With products stored as halves these gradients erred 3.2 times as much as torch's unfused ones; now 1.2."""
    length, head = 256, 64
    generator = torch.Generator().manual_seed(0)
    shapes = [*[(2, 2, length, head)] * 3, (2, length, length)]
    inputs = [torch.randn(each, generator=generator).to(device, torch.bfloat16) for each in shapes]
    attend: Callable[..., Tensor] = lambda q, k, v, t: flex_attention(q, k, v, SCORES["bias of heads"][1](t))  # noqa: E731
    exact = results(attend, [widened(x) for x in inputs])[-1]
    found = (results(call, inputs)[-1] for call in (compiled(attend, fullgraph=True, dynamic=False), attend))
    mine, theirs = ((each.double() - exact).abs().max() for each in found)
    assert mine <= 2 * theirs


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_where_heads_share_keys(dtype: torch.dtype, batch: int, device: str) -> None:
    mask = create_block_mask(causal, BATCH, None, LENGTH, LENGTH, device, BLOCK_SIZE=32)
    shape, score = SCORES["by distance"]
    check(
        lambda q, k, v, t: flex_attention(q, k, v, score(t), mask, enable_gqa=True),
        given(device, dtype, *shape, key_heads=2, batch=batch),
    )
    assert not is_own() or "attention" in forms()


@pytest.mark.parametrize("device", devices())
def test_gradients_at_symbolic_lengths(device: str) -> None:
    shape, score = SCORES["temperature"]
    fast = compiled(lambda q, k, v, t: flex_attention(q, k, v, score(t)), fullgraph=True, dynamic=True)
    for length in (70, 50, 90):
        inputs = [x[:, :, :length] if x.ndim == 4 else x for x in given(device, torch.float32, *shape)]
        inputs = [torch.cat((x, x), 2)[:, :, :length] if x.ndim == 4 else x for x in inputs]
        eager: Callable[..., Tensor] = lambda q, k, v, t: flex_attention(q, k, v, score(t))  # noqa: E731
        assert_all_close(results(fast, inputs), results(eager, inputs), results(eager, [widened(x) for x in inputs]))


@own_only("looks at its kernels")
def test_only_what_is_asked_for_is_computed() -> None:
    """A captured tensor that needs no gradient beside one that does."""
    fixed = torch.linspace(-1, 1, HEADS)
    shape, _ = SCORES["temperature"]
    check(
        lambda q, k, v, t: flex_attention(q, k, v, lambda s, b, h, i, j: s * t[h] + fixed[h] * j),
        given("cpu", torch.float32, *shape),
    )
    assert "attention" in forms()


@own_only("looks at its kernels")
def test_additions_without_an_order_are_torchs_where_that_matters() -> None:
    shape, score = SCORES["by distance"]
    torch.use_deterministic_algorithms(True)
    try:
        check(lambda q, k, v, t: flex_attention(q, k, v, score(t)), given("cpu", torch.float32, *shape))
    finally:
        torch.use_deterministic_algorithms(False)
    assert "attention" not in forms()
