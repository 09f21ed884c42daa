"""What AOTAutograd knows of the graph being compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ferrite_torch.loading import run_eagerly
from ferrite_torch.torch_private.aot import compile_with_aot
from ferrite_torch.torch_private.aot_metadata import donated_inputs, regenerated_outputs


def test_results_made_anew_from_inputs_are_known() -> None:
    found: list[frozenset[int]] = []

    def compile_one(module: torch.fx.GraphModule, fakes: Any) -> Any:
        found.append(regenerated_outputs())
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return compile_with_aot(
            module, fakes, forward=compile_one, backward=compile_one, inference=compile_one, decompositions={}
        )

    torch.compile(lambda x: (x + 1, x.t()), backend=backend)(torch.randn(2, 3))
    assert found == [frozenset({1})]


@pytest.mark.parametrize(("uses", "wanted"), [("one", ["mm"]), ("several", [])])
def test_saved_tensors_that_nobody_else_reads_are_known(uses: str, wanted: list[str]) -> None:
    """The intermediate is, unless the graph is kept for another backward; inputs and incoming gradients never are."""
    found: list[list[str]] = []

    def backward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        placeholders = module.graph.find_nodes(op="placeholder")
        found.append([placeholders[position].name for position in donated_inputs()])
        return run_eagerly(module)

    def forward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return compile_with_aot(module, fakes, forward=forward, backward=backward, inference=forward, decompositions={})

    y = torch.compile(lambda x: (x @ x).sin().cumsum(0), backend=backend)(torch.randn(4, 4, requires_grad=True))
    y.sum().backward(retain_graph=uses == "several")
    assert found == [wanted]


def test_outside_a_compilation_nothing_is_known() -> None:
    assert regenerated_outputs() == frozenset()
    assert donated_inputs() == ()
