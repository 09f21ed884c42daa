"""What an AOT graph has become: graphs of the language, and what who calls them must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ferrite_ir.language.graph import Graph, Module
from ferrite_torch.calls.lazy_results import LazyResult
from ferrite_torch.diagnostics.refusals import Fallback
from ferrite_torch.errors import Unsupported
from ferrite_torch.graphs.captured_steps import Captured
from ferrite_torch.graphs.user_launches import UserLaunch


@dataclass(frozen=True, slots=True)
class LoweredModule:
    """A lowered graph and what its caller must know.

    Attributes:
        graph: the graph; its inputs are the constants, then the selected arguments.
        constants: tensors that the module holds.
        selection: positions of the arguments that the graph takes; sizes and unread arguments are not among them.
        arguments: number of arguments of the module.
        externs: ``(op, reason)`` of each extern call, in order.
        repeats: positions of outputs that equal an earlier output (or an input) but are tensors of their own in torch.
        passed: positions of outputs that are arguments which the graph does not take, and of these arguments; the graph
            returns None in their place.
        lazy: outputs that the caller has to mark as conjugated or negated when they are read.
        fallbacks: the extern calls that stand for one op of the module each, with their source lines.
        names: what the user's program calls symbols of the graph.
        captured: the steps that call a place in the module's graph.
        callees: the graphs that the graph calls, each behind those that it calls.
        launches: users' Triton kernels that it launches, each once.
    """

    graph: Graph
    constants: tuple[torch.Tensor, ...]
    selection: tuple[int, ...]
    arguments: int
    externs: tuple[tuple[str, str], ...]
    repeats: tuple[int, ...] = ()
    passed: tuple[tuple[int, int], ...] = ()
    lazy: tuple[LazyResult, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    captured: tuple[Captured, ...] = ()
    callees: tuple[Graph, ...] = ()
    launches: tuple[UserLaunch, ...] = ()

    @property
    def module(self) -> Module:
        """Returns the graph with those that it calls."""
        return Module((self.graph, *self.callees))

    def complete(self) -> LoweredModule:
        """Returns the lowered graph if it returns all that its module does.

        Raises:
            Unsupported: some results are arguments that the graph does not take.
        """
        if self.passed:
            _, position = self.passed[0]
            raise Unsupported(f"a graph that returns its argument {position}, which is neither a tensor nor a number")
        return self
