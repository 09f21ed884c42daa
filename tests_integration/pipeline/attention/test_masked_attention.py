"""Small attention with masks that are tensors, in kernels of ours: broadcast, other lengths, shared keys, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attend

import ferrite_torch
from against_eager import assert_all_close, compiled, devices, is_own, own_only, widened

BATCH, HEADS, QUERIES, KEYS, HEAD = 2, 4, 40, 50, 64
OPS = torch.ops.aten


pytestmark = pytest.mark.usefixtures("small_on_cpu")


def drawn(device: str, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, torch.bfloat16)


def heads(device: str, key_heads: int = HEADS, queries: int = QUERIES) -> list[Tensor]:
    """Returns queries, keys and values that lie as the parts of one product do: heads innermost but one."""
    shapes = [(BATCH, queries, HEADS, HEAD), *[(BATCH, KEYS, key_heads, HEAD)] * 2]
    return [drawn(device, *shape, seed=number).transpose(1, 2) for number, shape in enumerate(shapes)]


def seen(device: str, *shape: int) -> Tensor:
    return drawn(device, *shape, seed=3) > -0.5


def without_rows(device: str) -> Tensor:
    """Returns a mask in which some queries see nothing."""
    mask = seen(device, BATCH, HEADS, QUERIES, KEYS)
    mask[0, :, 3] = False
    mask[:, 1, 7:20] = False
    return mask


def added(mask: Tensor, hidden: float) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.bfloat16, device=mask.device).masked_fill(~mask, hidden)


MASKS: dict[str, Callable[[str], Tensor]] = {
    "of all scores": lambda device: seen(device, BATCH, HEADS, QUERIES, KEYS),
    "of keys": lambda device: seen(device, BATCH, 1, 1, KEYS),
    "of heads": lambda device: seen(device, 1, HEADS, QUERIES, KEYS),
    "of two dims": lambda device: seen(device, QUERIES, KEYS),
    "without rows": without_rows,
    "numbers": lambda device: drawn(device, BATCH, HEADS, QUERIES, KEYS, seed=3),
    "numbers of heads": lambda device: drawn(device, 1, HEADS, QUERIES, KEYS, seed=3),
    "infinities": lambda device: added(without_rows(device), -math.inf),
    "least numbers": lambda device: added(seen(device, BATCH, 1, QUERIES, KEYS), torch.finfo(torch.bfloat16).min),
}


def results(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Returns a result and the gradients of what has some."""
    leaves = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    result = function(*leaves)
    result.backward(drawn(result.device.type, *result.shape, seed=7).to(result.dtype))
    return [result.detach(), *(x.grad for x in leaves if x.grad is not None)]


def extern_calls() -> list[str]:
    programs = ferrite_torch.compiled_programs()[-2:]
    return [step["target"] for program in programs for step in program["steps"] if step["do"] == "extern"]


def check(function: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    mine, eager = results(compiled(function, fullgraph=True), inputs), results(function, inputs)
    assert_all_close(mine, eager, results(function, [widened(x) for x in inputs]))
    assert not is_own() or not extern_calls()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("what", MASKS)
def test_masks(what: str, device: str) -> None:
    mask = MASKS[what](device)
    wide = mask if mask.dtype is torch.bool else mask.double()

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, attn_mask=mask if q.dtype is not torch.float64 else wide)

    check(function, heads(device))


@pytest.mark.parametrize("device", devices())
def test_queries_that_see_nothing_give_what_eager_mode_gives(device: str) -> None:
    """Nothing; but torch hands cuDNN a finite number for what is hidden, with which they see all keys alike."""
    mask, inputs = without_rows(device), heads(device)
    found, eager = compiled(attend, fullgraph=True)(*inputs, attn_mask=mask), attend(*inputs, attn_mask=mask)
    hidden = ~mask.any(-1)
    assert hidden.any()
    assert device == "cuda" or not found[hidden].any()
    torch.testing.assert_close(found[hidden], eager[hidden], rtol=2e-2, atol=4e-3)


@pytest.mark.parametrize("device", devices())
def test_queries_whose_keys_are_all_hidden_by_a_number_see_all_alike(device: str) -> None:
    """The least number times a constant would be infinite."""
    mask = added(without_rows(device), torch.finfo(torch.bfloat16).min)
    inputs = heads(device)
    found = compiled(attend, fullgraph=True)(*inputs, attn_mask=mask)
    assert_all_close(
        [found], [attend(*inputs, attn_mask=mask)], [attend(*map(widened, inputs), attn_mask=mask.double())]
    )


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("queries", [QUERIES, 60])
def test_causal_attention_of_other_lengths(queries: int, device: str) -> None:
    check(partial(attend, is_causal=True), heads(device, queries=queries))


@pytest.mark.parametrize("device", devices())
def test_heads_of_queries_share_keys(device: str) -> None:
    mask = MASKS["without rows"](device)
    check(partial(attend, attn_mask=mask, enable_gqa=True, scale=0.3), heads(device, key_heads=2))


# --- ops of GPUs, whose kernels here are ours -------------------------------------------------------------------------


def efficient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """Returns what autograd makes of attention with numbers added: its result, and the gradients of all operands."""
    every = bias.expand(*q.shape[:3], KEYS)
    out, power, seed, offset = OPS._scaled_dot_product_efficient_attention(q, k, v, every, True, 0.0, False, scale=0.2)
    given = (q, k, v, every, out, power, seed, offset, 0.0, [True] * 4, False)
    found = OPS._scaled_dot_product_efficient_attention_backward(grad, *given, scale=0.2)
    return out, *found[:3], found[3].sum(0, keepdim=True)


def cudnn(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    every = bias.expand(*q.shape[:3], KEYS)
    out, power, *rest = OPS._scaled_dot_product_cudnn_attention(q, k, v, every, True, 0.0, False, scale=0.2)
    *lengths, seed, offset, _ = rest
    given = (q, k, v, out, power, seed, offset, every, *lengths, 0.0, False)
    return out, *OPS._scaled_dot_product_cudnn_attention_backward(grad, *given, scale=0.2)


@own_only("looks at its kernels")
@pytest.mark.parametrize("function", [efficient, cudnn])
def test_gradients_of_what_is_added(function: Callable[..., tuple[Tensor, ...]]) -> None:
    """There are logarithms of sums for more queries than there are, and a gradient of each number added."""
    inputs = [*heads("cpu"), drawn("cpu", 1, HEADS, QUERIES, KEYS, seed=3)]
    grad = drawn("cpu", BATCH, HEADS, QUERIES, HEAD, seed=7)
    mine = compiled(function, fullgraph=True)(*inputs, grad)

    def expected(inputs: list[Tensor]) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        scores = leaves[0] @ leaves[1].mT * 0.2 + leaves[3]
        out = scores.softmax(-1) @ leaves[2]
        return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(out.dtype))][: len(mine)]

    for found, eager, exact in zip(mine, expected(inputs), expected([x.double() for x in inputs]), strict=True):
        assert (found - exact).norm() <= 2 * (eager - exact).norm()
    assert not extern_calls()


@own_only("looks at its steps")
def test_causal_attention_that_begins_with_the_last_keys_is_the_librarys() -> None:
    """Asked by its own name, one of torch's ops takes queries for the last ones."""
    function: Any = lambda q, k, v: OPS._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]  # noqa: E731
    with pytest.raises(NotImplementedError, match="flash_attention"):
        compiled(function, fullgraph=True)(*heads("cpu"))
