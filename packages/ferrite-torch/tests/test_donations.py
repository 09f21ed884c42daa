"""Saved tensors that die in the backward give their memory to what comes after."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ferrite_torch
from ferrite_torch.diagnostics.statistics import compiled_graphs


def backward_steps() -> list[dict[str, object]]:
    (graph,) = [graph for graph in compiled_graphs() if graph.kind == "backward"]
    return list(graph.program["steps"])


def loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w, target)


@pytest.mark.parametrize("width", [7, 40])
def test_the_gradient_of_logits_lies_where_the_logits_lay(width: int) -> None:
    ferrite_torch.reset_statistics()
    x, target = torch.randn(5, 4, requires_grad=True), torch.tensor([1, 0, 3, -100, 2])
    w = torch.randn(4, width, requires_grad=True)
    options = {"fallback": False, "policy": {"persistent_elements": 16}}
    ferrite_torch.compile(loss, **options)(x, w, target).backward()
    found = x.grad, w.grad
    x.grad = w.grad = None
    loss(x, w, target).backward()
    torch.testing.assert_close(found, (x.grad, w.grad))
    assert "mm" in [step["from"] for step in backward_steps() if step["do"] == "reuse"]


def test_a_backward_that_is_repeated_overwrites_nothing() -> None:
    ferrite_torch.reset_statistics()
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 7, requires_grad=True)
    value = ferrite_torch.compile(loss, fallback=False, use_cache=False)(x, w, torch.tensor([1, 0, 3, -100, 2]))
    first = torch.autograd.grad(value, (x, w), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(value, (x, w), retain_graph=True), first)
    assert "mm" not in [step["from"] for step in backward_steps() if step["do"] == "reuse"]


def test_a_kept_graph_runs_twice_on_copies_of_what_it_overwrites() -> None:
    ferrite_torch.reset_statistics()
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 7, requires_grad=True)
    target = torch.tensor([1, 0, 3, -100, 2])
    options = {"fallback": False, "policy": {"persistent_elements": 16}}
    value = ferrite_torch.compile(loss, **options)(x, w, target)
    assert "mm" in [step["from"] for step in backward_steps() if step["do"] == "reuse"]
    wanted = torch.autograd.grad(loss(x, w, target), (x, w))
    for keeps in (True, True, False):
        torch.testing.assert_close(torch.autograd.grad(value, (x, w), retain_graph=keeps), wanted)
