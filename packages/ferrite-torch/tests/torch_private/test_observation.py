"""Ops as AOTAutograd meets them first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from ferrite_torch.cache.artifact_loading import run_eagerly
from ferrite_torch.torch_private.aot import compile_with_aot
from ferrite_torch.torch_private.observation import observing
from ferrite_torch.torch_private.operators import Overload


def observed(function: Callable[..., Any], *inputs: Any) -> tuple[Any, list[Any]]:
    """Returns the result of a function that AOTAutograd compiles, and the ops that it meets."""
    seen: list[Any] = []

    def compile_one(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        graphs = {"forward": compile_one, "backward": compile_one, "inference": compile_one}
        with observing(lambda op, args, kwargs: seen.append(op)):
            return compile_with_aot(module, fakes, **graphs, decompositions={})

    return torch.compile(function, backend=backend, fullgraph=True)(*inputs), seen


def test_ops_are_seen_once_before_they_are_decomposed_and_none_of_the_backward() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.smooth_l1_loss((x * 2).relu_(), x)

    result, seen = observed(f, torch.randn(3, requires_grad=True))
    result.backward()
    names = [str(op) for op in seen]
    for name in ("aten.mul.Tensor", "aten.relu_.default", "aten.smooth_l1_loss.default"):
        assert names.count(name) == 1, names
    assert not any("backward" in name for name in names)


def a_choice(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def a_loop(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), x))[1]


def a_scan(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carried, row: (carried + row.sin(), carried.clone()), torch.zeros(4), x)[1]


def a_checkpoint(x: torch.Tensor) -> Any:
    return checkpoint(lambda x: x.sin().cos(), x, use_reentrant=False)


def an_attention(x: torch.Tensor) -> Any:
    q = x.expand(1, 1, 4, 4).repeat(1, 1, 32, 4)
    return flex_attention(q, q, q, score_mod=lambda score, batch, head, i, j: score * 2)


@pytest.mark.parametrize("function", [a_choice, a_loop, a_scan, a_checkpoint, an_attention])
def test_ops_with_graphs_of_their_own_are_passed_on_and_not_looked_at(function: Callable[..., Any]) -> None:
    x = torch.randn(4, 4)
    result, seen = observed(function, x)
    torch.testing.assert_close(result, function(x))
    assert all(isinstance(op, Overload) for op in seen)


def test_ops_of_a_checkpoint_are_seen() -> None:
    assert torch.ops.aten.cos.default in observed(a_checkpoint, torch.randn(4, 4, requires_grad=True))[1]
