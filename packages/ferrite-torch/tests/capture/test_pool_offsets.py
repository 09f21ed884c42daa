"""Max pooling saves one byte per window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ferrite_torch
from ferrite_ir.language.graph import View
from ferrite_torch.graphs.lowered_module import LoweredModule

WINDOWS: list[tuple[Any, dict[str, Any]]] = [
    (3, {"stride": 2, "padding": 1}),
    ((2, 3), {}),
    (2, {"stride": 1, "dilation": 2}),
    (3, {"ceil_mode": True}),
]


def pool(window: Any, options: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: (F.max_pool2d(x.sin(), window, **options) * 2).cos()


def saved(module: LoweredModule) -> set[tuple[str, tuple[int, ...]]]:
    return {(str(view.dtype), view.shape) for view in module.graph.outputs if isinstance(view, View)}


@pytest.mark.parametrize(("window", "options"), WINDOWS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_those_of_eager(window: Any, options: dict[str, Any], layout: torch.memory_format) -> None:
    x = torch.randn(2, 3, 10, 8).to(memory_format=layout)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    ferrite_torch.compile(pool(window, options), fallback=False)(ours).square().sum().backward()
    pool(window, options)(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert ours.grad is not None
    assert ours.grad.stride() == x.stride()


def test_a_byte_per_window_is_saved_and_its_input_once(lowered: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.conv2d(x, w).relu(), 3, 2, 1).mul(2)

    graphs = lowered(function, torch.randn(2, 3, 10, 10), torch.randn(4, 3, 1, 1, requires_grad=True))
    assert ("i8", (2, 4, 5, 5)) in saved(graphs["forward"])
    assert "i64" not in {dtype for dtype, _ in saved(graphs["forward"])}
    assert len([shape for _, shape in saved(graphs["forward"]) if shape == (2, 4, 10, 10)]) == 1


def test_places_that_the_user_sees_stay_what_they_are(lowered: Any) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.max_pool2d(x.sin(), 2, return_indices=True)

    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    assert "i64" in {dtype for dtype, _ in saved(lowered(function, x)["forward"])}
    torch.testing.assert_close(ferrite_torch.compile(function, fallback=False)(x)[1], function(x)[1])
