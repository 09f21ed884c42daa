"""What AOTAutograd is told of the graph being compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ferrite_torch.cache.artifact_loading import run_eagerly
from ferrite_torch.calls.compiled_graph import CompiledGraph
from ferrite_torch.torch_private.aot import compile_with_aot
from ferrite_torch.torch_private.aot_metadata import drop_dynamic_marks


@pytest.mark.parametrize(("dropped", "traced_anew", "marked"), [(0, 0, 1), (1, 0, 0), (1, 1, 1)])
def test_saved_tensors_carry_no_marks(dropped: int, traced_anew: int, marked: int) -> None:
    """AOTAutograd marks the sizes of those that may change unless told not to; compiled autograd has the marks."""
    found: list[str] = []

    def backward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        run = run_eagerly(module)

        def call(arguments: list[Any]) -> Any:
            tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
            found.extend(name for tensor in tensors for name in vars(tensor) if "dynamic_indices" in name)
            return run(arguments)

        return CompiledGraph(call)

    def forward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        with torch._dynamo.config.patch(compiled_autograd=bool(traced_anew)):
            if dropped:
                drop_dynamic_marks()
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return compile_with_aot(module, fakes, forward=forward, backward=backward, inference=forward, decompositions={})

    call = torch.compile(lambda x: x.sin().exp(), backend=backend, dynamic=True)
    call(torch.randn(4, 5, requires_grad=True)).sum().backward()
    assert bool(found) == marked
