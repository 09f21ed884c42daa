"""Models whose layers repeat: each structure is one region, called as often as it occurs; numbers as eager's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ferrite_torch
from against_eager import own_only
from ferrite_torch.thresholds import REPEATED_BLOCKS
from layer_stacks import (
    MODELS,
    WIDTH,
    WRITING,
    Caching,
    Calling,
    Layer,
    Stack,
    autocast,
    check_slope,
    check_training,
    compiled,
    drawn,
    evaluated,
    layers,
    regions,
    twice,
)

pytestmark = own_only("it counts regions of our programs")


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    make, expected = MODELS[name]
    model, twin = twice(make)
    check_training(compiled(model), model, twin)
    assert ferrite_torch.statistics()["fallbacks"] == {}
    assert regions() == [expected, expected]
    assert list(model.state_dict()) == list(twin.state_dict())


@pytest.mark.parametrize(("rows", "expected"), [(6, [4]), (7, [])])
def test_what_blocks_write_to_is_copied_up_to_a_limit(
    rows: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(REPEATED_BLOCKS, most_written=6 * WIDTH * 4)
    monkeypatch.setattr("ferrite_torch.rewrites.repeated_blocks.REPEATED_BLOCKS", small)
    model, twin = twice(lambda: Stack(layers(lambda number: Caching(rows))))
    check_training(compiled(model), model, twin)
    assert regions() == [expected, expected]


@pytest.mark.parametrize("name", WRITING)
def test_what_layers_write_to_in_several_steps(name: str) -> None:
    make, _ = MODELS[name]
    model, twin = twice(make)
    run = compiled(model)
    for each in (True, True, False):
        model.train(each)
        twin.train(each)
        model.zero_grad()
        twin.zero_grad()
        check_training(run, model, twin)
    assert not any(buffer.requires_grad for buffer in model.buffers())


@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str) -> None:
    make, _ = MODELS[name]
    model, twin = twice(make)
    run = compiled(model.eval())
    with torch.no_grad():
        torch.testing.assert_close(run(drawn()), twin.eval()(drawn()), rtol=1e-3, atol=1e-4)
    assert ferrite_torch.statistics()["fallbacks"] == {}


def test_layers_in_another_mode_are_apart() -> None:
    model, twin = twice(evaluated)
    run = compiled(model)
    run(drawn()).sum().backward()
    assert regions() == [[4], [4]]
    run = compiled(model.eval())
    with torch.no_grad():
        torch.testing.assert_close(run(drawn()), twin.eval()(drawn()), rtol=1e-3, atol=1e-4)
    assert regions() == [[5]]


def test_each_call_draws_numbers_of_its_own() -> None:
    class Dropped(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return x + F.dropout(x.detach().sin().cos().tanh().exp().abs() + 1, 0.5, self.training)

    model = Calling(layers(lambda number: Dropped()), lambda layer, x: x + (layer(x) - x > 0) * 2.0**layer.number)
    for number, layer in enumerate(model.layers):
        layer.number = number
    model.first = nn.Identity()  # type: ignore[assignment]
    run = compiled(model)
    torch.manual_seed(3)
    first = run(torch.zeros(6, WIDTH))
    torch.manual_seed(3)
    torch.testing.assert_close(run(torch.zeros(6, WIDTH)), first)
    assert not torch.equal(run(torch.zeros(6, WIDTH)), first)
    assert regions() == [[5]]
    assert len(first.unique()) > 8  # one mask for all layers would leave two values


def test_masks_of_forward_and_backward_are_one() -> None:
    model, _ = twice(lambda: Stack(layers(lambda number: Layer(drop=0.5))))
    run = compiled(model)
    x = drawn()
    check_slope(run, x)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(*, inside: bool) -> None:
    model, twin = twice(lambda: Calling(layers(), autocast) if inside else Stack(layers()))
    run, x, again = compiled(model), drawn(), drawn()
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        found, expected = run(x), twin(again)
    found.float().square().sum().backward()
    expected.float().square().sum().backward()
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
    torch.testing.assert_close(x.grad, again.grad, rtol=1e-1, atol=1e-1)
    assert regions()[0] == ([] if inside else [5])


def test_any_number_of_rows() -> None:
    model, twin = twice(lambda: Stack(layers()))
    run = compiled(model)
    torch._dynamo.reset()
    run = torch.compile(
        model, backend="ferrite", fullgraph=True, dynamic=True, options={"fallback": False, "repeat_blocks": True}
    )
    for rows in (6, 4, 7):
        model.zero_grad()
        twin.zero_grad()
        check_training(run, model, twin, rows)
    assert regions() == [[5], [5]]


def test_a_model_by_name_and_back() -> None:
    model, twin = twice(lambda: Stack(layers()))
    other, _ = twice(lambda: Stack(layers()))
    handle = ferrite_torch.repeat_blocks(model)
    again = ferrite_torch.repeat_blocks(model)
    assert handle.counts == {"Layer": 5, "LayerNorm": 5, "Linear": 11}
    for each, expected in ((model, [[5]]), (other, [[]])):
        compiled(each, repeat_blocks=False)(drawn())
        assert regions()[:1] == expected
    handle.remove()
    handle.remove()
    compiled(model, repeat_blocks=False)(drawn())
    assert regions()[:1] == [[5]]
    again.remove()
    compiled(model, repeat_blocks=False)(drawn())
    assert regions()[:1] == [[]]
    assert list(model.state_dict()) == list(twin.state_dict())
    with ferrite_torch.repeat_blocks(model):
        compiled(model.layers[0], repeat_blocks=False)(drawn())
    assert regions()[:1] == [[]]


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(ferrite_torch.OptionError, match=r"repeat_blocks takes a torch\.nn\.Module, not function"):
        ferrite_torch.repeat_blocks(drawn)  # type: ignore[arg-type]


@pytest.mark.parametrize("dynamic", [False, True])
def test_stored(*, dynamic: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    for recalled in (0, 2):
        model, twin = twice(lambda: Stack(layers()))
        compiled(model)
        run = torch.compile(
            model, backend="ferrite", dynamic=dynamic, options={"fallback": False, "repeat_blocks": True}
        )
        check_training(run, model, twin)
        assert ferrite_torch.statistics()["recalled"] == recalled


@pytest.mark.parametrize("name", ["equal", "with statistics"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_no_kernel_only_copies(name: str, *, dynamic: bool) -> None:
    model, _ = twice(MODELS[name][0])
    compiled(model)
    run = torch.compile(model, backend="ferrite", dynamic=dynamic, options={"fallback": False, "repeat_blocks": True})
    run(drawn()).sum().backward()
    kernels = [kernel for program in ferrite_torch.compiled_programs() for kernel in program["kernels"]]
    assert kernels
    assert not [each["name"] for each in kernels if each["facts"]["ops"] + each["facts"]["reductions"] == 0]
