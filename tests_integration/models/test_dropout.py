"""A model with dropout: reproducible under a seed, different under another, with the right share of zeros."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from against_eager import assert_worked, compiled, devices, observed_work
from tiny_models import ARCHITECTURES, Architecture, build, token_ids


def gpt2_with_dropout(device: str) -> nn.Module:
    pytest.importorskip("transformers")
    (plain,) = (each for each in ARCHITECTURES if each.name == "gpt2-plain-attention")
    dropping = {**plain.config, "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2}
    return build(Architecture("gpt2", plain.model, dropping)).to(device).train()


def gradients_under(seed: int, model: nn.Module, called: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    torch.manual_seed(seed)
    called(**inputs).square().sum().backward()
    found = [x.grad for x in model.parameters() if x.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("device", devices())
def test_a_seed_decides_a_training_step(device: str) -> None:
    model = gpt2_with_dropout(device)
    inputs = {name: x.to(device) for name, x in token_ids().items()}
    with observed_work() as work:
        called = compiled(model, fullgraph=True)
        first = gradients_under(5, model, called, inputs)
    again = gradients_under(5, model, called, inputs)
    other = gradients_under(6, model, called, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(torch.isfinite(x).all() for x in first)
    assert_worked(work, kernels=2)


@pytest.mark.parametrize("device", devices())
def test_dropout_keeps_its_share_and_its_mean(device: str) -> None:
    x = torch.ones(1000, device=device, requires_grad=True)
    y = compiled(lambda x: torch.nn.functional.dropout(x, 0.3), fullgraph=True)(x)
    dropped = (y == 0).float().mean().item()
    assert 0.22 < dropped < 0.38  # five standard deviations of a thousand draws
    assert torch.allclose(y[y != 0], torch.tensor(1 / 0.7, device=device))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # backward uses the same mask


@pytest.mark.parametrize("device", devices())
def test_two_dropouts_of_one_graph_differ(device: str) -> None:
    x = torch.ones(400, device=device)

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.dropout(x, 0.5), torch.nn.functional.dropout(x, 0.5)

    a, b = compiled(twice, fullgraph=True)(x)
    assert not torch.equal(a, b)
    assert 0.3 < ((a == 0) == (b == 0)).float().mean().item() < 0.7


@pytest.mark.parametrize("device", devices())
def test_dropout_is_absent_in_evaluation(device: str) -> None:
    layer = nn.Dropout(0.5).to(device).eval()
    x = torch.randn(50, device=device)
    assert torch.equal(compiled(lambda x: layer(x) * 2, fullgraph=True)(x), x * 2)
