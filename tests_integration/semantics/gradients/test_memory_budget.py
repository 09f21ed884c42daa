"""``options={"activation_memory_budget": …}``: a forward saves less, and its backward computes again what it lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ferrite_torch
from against_eager import own_only

pytestmark = own_only("it has an option of ours")


def layers() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16), nn.LayerNorm(16)) for _ in range(4)]
    return nn.Sequential(*blocks)


def saved_bytes(call: Any, x: Tensor, weights: set[int]) -> tuple[int, Tensor]:
    """Returns the bytes that a forward saves beside weights and inputs, and its result."""
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = call(x)
    return sum(found.values()), result


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_less_is_saved_and_gradients_are_the_same(*, is_dynamic: bool) -> None:
    model, x = layers(), torch.randn(64, 16, requires_grad=True)
    held = {each.untyped_storage().data_ptr() for each in (x, *model.parameters())}
    expected = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    sizes = []
    for budget in (1.0, 0.4, 0.0):
        torch.compiler.reset()
        options = {"fallback": False, "activation_memory_budget": budget}
        compiled = torch.compile(model, backend="ferrite", options=options, dynamic=is_dynamic)
        size, result = saved_bytes(compiled, x, held)
        sizes.append(size)
        found = torch.autograd.grad(result.square().sum(), [x, *model.parameters()])
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert sizes[0] > 2 * sizes[1] > 2 * sizes[2]
    assert sizes[2] <= sizes[0] / 16


def dropped(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    kept = torch.nn.functional.dropout((x @ w).tanh(), 0.5)
    return kept, (kept @ w).sin()


def noisy(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    kept = (x @ w).tanh() * (torch.rand(8, 16) < 0.5)
    return kept, (kept @ w).sin()


@pytest.mark.parametrize("is_torchs", [False, True], ids=["kernels draw", "torch draws"])
@pytest.mark.parametrize("budget", [0.0, 0.5])
@pytest.mark.parametrize("call", [dropped, noisy])
def test_a_backward_drops_what_its_forward_dropped(call: Any, budget: float, *, is_torchs: bool) -> None:
    x, w = torch.ones(8, 16, requires_grad=True), torch.eye(16, requires_grad=True)
    options = {"fallback": False, "activation_memory_budget": budget, "fallback_random": is_torchs}
    kept, _ = torch.compile(call, backend="ferrite", options=options)(x, w)
    gradient = torch.autograd.grad(kept.sum(), x)[0]
    assert torch.equal(gradient != 0, kept != 0)
    assert 0 < kept.count_nonzero() < kept.numel()


def test_a_budget_that_torch_was_given_drops_the_same_as_well() -> None:
    x, w = torch.ones(8, 16, requires_grad=True), torch.eye(16, requires_grad=True)
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        kept, _ = torch.compile(dropped, backend="ferrite", options={"fallback": False})(x, w)
        gradient = torch.autograd.grad(kept.sum(), x)[0]
    assert torch.equal(gradient != 0, kept != 0)


def test_a_budget_beyond_the_range_is_refused() -> None:
    with pytest.raises(ferrite_torch.OptionError, match="activation_memory_budget"):
        ferrite_torch.Options(activation_memory_budget=1.5)
