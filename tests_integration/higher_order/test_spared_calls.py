"""Calls of repeated blocks that AOTAutograd does not read: what they compute, write and are stored as is the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ferrite_torch
from against_eager import own_only
from ferrite_torch import backend
from ferrite_torch.capture import stand_ins
from ferrite_torch.graphs import graph_lowering
from layer_stacks import (
    MODELS,
    WIDTH,
    WRITING,
    Calling,
    Layer,
    Residual,
    Stack,
    compiled,
    drawn,
    layers,
    regions,
    twice,
)

pytestmark = own_only("it counts regions of our programs")

TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


class Spared:
    """How many calls, and inputs, were kept from AOTAutograd, by graph."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.inputs: list[int] = []

    def shorten(self, *given: Any) -> Any:
        found = stand_ins.shorten(*given)
        self.calls.append(len(found.results) if found else 0)
        self.inputs.append(len(found.withheld) if found else 0)
        return found


@pytest.fixture
def spared(monkeypatch: pytest.MonkeyPatch) -> Spared:
    """Counts what is spared from now on."""
    found = Spared()
    monkeypatch.setattr(backend, "shorten", found.shorten)
    return found


def check_inference(run: Callable[..., Any], model: nn.Module, twin: nn.Module, times: int = 2, rows: int = 6) -> None:
    """Fails unless results and buffers are those of eager mode, in several calls."""
    for _ in range(times):
        with torch.no_grad():
            torch.testing.assert_close(run(drawn(rows).detach()), twin(drawn(rows).detach()), **TOLERANCE)
    torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))


@pytest.mark.parametrize("name", MODELS)
def test_all_calls_but_the_first_are_spared(name: str, spared: Spared) -> None:
    make, expected = MODELS[name]
    model, twin = twice(make)
    check_inference(compiled(model), model, twin)
    assert ferrite_torch.statistics()["fallbacks"] == {}
    # One counter of all layers, and all weights of one layer, are inputs of the first call as well.
    is_whole = name in ("of one layer", "checkpointed", "with a gate")
    assert is_whole or sum(spared.calls) == sum(count - 1 for count in expected)
    if name not in ("checkpointed", "with a gate"):
        assert regions() == [expected]


@pytest.mark.parametrize("name", WRITING)
def test_what_layers_write_to_is_no_withheld_input(name: str, spared: Spared) -> None:
    make, (calls,) = MODELS[name]
    model, twin = twice(make)
    check_inference(compiled(model), model, twin, times=3)
    weights = sum(1 for _ in model.layers[0].parameters())  # type: ignore[index,union-attr]
    assert spared.inputs[0] == (calls - 1) * weights


def test_weights_that_other_code_reads_are_kept(spared: Spared) -> None:
    class Reading(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.layers[3].wide.weight.sum()  # type: ignore[operator,union-attr]

    model, twin = twice(lambda: Reading(layers()))
    check_inference(compiled(model), model, twin)
    assert (spared.calls, spared.inputs) == ([4], [4 * 6 - 1])


def test_a_weight_that_further_layers_share_is_lent_once(spared: Spared) -> None:
    def shared() -> Stack:
        model = Stack(layers())
        for layer in model.layers[2:]:
            layer.wide.weight = model.layers[1].wide.weight  # type: ignore[union-attr]
        return model

    model, twin = twice(shared)
    check_inference(compiled(model), model, twin)
    assert (spared.calls, spared.inputs) == ([4], [4 * 6 - 3])


def test_a_weight_that_is_a_view_of_another_input_is_kept(spared: Spared) -> None:
    def overlapping() -> Stack:
        model = Stack(layers())
        both = torch.randn(2, WIDTH)
        model.layers[1].norm.weight = nn.Parameter(both[0])  # type: ignore[union-attr]
        model.layers[2].norm.weight = nn.Parameter(both[1])  # type: ignore[union-attr]
        return model

    model, twin = twice(overlapping)
    check_inference(compiled(model), model, twin)
    assert (spared.calls, spared.inputs) == ([4], [4 * 6 - 2])


def test_new_weights_are_read_in_later_calls() -> None:
    model, twin = twice(lambda: Stack(layers()))
    run = compiled(model)
    check_inference(run, model, twin)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        with torch.no_grad():
            other.copy_(one.mul_(1.5))
    check_inference(run, model, twin)
    for each in (model, twin):
        torch.manual_seed(1)
        each.layers[3].wide = nn.Linear(WIDTH, 2 * WIDTH)  # type: ignore[index]
    check_inference(run, model, twin)
    assert ferrite_torch.statistics()["fallbacks"] == {}


def test_layers_that_come_to_differ_are_compiled_anew() -> None:
    model, twin = twice(lambda: Stack(layers(lambda number: Layer(drop=0.5))))
    run = compiled(model.eval())
    check_inference(run, model, twin.eval())
    for each in (model, twin):
        each.layers[2].slope = 0.7  # type: ignore[index]
        each.layers[4].register_forward_hook(lambda module, given, result: result * 2)  # type: ignore[index]
    check_inference(run, model, twin)
    assert [sum(each) for each in regions()][-1] == 3


def test_training_and_inference_of_one_model(spared: Spared) -> None:
    model, twin = twice(lambda: Stack(layers()))
    run = compiled(model)
    run(drawn()).sum().backward()
    check_inference(run, model, twin)
    with torch.inference_mode():
        torch.testing.assert_close(run(drawn().detach()), twin(drawn().detach()), **TOLERANCE)
    assert spared.calls[:2] == [0, 4]
    assert ferrite_torch.statistics()["fallbacks"] == {}


def test_no_input_has_a_derivative(spared: Spared) -> None:
    model, twin = twice(lambda: Stack(layers()).requires_grad_(False))
    torch.testing.assert_close(compiled(model)(drawn().detach()), twin(drawn().detach()), **TOLERANCE)
    assert spared.calls == [4]


def test_a_graph_that_changes_what_has_a_derivative_is_read_whole(spared: Spared) -> None:
    class Enabling(Stack):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            with torch.enable_grad():
                return x * self.first.weight.sum()

    model, twin = twice(lambda: Enabling(layers()))
    run = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(drawn()), twin(drawn()), **TOLERANCE)
    assert spared.calls == [0]


class Turned(Layer):
    """A block that computes with the sizes of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        y = super().forward(x).view(rows, 2, width // 2).transpose(1, 2).reshape(rows, width)
        return y + x.expand(rows, width) / rows


@pytest.mark.parametrize("kind", [Layer, Turned])
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_vary(kind: type[Layer], spared: Spared, *, dynamic: bool) -> None:
    model, twin = twice(lambda: Stack(layers(lambda number: kind())))
    compiled(model)
    run = torch.compile(model, backend="ferrite", dynamic=dynamic, options={"fallback": False, "repeat_blocks": True})
    for rows in (6, 4, 7):
        check_inference(run, model, twin, rows=rows)
    count = 5 - (kind is Turned)  # it ends in a sum
    assert all(each == [count] for each in regions())
    assert spared.calls == [count - 1] * len(regions())


def test_a_residual_is_added_by_the_norm_of_the_next_layer(spared: Spared) -> None:
    model, twin = twice(lambda: Stack(layers(lambda number: Residual())))
    check_inference(compiled(model), model, twin)
    assert (regions(), spared.calls) == ([[4]], [3])
    (program,) = (each for each in ferrite_torch.compiled_programs() if each.get("graphs"))
    (region,) = program["graphs"]
    assert sum(step["do"] == "launch" for step in region["steps"]) == 3, "each norm adds what is before it"


def test_autocast_around() -> None:
    model, twin = twice(lambda: Stack(layers()))
    run = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(run(drawn()), twin(drawn()), rtol=3e-2, atol=3e-2)
    assert regions() == [[5]]


def test_autocast_inside(spared: Spared) -> None:
    class Casting(Stack):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                x = self.first(x)
            return super().forward(x.float())

    model, twin = twice(lambda: Casting(layers()))
    run = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(drawn()), twin(drawn()), rtol=3e-2, atol=3e-2)
    assert (regions(), spared.calls) == ([[5]], [4])


def test_each_call_draws_numbers_of_its_own() -> None:
    def call(layer: nn.Module, x: Tensor) -> Tensor:
        return x + (layer(torch.ones_like(x)) == 0) * 2.0**layer.number  # type: ignore[operator]

    class Dropping(Layer):
        def forward(self, x: Tensor) -> Tensor:
            y = x.sin().cos().tanh().exp().abs() + 1
            return nn.functional.dropout(y.sqrt() + y, 0.5)

    model = Calling(layers(Dropping), call)
    model.first = nn.Identity()  # type: ignore[assignment]
    run = compiled(model)
    with torch.no_grad():
        assert len(run(torch.zeros(6, WIDTH)).unique()) > 8
    assert regions() == [[5]]


def test_graphs_that_are_not_as_expected_are_read_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise stand_ins.NotPutBack("nothing is as expected")

    monkeypatch.setattr(stand_ins, "_check_alike", refuse)
    model, twin = twice(lambda: Stack(layers()))
    with caplog.at_level(logging.INFO, "ferrite_torch"):
        check_inference(compiled(model), model, twin)
    assert "AOTAutograd reads all calls of repeated blocks: nothing is as expected" in caplog.text
    assert (regions(), ferrite_torch.statistics()["fallbacks"]) == ([[5]], {})


def test_a_graph_that_is_compiled_beside_its_calls(spared: Spared) -> None:
    model, twin = twice(lambda: Stack(layers()))
    run = compiled(model, background=True)
    check_inference(run, model, twin)
    until = time.monotonic() + 60
    while not regions() and time.monotonic() < until:
        time.sleep(0.05)
    check_inference(run, model, twin)
    assert (spared.calls, regions()) == ([4], [[5]])


def test_a_graph_that_runs_op_by_op(spared: Spared, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ferrite_torch.errors.Unsupported("nothing is supported")

    monkeypatch.setattr("ferrite_torch.pipeline.compile_graph", refuse)
    model, twin = twice(lambda: Stack(layers()))
    run = compiled(model, fallback=True)
    check_inference(run, model, twin)
    assert spared.calls == [4]
    assert sum(ferrite_torch.statistics()["fallbacks"].values()) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_stored(*, dynamic: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spared: Spared) -> None:
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    for recalled, tie in ((0, False), (1, False), (0, True), (1, True)):
        model, twin = twice(lambda: Stack(layers()))
        for each in (model, twin) if tie else ():  # the same calls, of other inputs
            each.layers[3].wide = each.layers[1].wide  # type: ignore[index]
        compiled(model)
        options = {"fallback": False, "repeat_blocks": True}
        run = torch.compile(model, backend="ferrite", dynamic=dynamic, options=options)
        check_inference(run, model, twin)
        assert ferrite_torch.statistics()["recalled"] == recalled
    assert len(spared.calls) == 4


def test_lowering_looks_at_the_inputs_of_a_graph_once_for_each_region(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    theirs = graph_lowering.note_inputs

    def note_inputs(fakes: Any) -> None:
        looks[-1] += 1
        theirs(fakes)

    monkeypatch.setattr(graph_lowering, "note_inputs", note_inputs)
    for count in (4, 9):
        looks.append(0)
        model, twin = twice(lambda count=count: Stack(layers(count=count)))  # type: ignore[misc]
        check_inference(compiled(model), model, twin, times=1)
    assert looks[0] == looks[1] > 0
