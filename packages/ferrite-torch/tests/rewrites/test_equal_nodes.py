"""Nodes of a graph that compute the same from the same, as the partitioner merges them."""

from __future__ import annotations

from typing import Any

import torch

from ferrite_torch.rewrites.equal_nodes import EqualNodes

aten = torch.ops.aten


def test_what_is_equal_and_what_is_not() -> None:
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")

    def call(op: Any, *args: Any, **named: Any) -> torch.fx.Node:
        return graph.call_function(op, args, named)

    doubled, again = call(aten.mul.Tensor, x, 2.0), call(aten.mul.Tensor, x, 2.0)
    summed = [call(aten.sum.dim_IntList, each, [1], True) for each in (doubled, again)]
    joined = [call(aten.cat.default, [a, b], 1) for a, b in ((doubled, y), (again, y), (y, doubled))]
    zeros = [call(aten.add.Tensor, x, number) for number in (0.0, -0.0, 0, False)]
    drawn = [call(aten.bernoulli.p, x, 0.5) for _ in range(2)]
    written = [call(aten.add_.Tensor, x, 1) for _ in range(2)]
    typed = [call(aten.sum.default, x, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.float32)]
    graph.output(None)
    equal = EqualNodes(graph)
    assert equal.of(doubled) == [doubled, again]
    assert equal.of(summed[1]) == summed
    assert [equal.of(each) for each in joined] == [joined[:2], joined[:2], joined[2:]]
    assert all(equal.of(each) == [each] for each in (x, y, *zeros, *drawn, *written))
    assert equal.of(typed[0]) == [typed[0], typed[2]]
    assert [equal.are_equal(a, b) for a, b in (tuple(summed), (x, y), (x, 1))] == [True, False, False]
