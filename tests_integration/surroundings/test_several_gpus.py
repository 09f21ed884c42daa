"""Graphs whose tensors lie on several GPUs: what each computes is compiled for it, copies are torch's.

Without two GPUs a rule says which "device" computes an op, so that graphs of the CPU are partitioned alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import ferrite_torch
from against_eager import assert_all_close, compiled, own_only, widened
from ferrite_torch import backend
from ferrite_torch.graphs import device_parts

pytestmark = own_only("it looks at its graphs")

NAMES = ("cuda:0", "cuda:1")
OPS_OF_FIRST = ("mm", "sin", "sum", "t", "add")


def by_name(node: torch.fx.Node) -> str | None:
    """Returns the pretended device of an op: copies and what writes are torch's."""
    name = str(node.target).split(".")[1]
    if name in {"copy_", "_to_copy", "clone"}:
        return None
    return NAMES[0] if name in OPS_OF_FIRST else NAMES[1]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_parts, "place_of", by_name)
    monkeypatch.setattr(backend, "accelerators_of", lambda _: NAMES)
    ferrite_torch.reset_statistics()
    yield
    assert ferrite_torch.statistics()["fallbacks"] == {}


PROGRAMS: dict[str, tuple[Callable[..., object], int]] = {
    "there and back": (lambda x, w: (torch.relu(x @ w) * 2).exp() @ w, 6),
    "side by side": (lambda x, w: ((x @ w).sin(), torch.cos(x) * w), 2),
    "several results": (lambda x, w: torch.split((x @ w).tanh(), 4), 2),
    "a view": (lambda x, w: (x @ w).relu().view(-1)[3:] + 1, 3),
    "statistics": (lambda x, w: torch.var_mean(x @ w, 1), 2),
    "numbers of the CPU": (lambda x, w: (x @ w) * torch.tensor(3.0) + x.mean(), 3),
}


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_are_partitioned(name: str) -> None:
    function, least = PROGRAMS[name]
    x, w = torch.randn(8, 8) / 4, torch.randn(8, 8) / 4
    mine = compiled(function, fullgraph=True)(x, w)
    assert ferrite_torch.statistics()["graphs"] >= min(least, 2)
    torch.testing.assert_close(mine, function(x, w))


@pytest.mark.usefixtures("pretended")
def test_training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    x = torch.randn(5, 8, requires_grad=True)

    def results(module: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
        for parameter in model.parameters():
            parameter.grad = None
        out = module(x)
        given = [x, *model.parameters()]
        return [out.detach(), *torch.autograd.grad(out.sin().sum(), given)]

    mine, theirs = results(compiled(model), x), results(model, x)
    assert ferrite_torch.statistics()["graphs"] > 4
    model.double()
    assert_all_close(mine, theirs, results(model, widened(x)))


@pytest.mark.usefixtures("pretended")
def test_inputs_are_written_last() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).exp()
        x.add_(1)
        return y + x.cos()

    mine, theirs = torch.ones(4, 4), torch.ones(4, 4)
    w = torch.randn(4, 4)
    torch.testing.assert_close(compiled(function)(mine, w), function(theirs, w))
    assert torch.equal(mine, theirs)


@pytest.mark.usefixtures("pretended")
def test_views_of_inputs_that_are_written() -> None:
    """AOTAutograd makes them of the new values, behind the writes."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x.t().mul_(3)
        return x.t()[1:], w.add_(1).sin()

    mine, theirs = torch.ones(2, 4, 4), torch.ones(2, 4, 4)
    torch.testing.assert_close(compiled(function, fullgraph=True)(*mine), function(*theirs))
    assert torch.equal(mine, theirs)


@pytest.mark.usefixtures("pretended")
def test_torch_draws_in_the_order_of_the_program() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.sin(torch.rand_like(x.sin()).cos())  # drawn behind the other part
        return first, torch.rand_like(x)

    x, results = torch.randn(4, 4), []
    for call in (compiled(function, fullgraph=True, options={"fallback_random": True}), function):
        torch.manual_seed(0)
        results.append(call(x))
    torch.testing.assert_close(*results)


@pytest.mark.usefixtures("pretended")
def test_what_torch_computes_between_parts_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device_parts, "place_of", lambda node: None if "tan" in str(node.target) else by_name(node))

    def function(x: Tensor) -> Tensor:
        return (x.sin().tan().sin() + x.cos().tan()).clone()

    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(function, fullgraph=True)(x), function(x))
    line = f"{__file__}:{function.__code__.co_firstlineno + 1}"
    (told,) = [record.getMessage() for record in caplog.records if "is called by torch" in record.getMessage()]
    assert told.startswith(f"aten.tan ({line}): aten.tan.default is called by torch")
    assert "What to do: move all of its tensors to one GPU" in told
    assert ferrite_torch.statistics()["externs"]["aten.tan.default"] == {"between what devices compute": 2}


def test_symbolic_sizes_and_control_flow_run_eagerly_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "accelerators_of", lambda _: NAMES)
    ferrite_torch.reset_statistics()
    x = torch.randn(4, 4)
    function: Callable[[Tensor], Tensor] = lambda x: x.relu() + 1  # noqa: E731
    torch.testing.assert_close(torch.compile(function, backend="ferrite", dynamic=True)(x), function(x))

    def branching(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    torch.testing.assert_close(torch.compile(branching, backend="ferrite")(x), branching(x))
    first, second = ferrite_torch.statistics()["fallbacks"]
    assert "symbolic sizes on several devices" in first + second
    assert "several devices with cond" in first + second


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.gpu
def test_a_model_on_two_gpus() -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128)).to("cuda:0")
            self.second = nn.Sequential(nn.Linear(128, 64), nn.Softmax(-1)).to("cuda:1")

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).to("cuda:1")).to("cuda:0") + x

    torch.manual_seed(0)
    model = Split()
    x = torch.randn(32, 64, device="cuda:0", requires_grad=True)
    ferrite_torch.reset_statistics()

    def results(module: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
        out = module(x)
        given = [x, *model.parameters()]
        return [out.detach(), *(each.to("cuda:0") for each in torch.autograd.grad(out.square().sum(), given))]

    call = compiled(model, fullgraph=True)
    for _ in range(3):
        mine = results(call, x)
    theirs = results(model, x)
    assert ferrite_torch.statistics()["fallbacks"] == {}
    assert ferrite_torch.statistics()["graphs"] >= 4
    model.double()
    assert_all_close(mine, theirs, results(model, widened(x)))
