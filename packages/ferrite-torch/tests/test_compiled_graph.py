"""Compiled graphs as callables: they wait once, and run op by op where kernels do not compile."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from ferrite_torch.calls.compiled_graph import CompiledGraph


class Kernels:
    """Kernels that compile, or fail to, and count how often they are waited for and called."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.waits, self.calls = error, 0, 0

    def wait(self) -> None:
        self.waits += 1
        if self.error is not None:
            raise self.error

    def run(self, arguments: list[Any]) -> str:
        assert self.waits, "called before its kernels were there"
        self.calls += 1
        arguments.clear()
        return "compiled"


def eager(arguments: list[Any]) -> str:
    arguments.clear()
    return "eager"


@pytest.mark.parametrize("error", [None, RuntimeError("no kernel")], ids=["compiles", "fails"])
def test_the_first_call_waits_and_decides(error: Exception | None) -> None:
    kernels, told = Kernels(error), []
    graph = CompiledGraph(kernels.run, wait=kernels.wait, eager=eager)
    graph.fall_back(told.append)
    assert kernels.waits == 0
    assert [graph([1]), graph([1])] == (["eager"] * 2 if error else ["compiled"] * 2)
    assert (kernels.waits, told) == (1, [error] if error else [])
    assert kernels.calls == (0 if error else 2)


def test_without_a_way_to_fall_back_errors_are_raised() -> None:
    graph = CompiledGraph(Kernels().run)
    with pytest.raises(AssertionError, match="before its kernels"):
        graph([1])
    graph.wait()
    assert graph.eager == graph.run


def test_torch_calls_it_and_what_is_around_it_with_a_list() -> None:
    graph = CompiledGraph(eager, key="k")

    @functools.wraps(graph)
    def around(arguments: list[Any]) -> Any:
        return graph(arguments)

    assert vars(around)["_boxed_call"] is vars(graph)["_boxed_call"] is True
    assert not hasattr(graph, "__wrapped__"), "nothing is kept in its place"
    disabled = torch.compiler.disable(graph)
    arguments = [1, 2]
    assert (disabled(arguments), arguments) == ("eager", [])
