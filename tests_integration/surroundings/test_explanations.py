"""What `explain` says of a model, and that it leaves everything as it was."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
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


STEPS, TOTALS = [0], {"calls": 0}
COUNT = 0


class Tally:
    __slots__ = ("count", "seen")

    def __init__(self) -> None:
        self.count, self.seen = 0, [0]


class Record:
    made = 0

    def __init__(self) -> None:
        self.count, self.parts = 0, {"a": [1]}


class Talkative(nn.Module):
    """Writes to everything that Python has."""

    def __init__(self) -> None:
        super().__init__()
        self.lists, self.dicts, self.pair = [[0]], {"k": [0], "s": {1}}, ([0],)
        self.tally, self.record = Tally(), Record()
        self.queue, self.counter = deque([1]), Counter(a=1)
        self.array, self.bytes = np.zeros(2), bytearray(2)
        self.random, self.numpy, self.torch = random.Random(0), np.random.default_rng(0), torch.Generator()
        self.tensors = [torch.zeros(2)]
        self.places = iter(range(10))

    def forward(self, x: Tensor, given: list[Any]) -> Tensor:
        global COUNT  # noqa: PLW0603  # that is what is tested
        COUNT += 1
        STEPS.append(1)
        TOTALS["calls"] += 1
        Record.made += 1
        self.lists[0].append(1)
        self.dicts["k"].append(1)
        self.dicts["new"] = [1]
        self.dicts["s"].add(2)
        self.pair[0].append(1)
        self.tally.count += 1
        self.tally.seen.append(1)
        self.record.count += 1
        self.record.parts["a"].append(1)
        self.queue.append(2)
        self.counter["a"] += 1
        self.array += 1
        self.bytes[0] = 1
        self.tensors[0].add_(1)
        given.append(x)
        drawn = self.random.random() + float(self.numpy.random())
        torch.rand(1, generator=self.torch)
        return x * 2 + drawn

    def contents(self) -> list[Any]:
        return [
            repr((COUNT, STEPS, TOTALS, Record.made, self.lists, self.dicts, self.pair, self.queue, self.counter)),
            repr((self.tally.count, self.tally.seen, self.record.count, self.record.parts, self.array, self.bytes)),
            repr((self.tensors, self.random.getstate(), self.numpy.bit_generator.state, self.torch.get_state().sum())),
            sorted(self.__dict__),
        ]


@pytest.mark.filterwarnings("ignore")
def test_python_state_at_any_depth_stays() -> None:
    model, given = Talkative(), [torch.ones(1)]
    before = model.contents()
    found = ferrite_torch.explain(model, torch.ones(3), given)
    assert found.graphs
    assert model.contents() == before
    assert len(given) == 1
    model(torch.ones(3), given)
    assert all(one != other for one, other in zip(model.contents()[:3], before, strict=False))


@pytest.mark.filterwarnings("ignore")
def test_what_functions_name_and_close_over_stays() -> None:
    count, box = 0, [0]

    def step(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        box.append(count)
        return talk(x)

    def talk(x: Tensor) -> Tensor:
        STEPS.append(2)
        return x + count

    steps = list(STEPS)
    assert ferrite_torch.explain(step, torch.ones(3)).graphs
    assert (count, box, steps) == (0, [0], STEPS)


@pytest.mark.filterwarnings("ignore")
def test_an_iterator_that_moved_is_noted() -> None:
    places = iter(range(10))

    def step(x: Tensor) -> Tensor:
        return x + next(places)

    found = ferrite_torch.explain(step, torch.ones(3))
    assert any("iterator" in note for note in found.notes)
    assert not any(
        "iterator" in note for note in ferrite_torch.explain(lambda x: (x + 1, places)[0], torch.ones(3)).notes
    )


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
