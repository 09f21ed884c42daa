"""A sample of the sweep over sizes: what is right at one size is right at others, with the graphs compiled for it."""

from __future__ import annotations

import pytest
import torch

from against_eager import own_only
from dynamic_sweep import CASES, CHANGES, check_case, check_model, resized_inputs, sizes_of
from op_cases import FAMILIES as EVERYDAY
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


def test_sizes_differ() -> None:
    for architecture in ARCHITECTURES[1:6]:
        shapes = {tuple(map(tuple, (x.shape for x in resized_inputs(architecture, size).values())))
                  for size in sizes_of(architecture)}  # fmt: skip
        assert len(shapes) == len(sizes_of(architecture)) >= 12
