"""Which half values of a graph are rounded because an extremum is among what they are computed of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ferrite_torch.rewrites.equal_nodes import EqualNodes
from ferrite_torch.rewrites.rounded_half_types import ROUNDED, half_extrema, mark_beside_extrema


def softmax(x: Tensor) -> Tensor:
    shares = torch.exp(x * 2 - (x * 2).amax(-1, keepdim=True))
    return shares / shares.sum(-1, keepdim=True)


def distances(x: Tensor) -> tuple[Tensor, Tensor]:
    most = x.amax(-1, keepdim=True)
    return most.squeeze(-1), (most - x).sqrt()


def products(x: Tensor) -> Tensor:
    away = x - x.amax(-1, keepdim=True)
    return away @ away.t() + away.exp().sum()


def positions(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x.sin()
    most = h.gather(-1, h.argmax(-1, keepdim=True))
    return h == most, most


def others(x: Tensor) -> tuple[Tensor, Tensor]:
    picked = x.sin().gather(-1, x.argmin(-1, keepdim=True))
    return picked, x - picked


def widened(x: Tensor) -> Tensor:
    h = x.sin()
    return h.float().amax(-1, keepdim=True) - h


def of_eight_bits(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).float().amax(-1) + x.exp().amax(-1)


def mark(graph: torch.fx.Graph, *, is_joint: bool) -> None:
    equal = EqualNodes(graph)
    mark_beside_extrema(half_extrema(graph, equal), equal, is_joint=is_joint)


NOTHING: set[str] = set()


@pytest.mark.parametrize(
    ("function", "alone", "joint"),
    [
        (softmax, NOTHING, {"mul", "mul_1", "amax", "sub", "exp", "sum_1", "div"}),
        (distances, {"amax", "squeeze", "sub", "sqrt"}, {"amax", "squeeze", "sub", "sqrt"}),
        (products, {"amax", "sub", "t", "exp"}, {"amax", "sub", "t", "exp"}),
        (positions, {"sin", "gather"}, {"sin", "gather"}),
        (others, NOTHING, NOTHING),
        (widened, NOTHING, {"sin"}),
        (of_eight_bits, NOTHING, {"exp", "amax_1"}),
    ],
)
def test_what_is_computed_of_extrema(function: Callable[[Tensor], Any], alone: set[str], joint: set[str]) -> None:
    for is_joint, names in ((False, alone), (True, joint)):
        graph = make_fx(function, tracing_mode="fake")(torch.randn(6, 8, dtype=torch.bfloat16)).graph
        mark(graph, is_joint=is_joint)
        assert {node.name for node in graph.nodes if node.meta.get(ROUNDED)} == names


def test_values_of_other_types_keep_what_they_have() -> None:
    graph = make_fx(distances, tracing_mode="fake")(torch.randn(6, 8)).graph
    mark(graph, is_joint=True)
    assert not any(node.meta.get(ROUNDED) for node in graph.nodes)
