"""Ops that autograd sees whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ferrite_torch.cache.artifact_loading import run_eagerly
from ferrite_torch.torch_private.aot import compile_with_aot


@pytest.mark.parametrize(
    ("mode", "op"),
    [
        ("nearest", "upsample_nearest2d_backward"),
        ("nearest-exact", "_upsample_nearest_exact2d_backward"),
        ("bilinear", "upsample_bilinear2d_backward"),
        ("bicubic", "upsample_bicubic2d_backward"),
    ],
)
def test_gradients_of_resampling_are_ops_while_a_graph_is_traced(mode: str, op: str) -> None:
    traced: list[torch.fx.GraphModule] = []

    def compiler(module: torch.fx.GraphModule, fakes: Any) -> Any:
        traced.append(module)
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return compile_with_aot(
            module, fakes, forward=compiler, backward=compiler, inference=compiler, decompositions={}
        )

    keys = set(torch.ops.aten.upsample_bilinear2d.default.py_kernels)
    x = torch.randn(1, 2, 3, 3, requires_grad=True)
    resized = torch.compile(lambda x: torch.nn.functional.interpolate(x, scale_factor=1.5, mode=mode), backend=backend)
    resized(x).sum().backward()
    assert [node for node in traced[1].graph.nodes if str(node.target) == f"aten.{op}.default"]
    assert set(torch.ops.aten.upsample_bilinear2d.default.py_kernels) == keys


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_one_hot_vectors_are_rows_of_a_table(shape: tuple[int, ...]) -> None:
    traced: list[torch.fx.GraphModule] = []

    def compiler(module: torch.fx.GraphModule, fakes: Any) -> Any:
        traced.append(module)
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return compile_with_aot(
            module, fakes, forward=compiler, backward=compiler, inference=compiler, decompositions={}
        )

    op, composite = torch.ops.aten.one_hot.default, torch._C.DispatchKey.CompositeImplicitAutograd
    before = op.py_kernels.get(composite)
    classes = torch.randint(5, shape)
    with torch.no_grad():
        found = torch.compile(lambda x: torch.nn.functional.one_hot(x, 5), backend=backend)(classes)
    assert torch.equal(found, torch.nn.functional.one_hot(classes, 5))
    (graph,) = traced
    assert [node for node in graph.graph.nodes if str(node.target) == "aten.index_select.default"]
    assert op.py_kernels.get(composite) is before
