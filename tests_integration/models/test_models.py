"""Whole models against eager: the output and every parameter's gradient, judged by the same model in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from against_eager import assert_close, assert_worked, compiled_to_kernels, observed_work
from tiny_models import ARCHITECTURES, Architecture, build, smooth

PLACES = [
    pytest.param("cpu", torch.float32, id="cpu-float32"),
    pytest.param("cuda", torch.float32, id="cuda-float32", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, id="cuda-bfloat16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float16, id="cuda-float16", marks=pytest.mark.gpu),
]
each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.name)
each_place = pytest.mark.parametrize(("device", "dtype"), PLACES)


def cast(inputs: dict[str, Tensor], device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.to(device, dtype if x.is_floating_point() else None) for name, x in inputs.items()}


def prepare(architecture: Architecture, device: str, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and its inputs in place; float64 copies of both are exact."""
    if isinstance(architecture.model, str):
        pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = build(architecture).to(device, dtype)
    return model, cast(architecture.inputs(), device, dtype)


@each_place
@each_architecture
def test_inference(architecture: Architecture, device: str, dtype: torch.dtype) -> None:
    model, inputs = prepare(architecture, device, dtype)
    model.eval()
    with torch.no_grad(), observed_work() as work:
        actual = compiled_to_kernels(model, fullgraph=not architecture.branches)(**inputs)
    with torch.no_grad():
        eager = model(**inputs)
        exact = copy.deepcopy(model).double()(**cast(inputs, device, torch.float64))
    assert_close(actual, eager, exact)
    assert_worked(work)
    assert work.graph_breaks == 0 or architecture.branches


def train_once(model: nn.Module, called: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Runs forward and backward of a weighted sum; returns the output and the gradients, which it clears."""
    output = called(**inputs)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).half()
    output.backward(weights.to(output.device, output.dtype))
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return output.detach(), found


@each_place
@each_architecture
def test_training(architecture: Architecture, device: str, dtype: torch.dtype) -> None:
    model, inputs = prepare(architecture, device, dtype)
    if architecture.kinks and dtype in (torch.float16, torch.bfloat16):
        # A number so near zero that its sign is a matter of rounding takes another branch of a ReLU than in float64,
        # and its gradient is then another one: right, but not close.
        smooth(model)
    model.train()
    plain, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    with observed_work() as work:
        actual, gradients = train_once(model, compiled_to_kernels(model, fullgraph=not architecture.branches), inputs)
    eager, eager_gradients = train_once(plain, plain, inputs)
    exact, exact_gradients = train_once(wide, wide, cast(inputs, device, torch.float64))
    assert_close(actual, eager, exact, "output")
    scale = max(x.norm().item() for x in exact_gradients.values() if x is not None)
    for name, mine in gradients.items():
        theirs, right = eager_gradients[name], exact_gradients[name]
        assert (mine is None) == (theirs is None), name
        if mine is not None and theirs is not None and right is not None:
            assert_close(mine, theirs, right, f"gradient of {name}", scale)
    for (name, mine), theirs, right in zip(
        model.named_buffers(), plain.buffers(), wide.buffers(), strict=True
    ):  # the running statistics of batch norms
        assert_close(mine, theirs, right, f"buffer {name}")
    assert_worked(work, kernels=2)
    assert work.graph_breaks == 0 or architecture.branches
