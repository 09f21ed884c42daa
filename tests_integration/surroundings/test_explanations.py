"""What `explain` says of a model, and that it leaves everything as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ferrite_torch
from against_eager import own_only

pytestmark = own_only("it reads ferrite's own explanations")


def line_of(function: Callable[..., Any], number: int) -> str:
    """Returns the path and line of a line of a function, its first being 0."""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + number}"


# --- what it says -----------------------------------------------------------------------------------------------------


def scanned(x: Tensor, w: Tensor) -> Tensor:
    total = (x @ w).relu().sum(0)
    return total.cumsum(0)


def test_a_boundary_names_its_rule_its_numbers_and_both_lines() -> None:
    (graph,) = ferrite_torch.explain(scanned, torch.randn(8, 5), torch.randn(5, 8)).graphs
    between, library = graph.boundaries
    assert (between.rule, between.title, between.values) == ("F03", "iteration spaces match", ("sum_1",))
    assert between.numbers == (("first", "8|8"), ("second", "1|8"))
    assert "(first 8|8, second 1|8)" in str(between)
    kernels = {kernel.name for kernel in graph.kernels}
    assert {between.first.maker, between.second.maker} == kernels
    places = [side.origins[-1].location for side in (between.first, between.second)]
    assert places == [line_of(scanned, 1), line_of(scanned, 2)]
    assert "extern call" in library.reason
    text = str(graph)
    assert all(place in text for place in places)
    assert "F03, iteration spaces match: " in text
    assert "together" not in graph.why("sum_1", "cumsum")


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.steps, self.seen = 0, []

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        self.steps += 1
        self.seen.append(self.steps)
        h = torch.dropout(self.norm(self.layer(x)), 0.5, self.training) * scale
        torch._dynamo.graph_break()
        self.latest = h.softmax(-1).cumsum(-1)
        return {"value": [self.latest]}


def test_both_directions_of_a_broken_model_are_explained() -> None:
    found = ferrite_torch.explain(Trained(), torch.randn(4, 6), scale=2.0)
    assert sorted(graph.kind for graph in found.graphs) == ["backward", "backward", "forward", "forward"]
    (broken,) = found.breaks
    assert broken.location == line_of(Trained.forward, 4)
    assert "Hint: " in broken.reason
    assert f"graph break: {broken.location}: " in str(found)
    assert not found.notes
    assert not found.fallbacks


def test_mode_options_and_dynamic_are_those_of_a_compilation() -> None:
    def column(x: Tensor) -> Tensor:
        return (x * 2).exp().sum(0).softmax(-1)

    x = torch.randn(64, 40)
    (graph,) = ferrite_torch.explain(column, x, dynamic=True, mode="max-autotune").graphs
    assert any("x.shape[0]" in kernel.condition for kernel in graph.kernels)
    (graph,) = ferrite_torch.explain(column, x, options={"policy": {"max_kernel_ops": 1}}).graphs
    assert any(boundary.rule == "P02" for boundary in graph.boundaries), graph
    with pytest.raises(ferrite_torch.OptionError, match="modus"):
        ferrite_torch.explain(column, x, options={"modus": 1})
    with pytest.raises(ferrite_torch.OptionError, match="fastest"):
        ferrite_torch.explain(column, x, mode="fastest")


def test_what_runs_eagerly_is_said() -> None:
    def strange(x: Tensor) -> Tensor:
        return x * 2

    found = ferrite_torch.explain(strange, torch.empty(3, device="meta"))
    (reason,) = found.fallbacks
    assert "a graph on meta" in reason
    assert f"runs eagerly: {reason}" in str(found)


# --- what stays -------------------------------------------------------------------------------------------------------


def fingerprint(model: Trained) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers()]
    gradients = [parameter.grad for parameter in model.parameters()]
    return [
        [tensor.detach().clone() for tensor in tensors],
        [tensor._version for tensor in tensors],
        [None if gradient is None else (id(gradient), gradient.clone()) for gradient in gradients],
        (model.steps, list(model.seen), hasattr(model, "latest")),
        (torch.get_rng_state(), random.getstate()),
        dict(ferrite_torch.statistics()),
        dict(torch._dynamo.utils.counters["stats"]),
    ]


@pytest.mark.parametrize("way", ["module", "method", "closure", "compiled"])
def test_a_model_stays_as_it_was(way: str) -> None:
    model = Trained()
    compiled = torch.compile(model, backend="ferrite")
    given: dict[str, Callable[..., Any]] = {
        "module": model,
        "method": model.forward,
        "closure": lambda x: model(x * 1),
        "compiled": compiled,
    }
    x = torch.randn(4, 6)
    compiled(x)["value"][0].sum().backward()
    pending = model.norm(x).sum()  # saved the running statistics of its own
    before = fingerprint(model)
    shown = ferrite_torch.explain(given[way], x)
    assert sum(graph.kind == "backward" for graph in shown.graphs) == 2
    torch.testing.assert_close(fingerprint(model), before, rtol=0, atol=0)
    pending.backward()


def test_inputs_and_parameters_that_are_written_to_stay() -> None:
    held = nn.Parameter(torch.ones(3))
    others = [torch.zeros(3)]

    def write(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            held.mul_(3)
            torch._foreach_add_(others, 1)
        x[1:].add_(1)
        torch.mul(x, 2, out=y)
        return x + held + others[0]

    x, y = torch.zeros(3), torch.zeros(3)
    found = ferrite_torch.explain(write, x, y)
    assert found.graphs
    for tensor, value in ((x, 0), (y, 0), (others[0], 0), (held, 1)):
        assert (tensor == value).all(), (tensor, value)
        assert tensor._version == 0


def test_sizes_that_were_only_looked_at_are_not_remembered() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2 + 1

    for size in range(3, 15):  # more than the compilations that one function may have
        assert len(ferrite_torch.explain(double, torch.randn(size)).graphs) == 1
    compiled = torch.compile(double, backend="ferrite")
    compiled(torch.randn(20))
    program = ferrite_torch.compiled_programs()[-1]
    assert program["inputs"][0]["shape"] == [20]  # as the first size that is compiled; later ones would be symbolic
    for size in range(21, 25):
        assert len(ferrite_torch.explain(double, torch.randn(size)).graphs) == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(torch.randn(20))
