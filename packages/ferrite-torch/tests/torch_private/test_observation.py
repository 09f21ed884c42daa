"""Ops as AOTAutograd meets them first."""

from __future__ import annotations

from typing import Any

import torch

from ferrite_torch.loading import run_eagerly
from ferrite_torch.torch_private.aot import compile_with_aot
from ferrite_torch.torch_private.observation import observing


def test_ops_are_seen_once_before_they_are_taken_apart_and_none_of_the_backward() -> None:
    seen: list[str] = []

    def compile_one(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        graphs = {"forward": compile_one, "backward": compile_one, "inference": compile_one}
        with observing(lambda op, args, kwargs: seen.append(str(op))):
            return compile_with_aot(module, fakes, **graphs, decompositions={})

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.smooth_l1_loss((x * 2).relu_(), x)

    torch.compile(f, backend=backend)(torch.randn(3, requires_grad=True)).backward()
    for name in ("aten.mul.Tensor", "aten.relu_.default", "aten.smooth_l1_loss.default"):
        assert seen.count(name) == 1, seen
    assert not any("backward" in name for name in seen)
