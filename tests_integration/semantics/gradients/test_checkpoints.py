"""Activation checkpoints with random numbers: both directions compiled, one mask, nothing large kept."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from against_eager import assert_worked, compiled, compiled_or_eager, observed_work, own_only, own_statistics
from ferrite_torch import compiled_programs, pipeline
from ferrite_torch.errors import Unsupported

ROWS, WIDTH = 64, 32

BLOCKS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x.sin(), 0.5),
    "dropout of rows": lambda x: F.dropout1d(x.sin()[None], 0.5)[0],
    "bernoulli": lambda x: x.sin() * torch.bernoulli(torch.full_like(x, 0.4)),
    "uniform": lambda x: x.sin() * torch.rand_like(x),
    "normal": lambda x: x.sin() * torch.randn(x.shape),
    "integers": lambda x: x.sin() * torch.randint(1, 9, x.shape),
    "alpha dropout": lambda x: F.alpha_dropout(x.sin(), 0.3, training=True),
    "slopes": lambda x: F.rrelu(x.sin(), training=True),
    "two masks": lambda x: F.dropout(F.dropout(x.sin(), 0.5).exp(), 0.5),
}


def gradient_of_sum(result: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(result.sum(), x)[0]


@pytest.mark.parametrize("name", BLOCKS)
def test_what_is_drawn_again_is_the_same(name: str) -> None:
    """The result is the sine times what was drawn, so the gradient is the cosine times that."""
    block, x = BLOCKS[name], torch.rand(ROWS, WIDTH, requires_grad=True)
    with observed_work() as work:
        result = compiled(lambda x: checkpoint(block, x, use_reentrant=False))(x)
        torch.manual_seed(5)  # what is drawn in between changes nothing
        torch.rand(3)
        found = gradient_of_sum(result, x)
    assert_worked(work, 2)
    assert work.graphs == 2
    match name:
        case "two masks":  # the exponential of what the first one drops is 1, and doubled if the second one keeps it
            assert torch.equal(found == 0, (result == 0) | (result == 2))
        case "alpha dropout":  # what it drops has one value, the least
            assert torch.equal(found == 0, result == result.min())
        case _:
            wanted = result.detach() * x.detach().cos()
            torch.testing.assert_close(found * x.detach().sin(), wanted, rtol=1e-4, atol=1e-5)


@own_only("it counts products of our programs")
@pytest.mark.parametrize("options", [{}, {"fallback_random": True}], ids=["kernels draw", "torch draws"])
def test_a_policy_that_saves_products_draws_the_rest_again(options: dict[str, bool]) -> None:
    """What is dropped has no gradient; products are computed once."""
    saved_ops = [torch.ops.aten.mm.default]
    layer = nn.Linear(WIDTH, WIDTH)

    def block(x: Tensor, weight: Tensor) -> Tensor:
        return F.dropout((F.dropout(x.sin(), 0.5) @ weight).exp(), 0.5)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        context = functools.partial(create_selective_checkpoint_contexts, saved_ops)
        return checkpoint(block, x, weight, use_reentrant=False, context_fn=context)

    x = torch.rand(ROWS, WIDTH, requires_grad=True)
    weight = layer.weight.detach().requires_grad_()
    result = compiled(function, options={"fallback": False, **options})(x, weight)
    masked = (result != 0).detach()
    torch.manual_seed(5)
    gradients = torch.autograd.grad(result.sum(), (x, weight))
    # The gradient of the exponential is the result itself, so that those of the product's operands follow from both.
    through = gradients[0] / (result.detach() @ weight.detach().T) / x.detach().cos()
    kept = through != 0
    torch.testing.assert_close(through[kept], torch.full_like(through[kept], 2.0), rtol=1e-3, atol=1e-3)
    assert 0.4 < kept.float().mean() < 0.6
    dropped = x.detach().sin() * kept * 2
    torch.testing.assert_close(gradients[1], dropped.T @ result.detach(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(result.detach(), (dropped @ weight.detach()).exp() * 2 * masked, rtol=1e-3, atol=1e-3)
    products = [sum("mm" in str(step.get("target")) for step in each["steps"]) for each in compiled_programs()]
    assert products == [1, 2], "none is computed again"


def test_two_checkpoints_draw_apart() -> None:
    def function(x: Tensor) -> Tensor:
        masks = [checkpoint(lambda x: F.dropout(x.exp(), 0.5), x, use_reentrant=False) for _ in range(2)]
        return torch.stack(masks)

    x = torch.zeros(256, requires_grad=True)
    first, second = compiled(function)(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first, compiled(function)(x)[0]), "and every call draws anew"
    torch.manual_seed(3)
    again = compiled(function)(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(function)(x), again)


def test_only_inputs_and_seeds_are_saved() -> None:
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.25), nn.Linear(WIDTH, WIDTH))

    def function(x: Tensor) -> Tensor:
        for _ in range(2):
            x = checkpoint(block, x, use_reentrant=False)
        return x

    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (saved.append(tensor), tensor)[1], lambda tensor: tensor
    ):
        compiled(function)(x).sum().backward()
    parameters = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    others = [tensor for tensor in saved if tensor.untyped_storage().data_ptr() not in parameters]
    assert sum(tensor.nbytes for tensor in others) <= 2 * x.nbytes + 64, [tuple(tensor.shape) for tensor in others]


@pytest.mark.parametrize("dropped", [0.0, 0.5])
def test_attention_inside(dropped: float) -> None:
    def block(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=dropped) + F.dropout(x, 0.5)

    x = torch.randn(2, 2, 8, 16, requires_grad=True)
    with observed_work() as work:
        found = gradient_of_sum(compiled(lambda x: checkpoint(block, x, use_reentrant=False))(x), x)
    assert found.isfinite().all()
    assert work.graphs == 2


@own_only("torch's partitioner keeps the generator's state")
def test_attention_without_dropout_is_computed_again() -> None:
    def block(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x).sin()

    x, saved = torch.randn(2, 2, 8, 16, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (saved.append(tensor.nbytes), tensor)[1], lambda tensor: tensor
    ):
        result = compiled(lambda x: checkpoint(block, x, use_reentrant=False))(x)
    expected = block(x)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(gradient_of_sum(result, x), gradient_of_sum(expected, x))
    assert sum(saved) <= x.nbytes + 64, saved


@own_only("it makes our backend refuse")
@pytest.mark.parametrize("refused", ["forward", "backward"])
def test_a_direction_that_runs_eagerly_draws_the_same(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pipeline.compile_graph

    def compile_graph(module: torch.fx.GraphModule, kind: str, *rest: object, **named: object) -> object:
        if kind == refused:
            raise Unsupported(f"the {kind} for this test")
        return theirs(module, kind, *rest, **named)

    monkeypatch.setattr(pipeline, "compile_graph", compile_graph)
    x = torch.zeros(256, requires_grad=True)
    result = compiled_or_eager(lambda x: checkpoint(lambda x: F.dropout(x.exp(), 0.5), x, use_reentrant=False))(x)
    found = gradient_of_sum(result, x)
    assert torch.equal(result, found)
    assert 0 < (found == 0).sum() < 256
    assert any(f"the {refused} for this test" in reason for reason in own_statistics()["fallbacks"])
