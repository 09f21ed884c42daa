"""Functions that are compiled anew in one process, for tests of what the stores give back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import ferrite_torch
from ferrite_runtime import Store, choose_store
from ferrite_torch.cache.artifact import GRAPHS
from ferrite_torch.cache.artifact_loading import runtime_options
from ferrite_torch.options import Options
from ferrite_torch.torch_private.aot_cache import stores_graphs

needs_stored_graphs = pytest.mark.skipif(
    not stores_graphs(), reason="this torch's AOTAutograd keeps no graphs of other compilers"
)


@pytest.fixture(autouse=True)
def fresh_statistics() -> None:
    ferrite_torch.reset_statistics()
    counters.clear()


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(12, 8), torch.nn.GELU(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3, bias=False)
    )


def train(**options: Any) -> list[torch.Tensor]:
    """Returns loss, gradients and buffers after a step of the model, compiled anew."""
    torch._dynamo.reset()
    module = model()
    torch.manual_seed(1)
    compiled = torch.compile(module, backend="ferrite", options={"fallback": False, **options})
    loss = compiled(torch.randn(5, 12)).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None), *module.buffers()]


def train_all(*, dynamic: bool | None) -> list[torch.Tensor]:
    """Returns losses and gradients after steps of the model with batches of several sizes, compiled anew."""
    torch._dynamo.reset()
    module, found = model(), []
    torch.manual_seed(1)
    compiled = torch.compile(module, backend="ferrite", dynamic=dynamic, options={"fallback": False})
    for size in (5, 7, 12, 5):
        loss = compiled(torch.randn(size, 12)).square().sum()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    return found


def infer(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(function, backend="ferrite", options={"fallback": False, **options})(*inputs)


def recalled() -> tuple[int, int]:
    """Returns the number of graphs since the last call, and of those that came out of the store."""
    counts = ferrite_torch.statistics()
    ferrite_torch.reset_statistics()
    return counts["graphs"], counts["recalled"]


def own_store() -> Store:
    return choose_store(runtime_options(Options()))


def stored_keys(kind: str = GRAPHS) -> list[str]:
    return [key for key, _ in own_store().scan(kind)]
