"""Where a repeated block of training ends: as many launches for a layer, forward and backward, as in a whole graph."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ferrite_torch
from against_eager import own_only
from layer_stacks import (
    DEPTH,
    Residual,
    Stack,
    check_slope,
    check_training,
    compiled,
    drawn,
    layers,
    regions,
    twice,
)

pytestmark = own_only("it counts launches of our programs")

RESIDUALS: dict[str, Callable[[], nn.Module]] = {
    "plain": Residual,
    "with dropout": lambda: Residual(drop=0.25),
    "with a factor for each column": lambda: Residual(scaled=True),
}


def steps_of(graphs: Mapping[str, Any], steps: list[Any]) -> Counter[str]:
    """Returns how often each kind of step runs in a call, in the graphs that are called too."""
    found = Counter(step["do"] for step in steps)
    for step in steps:
        if step["do"] == "call":
            found += steps_of(graphs, graphs[step["graph"]]["steps"])
    return found


def launches(count: int, make: Callable[[], nn.Module], *, blocks: bool) -> list[int]:
    """Returns how many kernels a forward and a backward through so many layers launch."""
    model, _ = twice(lambda: Stack(layers(lambda number: make(), count)))
    compiled(model, repeat_blocks=blocks)(drawn(64)).square().sum().backward()
    programs = ferrite_torch.compiled_programs()
    assert any(program.get("graphs") for program in programs) == blocks
    found = []
    for program in programs:
        graphs = {graph["name"]: graph for graph in program.get("graphs", ())}
        found.append(steps_of(graphs, program["steps"])["launch"])
    return found


def launches_of_a_layer(make: Callable[[], nn.Module], *, blocks: bool) -> list[float]:
    fewer, more = (launches(count, make, blocks=blocks) for count in (6, 10))
    return [(b - a) / 4 for a, b in zip(fewer, more, strict=True)]


@pytest.mark.parametrize("name", RESIDUALS)
def test_a_layer_launches_what_it_does_in_a_whole_graph(name: str) -> None:
    make = RESIDUALS[name]
    forward, backward = launches_of_a_layer(make, blocks=True)
    whole_forward, whole_backward = launches_of_a_layer(make, blocks=False)
    assert forward == whole_forward
    # In a whole graph small sums of two layers may share a launch, which those of two calls do not.
    assert backward <= whole_backward + (name == "with a factor for each column")


@pytest.mark.parametrize("name", RESIDUALS)
def test_no_kernel_only_copies(name: str) -> None:
    model, _ = twice(lambda: Stack(layers(lambda number: RESIDUALS[name]())))
    compiled(model)(drawn()).square().sum().backward()
    kernels = [kernel for program in ferrite_torch.compiled_programs() for kernel in program["kernels"]]
    assert regions() == [[DEPTH - 1], [DEPTH - 1]]
    assert not [each["name"] for each in kernels if each["facts"]["ops"] + each["facts"]["reductions"] == 0]


def test_a_gradient_for_both_terms_of_a_sum_is_stored_once() -> None:
    model, _ = twice(lambda: Stack(layers(lambda number: Residual())))
    compiled(model)(drawn()).square().sum().backward()
    *_, backward = ferrite_torch.compiled_programs()
    (region,) = backward["graphs"]
    parameters = list(model.layers[0].parameters())  # type: ignore[index,union-attr]
    assert len(region["outputs"]) == 1 + len(parameters)


class Collecting(Stack):
    """Returns the result of each layer, too."""

    def forward(self, x: Tensor) -> Tensor:
        found = [self.first(x)]
        for layer in self.layers:
            found.append(layer(found[-1]))
        return torch.cat([each.sin() for each in found])


class Skipping(Stack):
    """Reads what the second layer returned again at the end: its sum has another reader than those of other layers."""

    def forward(self, x: Tensor) -> Tensor:
        found = [self.first(x)]
        for layer in self.layers:
            found.append(layer(found[-1]))
        return (found[-1] + found[2]).sin() * found[-1]


def hooked(kind: type[nn.Module]) -> nn.Module:
    model = Stack(layers(lambda number: kind()))
    model.layers[2].register_forward_hook(lambda module, given, result: result * 2)
    return model


def frozen() -> nn.Module:
    model = Stack(layers(lambda number: Residual()))
    model.layers[3].branches.requires_grad_(False)  # type: ignore[union-attr]
    return model


STACKS: dict[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "plain": (lambda: Stack(layers(lambda number: Residual())), [4]),
    "with factors": (lambda: Stack(layers(lambda number: Residual(scaled=True))), [4]),
    "whose last layer is last": (lambda: nn.Sequential(*layers(lambda number: Residual())), [4]),
    "that returns each layer's result": (lambda: Collecting(layers(lambda number: Residual())), [4]),
    "with another reader": (lambda: Skipping(layers(lambda number: Residual())), [5]),
    "with a hook": (lambda: hooked(Residual), [4]),
    "with weights that are not trained": (frozen, [4]),
    "of four": (lambda: Stack(layers(lambda number: Residual(), 4)), [3]),
    "of three": (lambda: Stack(layers(lambda number: Residual(), 3)), [3]),
}
"""By name, a model and how often its region is called."""


@pytest.mark.parametrize("name", STACKS)
def test_gradients(name: str) -> None:
    make, expected = STACKS[name]
    model, twin = twice(make)
    run = compiled(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_training(run, model, twin)
    assert regions() == [expected, expected]
    for each in (model, twin):
        each.zero_grad()
    check_training(run, model, twin)


class Returning(Stack):
    """Returns the result of each layer as it is, which is read by the next layer and saved, too."""

    def forward(self, x: Tensor) -> list[Tensor]:  # type: ignore[override]
        found = [self.first(x)]
        for layer in self.layers:
            found.append(layer(found[-1]))
        return found


def test_results_of_layers_that_are_results_of_the_model() -> None:
    model, twin = twice(lambda: Returning(layers(lambda number: Residual())))
    found, expected = compiled(model)(drawn()), twin(drawn())
    assert regions()[0] == [4]
    assert [each._is_view() for each in found] == [each._is_view() for each in expected]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    for results in (found, expected):
        sum(each.sin().sum() for each in results).backward()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)


def test_a_write_to_a_result_that_the_backward_takes_is_noticed() -> None:
    model, _ = twice(lambda: Returning(layers(lambda number: Residual())))
    found = compiled(model)(drawn())
    with torch.no_grad():
        found[3].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sum(each.sin().sum() for each in found).backward()


def test_any_number_of_rows() -> None:
    model, twin = twice(lambda: Stack(layers(lambda number: Residual())))
    compiled(model)
    options = {"fallback": False, "repeat_blocks": True}
    run = torch.compile(model, backend="ferrite", fullgraph=True, dynamic=True, options=options)
    for rows in (6, 4, 7):
        model.zero_grad()
        twin.zero_grad()
        check_training(run, model, twin, rows)
    assert regions() == [[4], [4]]


def test_masks_of_a_sum_in_the_next_layer() -> None:
    model, _ = twice(lambda: Stack(layers(lambda number: Residual(drop=0.5))))
    run, x = compiled(model), drawn()
    check_slope(run, x)
    assert regions() == [[4], [4]]


def test_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    for recalled in (0, 2):
        model, twin = twice(lambda: Stack(layers(lambda number: Residual())))
        compiled(model)
        options = {"fallback": False, "repeat_blocks": True}
        check_training(torch.compile(model, backend="ferrite", dynamic=True, options=options), model, twin)
        assert ferrite_torch.statistics()["recalled"] == recalled
