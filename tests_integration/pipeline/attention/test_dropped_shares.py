"""Small attention with dropout, in kernels of ours: shares are dropped once they are normalised, and alike backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import ferrite_torch
from against_eager import compiled, devices, own_only

pytestmark = [pytest.mark.usefixtures("small_on_cpu"), own_only("it looks at what our kernels drop")]

BATCH, HEADS, QUERIES, KEYS = 2, 3, 20, 32
LENGTHS = (KEYS, 128)
"""Numbers of keys: random numbers are drawn one by one along the first, four at once along the second."""
SCALE = 0.2
OPS = torch.ops.aten
Op = Callable[..., tuple[Tensor, ...]]


def flash(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, p: float) -> tuple[Tensor, ...]:
    """Returns what autograd makes of torch's op: its result, and the gradients of its operands."""
    op, back = OPS._scaled_dot_product_flash_attention, OPS._scaled_dot_product_flash_attention_backward
    out, power, *lengths, seed, offset, _ = op(q, k, v, p, scale=SCALE)
    return out, *back(grad, q, k, v, out, power, *lengths, p, False, seed, offset, scale=SCALE)


def cudnn(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, p: float) -> tuple[Tensor, ...]:
    op, back = OPS._scaled_dot_product_cudnn_attention, OPS._scaled_dot_product_cudnn_attention_backward
    bias = q.new_zeros(1, 1, 1, 1).expand(BATCH, HEADS, QUERIES, k.shape[-2])
    out, power, *lengths, seed, offset, _ = op(q, k, v, bias, True, p, scale=SCALE)
    rest = (seed, offset, bias, *lengths)
    return out, *back(grad, q, k, v, out, power, *rest, p, False, scale=SCALE)


def operands(keys: int = KEYS) -> list[Tensor]:
    """Returns queries, keys, values that show shares as they are (one element for each key), and a gradient."""
    generator = torch.Generator().manual_seed(2)
    sizes = [(BATCH, HEADS, QUERIES, keys), (BATCH, HEADS, keys, keys), (BATCH, HEADS, QUERIES, keys)]
    q, k, grad = (torch.randn(size, generator=generator).bfloat16() for size in sizes)
    return [q, k, torch.eye(keys).expand(BATCH, HEADS, keys, keys).bfloat16().contiguous(), grad]


def expected(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scale: Tensor) -> list[Tensor]:
    """Returns the result and gradients, in f64, where shares are multiplied by a scale."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    shares = (leaves[0] @ leaves[1].mT * SCALE).softmax(-1) * scale
    out = shares @ leaves[2]
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


@pytest.mark.parametrize("p", [0.25, 0.6])
@pytest.mark.parametrize("keys", LENGTHS)
@pytest.mark.parametrize("function", [flash, cudnn])
def test_a_backward_drops_what_its_forward_dropped(function: Op, keys: int, p: float) -> None:
    given = operands(keys)
    ferrite_torch.reset_statistics()
    found = compiled(function, fullgraph=True)(*given, p)
    assert not any("attention" in name for name in ferrite_torch.statistics()["externs"])
    kept = found[0] != 0
    assert abs(kept.double().mean() - (1 - p)) < 0.04
    for mine, theirs in zip(found, expected(*given, kept / (1 - p)), strict=True):
        assert (mine.double() - theirs).abs().max() < 0.02 * theirs.abs().max()


@pytest.mark.parametrize("keys", LENGTHS)
@pytest.mark.parametrize("device", devices())
def test_training_by_the_function_that_models_call(device: str, keys: int) -> None:
    q, k, v, grad = (each.to(device) for each in operands(keys))
    call = compiled(lambda q, k, v: scaled_dot_product_attention(q, k, v, dropout_p=0.3, scale=SCALE), fullgraph=True)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = call(*leaves)
    found = [out.detach(), *torch.autograd.grad(out, leaves, grad)]
    if device == "cuda":
        assert not any("attention" in name for name in ferrite_torch.statistics()["externs"])
    for mine, theirs in zip(found, expected(q, k, v, grad, (out.detach() != 0) / 0.7), strict=True):
        assert (mine.double() - theirs).abs().max() < 0.02 * theirs.abs().max()


@pytest.mark.parametrize("function", [flash, cudnn])
def test_all_shares_dropped(function: Op) -> None:
    found = compiled(function, fullgraph=True)(*operands(), 1.0)
    assert not any(each.any() for each in found)


def test_shares_are_those_of_the_seed() -> None:
    call = compiled(flash, fullgraph=True)
    given = operands()
    torch.manual_seed(5)
    first, other = call(*given, 0.5)[0], call(*given, 0.5)[0]
    torch.manual_seed(5)
    assert torch.equal(call(*given, 0.5)[0], first)
    assert not torch.equal(first != 0, other != 0)
    assert not torch.equal(first[0, 0] != 0, first[0, 1] != 0)


def test_numbers_that_torch_is_to_draw_are_left_to_the_library() -> None:
    call = torch.compile(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, dropout_p=0.5),
        backend="ferrite",
        options={"fallback": False, "fallback_random": True},
    )
    q, k, v, _ = operands()
    torch.manual_seed(1)
    mine = call(q, k, v)
    torch.manual_seed(1)
    eager = scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert torch.equal(mine != 0, eager != 0)
