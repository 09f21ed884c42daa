"""Numbers that change from call to call compile nothing: arguments, and the learning rates of optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ferrite_torch
from against_eager import own_only

pytestmark = own_only("it counts ferrite's own compilations")

CHANGES = 100
MOST_GRAPHS = 2
"""One for the first number, which dynamo takes for a constant, and one for all others."""

OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "sgd by lists": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True),
    "sgd of a tensor": lambda parameters: torch.optim.SGD(parameters, lr=torch.tensor(0.1)),
    "adamw by lists": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "rmsprop by lists": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, foreach=True),
}


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    (group,) = optimiser.param_groups
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_learning_rate_that_changes_compiles_nothing(name: str) -> None:
    ferrite_torch.reset_statistics()
    mine = [nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(4))]
    exact = [nn.Parameter(x.detach().double()) for x in mine]
    own, other = OPTIMISERS[name](mine), OPTIMISERS[name](exact)
    step = torch.compile(own.step, backend="ferrite", options={"fallback": False})
    for count in range(CHANGES):
        for x, y in zip(mine, exact, strict=True):
            x.grad = torch.randn(x.shape)
            y.grad = x.grad.double()
        for optimiser in (own, other):
            set_rate(optimiser, 0.1 / (count + 1))
        step()
        other.step()
    for x, y in zip(mine, exact, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-5)
    statistics = ferrite_torch.statistics()
    assert statistics["graphs"] <= MOST_GRAPHS
    assert statistics["fallbacks"] == statistics["specialised"] == {}


SPECIAL = (0.1, 0.0, 1.0, -1.0, 1e-8, 2, 3, 0.25, math.inf, -math.inf, math.nan, -0.0, 0.5)


def test_special_learning_rates() -> None:
    """The first, the others, integers, and what is no number: dynamo guards the type, and that a float is not NaN."""
    ferrite_torch.reset_statistics()
    mine, exact = (nn.Parameter(torch.arange(4.0)) for _ in range(2))
    own, other = (torch.optim.SGD([x], lr=0.1, momentum=0.9) for x in (mine, exact))
    step = torch.compile(own.step, backend="ferrite", options={"fallback": False})
    for rate in SPECIAL:
        for x, optimiser in ((mine, own), (exact, other)):
            x.data.copy_(torch.arange(4.0))
            x.grad = torch.tensor([1.0, -1.0, 0.5, 2.0])
            set_rate(optimiser, rate)
        step()
        other.step()
        torch.testing.assert_close(mine, exact, equal_nan=True)
    assert ferrite_torch.statistics()["graphs"] <= MOST_GRAPHS + 2
    assert ferrite_torch.statistics()["specialised"] == {}


def test_special_arguments() -> None:
    called = torch.compile(scaled, backend="ferrite", fullgraph=True, options={"fallback": False})
    x = torch.randn(3, 5)
    ferrite_torch.reset_statistics()
    for given in SPECIAL:
        torch.testing.assert_close(called(x, given, 1.5), scaled(x, given, 1.5), equal_nan=True)
        torch.testing.assert_close(called(x, 1.5, given), scaled(x, 1.5, given), equal_nan=True)
    assert ferrite_torch.statistics()["specialised"] == {}


def scaled(x: Tensor, scale: float, shift: float) -> Tensor:
    return torch.add(x.exp(), x, alpha=scale) / shift + (x > shift)


def test_a_float_argument_that_changes_compiles_nothing() -> None:
    ferrite_torch.reset_statistics()
    called = torch.compile(scaled, backend="ferrite", fullgraph=True, options={"fallback": False})
    x = torch.randn(3, 5)
    for count in range(CHANGES):
        given = 0.5 + count / 7, 1.5 + count / 3
        torch.testing.assert_close(called(x, *given), scaled(x, *given))
    assert ferrite_torch.statistics()["graphs"] <= MOST_GRAPHS


MIXED: dict[str, Callable[[Tensor, float], Any]] = {
    "a bound and a factor": lambda x, t: x.clamp(-t, t) * t,
    "a bound": lambda x, t: x.clamp(max=t),
    "what is written": lambda x, t: x.clone().fill_(t) * t,
    "a choice": lambda x, t: torch.where(x > t, t, 0.0) * t,
    "a result": lambda x, t: (x * t, t * 2),
    "a root": lambda x, t: x * (t**0.5) + x.clamp(max=t),
    "an extent": lambda x, t: x.new_zeros(int(t * 4)) + t,
    "a branch": lambda x, t: x * t if t > 1 else x - t,
    "a quantile and a factor": lambda x, t: torch.quantile(x, t / 100) + t * x,
    "what is subtracted from": lambda x, t: (t - x) / t + t / (x * x + 9),
}
"""Functions that take a float in a place where it stays symbolic, and in one where its value is asked for."""


@pytest.mark.parametrize("name", MIXED)
def test_a_float_whose_value_is_asked_for_is_no_other_calls(name: str) -> None:
    """Nor that of another process, whose graphs are stored: each round finds what the one before left."""
    function = MIXED[name]
    for _ in range(2):
        torch._dynamo.reset()
        called = torch.compile(function, backend="ferrite", options={"fallback": False})
        for given in (0.5, 1.5, 2.0, 0.25, 3.0):
            x = torch.randn(5)
            torch.testing.assert_close(called(x, given), function(x, given))


FACTOR = 0.5


class Scaled(nn.Module):
    """Uses a float of its own, one of a module of torch's, a global, and an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.normalised = nn.LayerNorm(5)
        self.factor = 0.5

    def forward(self, x: Tensor, shift: float) -> Tensor:
        return self.normalised(x) * self.factor / FACTOR + shift


@torch.no_grad()
def test_only_arguments_are_inputs_where_sizes_are_dynamic() -> None:
    """Floats of modules and globals are constants: as inputs each would be made a tensor at each call."""
    module = Scaled()
    torch.compile(module, backend="ferrite", dynamic=True, options={"fallback": False})(torch.randn(3, 5), 0.25)
    inputs = ferrite_torch.compiled_programs()[-1]["inputs"]
    assert [entry["dtype"] for entry in inputs if entry.get("shape") == []] == ["f64"]


@torch.no_grad()
def test_a_float_of_a_module_that_changes_becomes_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    ferrite_torch.reset_statistics()
    module = Scaled()
    called = torch.compile(module, backend="ferrite", dynamic=True, options={"fallback": False})
    x = torch.randn(3, 5)
    for count in range(CHANGES):
        module.factor = 0.5 + count / 7
        torch.testing.assert_close(called(x, 0.25), module(x, 0.25))
    assert ferrite_torch.statistics()["graphs"] == MOST_GRAPHS
    for count in range(CHANGES):
        monkeypatch.setitem(globals(), "FACTOR", 0.5 + count / 7)
        torch.testing.assert_close(called(x, 0.25), module(x, 0.25))
    assert ferrite_torch.statistics()["graphs"] == MOST_GRAPHS + 1
