"""Other ways to differentiate compiled functions: effects beside, batches of gradients, tangents, transforms."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch._vmap_internals import _vmap
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from against_eager import assert_worked, compiled, compiled_or_eager, devices, observed_work, own_only, own_statistics

Function = Callable[..., Tensor]


def smooth(x: Tensor) -> Tensor:
    return (x.sin() * x.exp()).tanh()


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


# --- effects: torch.linalg's checks for errors, ops that are registered as effectful ----------------------------------


@torch.library.custom_op("ferrite_test::noted", mutates_args=())
def noted(x: Tensor) -> Tensor:
    return x.clone()


noted.register_fake(torch.empty_like)
noted.register_autograd(lambda ctx, gradient: gradient)
_register_effectful_op("ferrite_test::noted", _EffectType.ORDERED)


def positive(x: Tensor) -> Tensor:
    return x @ x.mT + 3 * torch.eye(x.shape[-1])


EFFECTS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "inverse": lambda x: (torch.linalg.inv(x), x.sin()),
    "cholesky": lambda x: (torch.linalg.cholesky(positive(x)), x.sin()),
    "cholesky_solve": lambda x: (torch.cholesky_solve(x, torch.linalg.cholesky(positive(x))), x @ x),
    "solve": lambda x: (torch.linalg.solve(x, x.sin()), (x @ x).cos()),
    "lu": lambda x: (torch.linalg.lu_factor(x)[0], x.exp()),
    "eigenvalues": lambda x: (torch.linalg.eigvalsh(positive(x)), x.tanh()),
    "registered op": lambda x: (noted(x).exp(), x.sin()),
    "two of them": lambda x: (noted(torch.linalg.inv(x)).exp(), x.sin(), (x @ x).sin()),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_backward_leaves_everything_as_it_was_beside_an_effect(name: str) -> None:
    x = (torch.randn(4, 4) + 3 * torch.eye(4)).requires_grad_()
    expected = EFFECTS[name](x)
    seeds = [torch.linspace(0.5, 1.5, y.numel()).view_as(y) for y in expected]
    wanted = torch.autograd.grad(expected, x, seeds)
    found = compiled(EFFECTS[name])(x)
    held = [x, *found, *seeds]
    before = [tensor.detach().clone() for tensor in held]
    torch.testing.assert_close(torch.autograd.grad(found, x, seeds), wanted, rtol=1e-4, atol=1e-4)
    assert [torch.equal(now.detach(), was) for now, was in zip(held, before, strict=True)] == [True] * len(held)


def test_backward_leaves_parameters_as_they_were_beside_an_effect() -> None:
    layer = nn.Linear(4, 4)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    step = compiled(lambda x: torch.linalg.cholesky(positive(layer(x))).sum() + layer.weight.sin().sum())
    for _ in range(3):
        step(torch.randn(4, 4)).backward()
    assert torch.equal(layer.weight, weight)
    assert torch.equal(layer.bias, bias)


# --- a batch of gradients at once -------------------------------------------------------------------------------------

BATCHED: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "pointwise": (smooth, ((3, 2),)),
    "logits that are overwritten": (
        lambda x, w: F.cross_entropy(x @ w, torch.tensor([1, 0, 3]), reduction="none"),
        ((3, 4), (4, 40)),
    ),
    "a result that lies by columns": (lambda x: (x @ x).t().exp(), ((4, 4),)),
    "a norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b).relu(), ((3, 6), (6,), (6,))),
    "a convolution": (lambda x, w: F.conv2d(x, w).relu(), ((2, 3, 5, 5), (4, 3, 2, 2))),
    "a result that overlaps itself": (lambda x: x.sum(0).expand(4, 5), ((4, 5),)),
    "a number": (lambda x: x.sin().sum(), ((3,),)),
}


@pytest.mark.parametrize("name", BATCHED)
def test_batched_gradients(name: str) -> None:
    function, shapes = BATCHED[name]
    leaves = [leaf(*shape) for shape in shapes]
    expected = function(*leaves)
    seeds = torch.randn(*expected.shape, 3).movedim(-1, 0)
    wanted = torch.autograd.grad(expected, leaves, seeds, is_grads_batched=True)
    with observed_work() as work:
        result = compiled(function)(*leaves)
        found = torch.autograd.grad(result, leaves, seeds, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    one = torch.autograd.grad(result, leaves, seeds[0])
    torch.testing.assert_close(one, tuple(gradient[0] for gradient in wanted), rtol=1e-4, atol=1e-5)
    assert_worked(work)


def test_batches_of_batches() -> None:
    x, seeds = leaf(4), torch.randn(2, 1, 4)
    result = compiled(smooth)(x)

    def gradient(seed: Tensor) -> Tensor:
        return torch.autograd.grad(result, x, seed, retain_graph=True)[0]

    torch.testing.assert_close(_vmap(_vmap(gradient))(seeds), torch.stack([gradient(row[0])[None] for row in seeds]))


def test_batched_gradients_of_any_size() -> None:
    call = compiled(smooth, dynamic=True)
    for size in (3, 5):
        x, seeds = leaf(size, 2), torch.randn(2, size, 2)
        (found,) = torch.autograd.grad(call(x), x, seeds, is_grads_batched=True)
        torch.testing.assert_close(found, torch.autograd.grad(smooth(x), x, seeds, is_grads_batched=True)[0])


@pytest.mark.parametrize("form", ["reverse-mode", "forward-mode"])
def test_vectorised_jacobian(form: str) -> None:
    x = torch.randn(3, 3)
    found = torch.autograd.functional.jacobian(compiled_or_eager(smooth), x, vectorize=True, strategy=form)
    torch.testing.assert_close(found, torch.autograd.functional.jacobian(smooth, x, vectorize=True))


# --- tangents ---------------------------------------------------------------------------------------------------------


def tangent(function: Function, *inputs: Tensor) -> Tensor | None:
    """Returns the derivative of a function in the direction of ones of its first input."""
    with forward_ad.dual_level():
        first, *rest = inputs
        result = forward_ad.unpack_dual(function(forward_ad.make_dual(first, torch.ones_like(first)), *rest))
        return None if result.tangent is None else result.tangent.clone()


@own_only("it says what our backend does")
def test_a_tangent_is_kept_and_the_graph_says_once_that_it_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    call, x = compiled_or_eager(smooth), torch.randn(3)
    torch.testing.assert_close(call(x), smooth(x))
    with caplog.at_level(logging.WARNING, logger="ferrite_torch"):
        for _ in range(2):
            torch.testing.assert_close(tangent(call, x), tangent(smooth, x))
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("ferrite")]
    assert "test_differentiation.py" in message
    assert "tangent" in message
    assert "torch.func.jvp" in message
    with observed_work() as work:
        torch.testing.assert_close(call(x), smooth(x))
    assert work.graphs == 0, "compiled as before"
    assert any("tangent" in reason for reason in own_statistics()["fallbacks"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["an input that wants a gradient", "a second input", "inside", "a module's parameter"])
def test_tangents_come_in_every_way(name: str) -> None:
    x, w = torch.randn(3), torch.randn(3)
    match name:
        case "an input that wants a gradient":
            x.requires_grad_()
            torch.testing.assert_close(tangent(compiled_or_eager(smooth), x), tangent(smooth, x))
        case "a second input":
            function = compiled_or_eager(lambda x, w: smooth(x * w))
            torch.testing.assert_close(tangent(lambda w: function(x, w), w), tangent(lambda w: smooth(x * w), w))
        case "inside":
            found = compiled_or_eager(lambda x: tangent(smooth, x))(x)
            torch.testing.assert_close(found, tangent(smooth, x))
        case _:
            layer = nn.Linear(3, 2)
            call = compiled_or_eager(lambda x, weight: torch.func.functional_call(layer, {"weight": weight}, (x,)))
            weight = layer.weight.detach()
            wanted = tangent(lambda weight: F.linear(x, weight, layer.bias), weight)
            torch.testing.assert_close(tangent(lambda weight: call(x, weight), weight), wanted)


@own_only("it says what our backend does")
def test_a_backward_refuses_to_lose_a_tangent() -> None:
    x = leaf(3)
    result = compiled(smooth)(x)
    with pytest.raises(Exception, match=r"tangent.*What to do"), forward_ad.dual_level():
        torch.autograd.grad(result, x, forward_ad.make_dual(torch.ones(3), torch.ones(3)))


TRANSFORMED: dict[str, Function] = {
    "jvp": lambda x: jvp(smooth, (x,), (torch.ones_like(x),))[1],
    "grad": grad(lambda x: smooth(x).sum()),
    "vmap": vmap(smooth),
    "vmap of a write": vmap(lambda row: row.clone().mul_(2).add_(row)),
    "jacfwd": jacfwd(smooth),
    "jacrev": jacrev(smooth),
    "hessian": hessian(lambda x: smooth(x).sum()),
    "jvp of grad": lambda x: jvp(grad(lambda x: smooth(x).sum()), (x,), (torch.ones_like(x),))[1],
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_inside_are_compiled(name: str) -> None:
    x = torch.randn(3)
    with observed_work() as work:
        found = compiled(TRANSFORMED[name], fullgraph=True)(x)
    torch.testing.assert_close(found, TRANSFORMED[name](x))
    assert_worked(work)


# --- where a derivative does not exist --------------------------------------------------------------------------------

_ACTIVATION_NAMES = """
    celu elu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu silu softplus
    softshrink softsign tanhshrink
"""
ACTIVATIONS = _ACTIVATION_NAMES.split()
EDGES = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_activations_at_their_edges(name: str, device: str) -> None:
    activation = getattr(F, name)
    x = torch.tensor(EDGES, device=device, requires_grad=True)
    seed = torch.arange(1.0, len(EDGES) + 1, device=device)
    wanted, found = (torch.autograd.grad(function(x), x, seed) for function in (activation, compiled(activation)))
    torch.testing.assert_close(found, wanted, equal_nan=True)
