"""Graphs that AOTAutograd splits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ferrite_torch.cache.artifact_loading import run_eagerly
from ferrite_torch.torch_private.aot import GraphCompiler, compile_with_aot


@pytest.mark.parametrize("is_traced", [False, True])
def test_graphs_become_texts_where_somebody_reads_them(monkeypatch: pytest.MonkeyPatch, *, is_traced: bool) -> None:
    written: list[str] = []
    theirs = torch.fx.GraphModule.print_readable

    def print_readable(self: torch.fx.GraphModule, *args: Any, **named: Any) -> str:
        written.append(theirs(self, *args, **named))
        return written[-1]

    class Reader(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            """Reads nothing: that it is there makes a trace."""

    monkeypatch.setattr(torch.fx.GraphModule, "print_readable", print_readable)
    trace = logging.getLogger("torch.__trace")
    monkeypatch.setattr(trace, "handlers", [Reader()] if is_traced else [])

    def compile_one(module: torch.fx.GraphModule, fakes: Any) -> Any:
        assert "sin" in module.print_readable(False), "who asks for it himself gets the text"
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        graphs = {"forward": compile_one, "backward": run_eagerly_later, "inference": compile_one}
        return compile_with_aot(module, fakes, **graphs, decompositions={})

    def run_eagerly_later(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return run_eagerly(module)

    x = torch.randn(3, requires_grad=True)
    torch.compile(torch.sin, backend=backend)(x).sum().backward()
    own = 1
    assert (len(written) > own) is is_traced
    assert torch.fx.GraphModule.print_readable is print_readable


def test_graphs_are_split_and_called_with_boxed_arguments() -> None:
    kinds: list[str] = []

    def compiler(kind: str) -> GraphCompiler:
        def compile_one(module: torch.fx.GraphModule, fakes: Any) -> Any:
            kinds.append(kind)
            return run_eagerly(module)

        return compile_one

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return compile_with_aot(
            module,
            fakes,
            forward=compiler("forward"),
            backward=compiler("backward"),
            inference=compiler("inference"),
            decompositions={},
        )

    x = torch.randn(3, requires_grad=True)
    torch.compile(torch.sin, backend=backend)(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert kinds == ["forward", "backward"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).unfold(0, 2, 1),
        lambda x: (x * 2).as_strided((3, 3), (2, 1)),
        lambda x: (x * 2).sum(0).expand(4, 5),
    ],
    ids=["windows", "strided", "expanded"],
)
def test_gradients_of_results_that_overlap_themselves_arrive_whole(function: Callable[[Tensor], Tensor]) -> None:
    def compiler(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return compile_with_aot(
            module, fakes, forward=compiler, backward=compiler, inference=compiler, decompositions={}
        )

    x = torch.randn(4, 5, requires_grad=True)
    expected = function(x)
    weight = torch.randn(expected.shape)
    (wanted,) = torch.autograd.grad(expected, x, weight)
    (found,) = torch.autograd.grad(torch.compile(function, backend=backend)(x), x, weight)
    torch.testing.assert_close(found, wanted)
