"""Results of inference that stay in the memory of CUDA graphs, in whatever way somebody holds or reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ferrite_runtime.engines import lent_memory
from graphed_training import Graphs, Layer, graphs

__all__ = ["graphs"]


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="ferrite", options={"fallback": False})


def test_who_holds_only_a_storage_holds_a_result(graphs: Graphs) -> None:
    layer = Layer()
    call = compiled(layer)
    with torch.no_grad():
        for _ in range(6):
            call(torch.randn(4, 8))
        result = call(torch.randn(4, 8))
        kept, storage, strides = result.clone(), result.untyped_storage(), result.stride()
        del result
        call(torch.randn(4, 8))
        found = torch.empty(0).set_(storage, 0, kept.shape, strides)
        assert torch.equal(found, kept)
        del storage, found
        played = graphs.played
        call(torch.randn(4, 8))
        assert graphs.played > played


@pytest.mark.parametrize("what", ["beside another", "alone"])
def test_results_without_elements(graphs: Graphs, what: str) -> None:
    """What the host makes behind the last graph lies in the memory of none."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        h = torch.tanh(x)
        return (h, h[:0] * 2) if what == "beside another" else (x[:0] * 2, x.sum())

    call = compiled(function)
    for _ in range(6):
        x = torch.randn(4, 8)
        for found, wanted in zip(call(x), function(x), strict=True):
            torch.testing.assert_close(found, wanted)
    assert graphs


def test_streams_that_read_what_another_layer_was_lent_are_waited_for(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lie in temporary memory of the graph that is played, as all layers of a program share a pool."""
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    lent_memory._hear_readers.cache_clear()
    layers = nn.ModuleList(Layer() for _ in range(2)).requires_grad_(requires_grad=False)
    for layer in layers:
        layer.compile(backend="ferrite", options={"fallback": False})
    first, second = layers
    with torch.no_grad():
        for layer in layers:
            for _ in range(6):
                layer(torch.randn(4, 8))
        program = next(each for each in graphs if each.played)
        followed: list[Any] = []
        object.__setattr__(program._recorder, "follow", followed.append)
        second(torch.randn(4, 8)).record_stream("side")
        followed.clear()
        first(torch.randn(4, 8))
    lent_memory._hear_readers.cache_clear()
    assert "side" in followed
