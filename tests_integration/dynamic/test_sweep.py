"""A sample of the sweep over sizes: what is right at one size is right at others, with the graphs compiled for it."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import Tensor

from against_eager import own_only
from dynamic_sweep import CASES, CHANGES, check_case, check_model, resized_inputs, sizes_of
from fatal_signals import fatal_signal
from op_cases import FAMILIES as EVERYDAY
from op_cases import Case
from tiny_models import ARCHITECTURES

pytestmark = own_only("the sweep is about ferrite's own compilation")

EVERY = 41
"""One in so many cases is taken: a prime, so that each family has its turn."""
SAMPLED = [name for name in CASES if name.partition("-")[0] in EVERYDAY][::EVERY]
MODELS = {architecture.name: architecture for architecture in ARCHITECTURES}
MOST_GRAPHS = 4
"""Of one direction: dynamo takes extents of 0 and 1, along any axis, for other programs."""


@pytest.mark.parametrize("name", SAMPLED)
def test_cases_are_right_at_every_size(name: str) -> None:
    outcome = check_case(name, list(CHANGES), training=False)
    assert not outcome.wrong
    assert len(outcome.right) > 1
    assert outcome.graphs <= MOST_GRAPHS or outcome.fixed


def test_a_model_is_compiled_once() -> None:
    convolutions = MODELS["convmixer"]
    outcome = check_model(convolutions, sizes_of(convolutions)[:3], training=True)
    assert (len(outcome.right), outcome.wrong, outcome.graphs, outcome.fixed) == (3, [], 2, [])


def test_the_sweep_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_a_little(function: object, **options: object) -> object:
        return lambda x: torch.relu(x) + (1e-3 if x.shape[0] > 4 else 0.0)

    monkeypatch.setattr(torch, "compile", off_by_a_little)
    outcome = check_case("pointwise-relu", ["as written", "twice"], training=False)
    assert (outcome.right, len(outcome.wrong)) == (["as written"], 1)


def test_a_size_that_dynamo_refuses_by_itself_says_nothing() -> None:
    """Fake tensors know of no greatest element of no rows, where eager returns no rows."""
    outcome = check_case("reductions-inf-norm", ["no rows"], training=True)
    assert (outcome.right, outcome.wrong) == ([], [])
    assert outcome.absent[0].startswith("no rows: TorchRuntimeError: ")


def test_the_sweep_outlives_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def relu(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and not x.numel():
            os.kill(os.getpid(), signal.SIGFPE)
        return torch.relu(x)

    monkeypatch.setitem(CASES, "deadly", Case("deadly", relu, lambda draw: (draw.plain(3, 5),)))
    outcome = check_case("deadly", ["as written", "no rows"], training=True)
    assert (outcome.right, outcome.wrong, outcome.absent) == (["as written"], [], ["no rows: eager dies of SIGFPE"])


def test_fatal_signals() -> None:
    assert fatal_signal(lambda: os.kill(os.getpid(), signal.SIGFPE)) == "SIGFPE"
    assert fatal_signal(lambda: 1 // 0) == ""


def test_sizes_differ() -> None:
    for architecture in ARCHITECTURES[1:6]:
        shapes = {tuple(map(tuple, (x.shape for x in resized_inputs(architecture, size).values())))
                  for size in sizes_of(architecture)}  # fmt: skip
        assert len(shapes) == len(sizes_of(architecture)) >= 12
