"""Checks that a function, traced and lowered, means what eager computes: values, types, shapes and strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ferrite_ir.language.graph import Graph, View
from ferrite_ir.reference.evaluator import evaluate
from ferrite_ir.verification.verifier import require_valid
from ferrite_torch.graphs.graph_lowering import lower_module
from ferrite_torch.graphs.lowered_module import LoweredModule

Agree = Callable[..., Graph]


def traced(function: Callable[..., Any], *args: Any) -> LoweredModule:
    """Returns a function of tensors (and other arguments), lowered for arguments like these."""
    leaves, spec = pytree.tree_flatten(args)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def flat(*given: torch.Tensor) -> list[Any]:
        rest = iter(given)
        filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return list(pytree.tree_leaves(function(*pytree.tree_unflatten(filled, spec))))

    module = make_fx(flat, tracing_mode="fake")(*tensors)
    module.graph.eliminate_dead_code()
    return lower_module(module)


def evaluated(lowered: LoweredModule, *args: Any) -> list[torch.Tensor]:
    """Returns the outputs of a lowered function, computed by the reference evaluator."""
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    given = [*lowered.constants, *(tensors[position] for position in lowered.selection)]
    library = {"aten.empty_strided.default": lambda shape, strides, **_: torch.zeros(shape).tolist()}
    results = evaluate(lowered.graph, [tensor.tolist() for tensor in given], externs=library)
    return [
        torch.tensor(result, dtype=torch.float64 if view.dtype.is_float else None).reshape(view.shape)
        for result, view in zip(results, lowered.graph.outputs, strict=True)
        if isinstance(view, View)
    ]


@pytest.fixture
def agree() -> Agree:
    """Returns a check that a function, lowered without extern calls, agrees with eager; it returns the graph."""

    def check(function: Callable[..., Any], *args: Any, tolerance: float | None = None) -> Graph:
        lowered = traced(function, *args)
        assert not lowered.externs, f"extern calls: {lowered.externs}"
        require_valid(lowered.graph)
        wanted = [leaf for leaf in pytree.tree_leaves(function(*args)) if isinstance(leaf, torch.Tensor)]
        views = [output for output in lowered.graph.outputs if isinstance(output, View)]
        for got, view, want in zip(evaluated(lowered, *args), views, wanted, strict=True):
            assert tuple(want.shape) == view.shape
            strided = [(a, b) for size, a, b in zip(view.shape, view.strides, want.stride(), strict=True) if size > 1]
            assert not want.numel() or all(ours == theirs for ours, theirs in strided), strided
            torch.testing.assert_close(got.to(want.dtype), want, equal_nan=True, atol=tolerance, rtol=tolerance)
        return lowered.graph

    return check


@pytest.fixture
def lower_one() -> Callable[..., LoweredModule]:
    """Returns the function that traces and lowers."""
    return traced


@pytest.fixture
def drawn() -> Callable[..., list[torch.Tensor]]:
    """Returns the function that lowers and evaluates, for results that eager draws differently."""
    return lambda function, *args: evaluated(traced(function, *args), *args)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)
