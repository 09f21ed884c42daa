"""Inputs that shared no memory when a graph that writes to them was compiled, and do in a later call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from against_eager import compiled_or_eager, observed_work, own_only, own_statistics
from bitwise import assert_same_bits

Make = Callable[[], list[Tensor]]


def apart(*starts: int, size: int = 4) -> Make:
    """Returns a function that makes views of tensors of their own, which begin at these elements."""
    return lambda: [torch.arange(24.0)[start : start + size] for start in starts]


def together(*starts: int, size: int = 4) -> Make:
    """Returns a function that makes views of one tensor, which begin at these elements."""

    def make() -> list[Tensor]:
        base = torch.arange(24.0)
        return [base[start : start + size] for start in starts]

    return make


def add_and_multiply(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


def update(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    y.mul_(2)
    return x + y * z


def both_written(x: Tensor, y: Tensor) -> Tensor:
    x[1:].add_(1)
    y.mul_(2)
    return x + y * 3


def check(function: Callable[..., object], call: Callable[..., object], make: Make) -> None:
    mine, theirs = make(), make()
    assert_same_bits(call(*mine), function(*theirs), "results")
    assert_same_bits([x._base for x in mine], [x._base for x in theirs], "inputs")


def eager_graphs() -> int:
    fallbacks: dict[str, int] = own_statistics().get("fallbacks", {})  # type: ignore[assignment]
    return sum(fallbacks.values())


Case = tuple[Callable[..., object], list[tuple[Make, bool]]]
CASES: dict[str, Case] = {
    "overlapping": (add_and_multiply, [(apart(0, 0), False), (together(0, 1), True), (apart(0, 0), True)]),
    "the same elements": (add_and_multiply, [(apart(0, 0), False), (together(3, 3), True)]),
    "disjoint": (add_and_multiply, [(apart(0, 0), False), (together(0, 4), False), (together(9, 2), False)]),
    "both are written": (both_written, [(apart(0, 0), False), (together(4, 0), False), (together(2, 0), True)]),
    "those that are read": (update, [(apart(0, 0, 0), False), (together(0, 4, 0), False), (together(4, 3, 9), True)]),
    "no longer": (add_and_multiply, [(together(0, 1), False), (apart(0, 1), True)]),
    "never": (add_and_multiply, [(together(0, 5), False), (apart(0, 5), False), (together(2, 8), False)]),
}
"""Calls one after the other, each with whether the graph has run eagerly by then."""


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_inputs_that_come_to_share_memory(name: str, *, dynamic: bool) -> None:
    function, calls = CASES[name]
    call, before = compiled_or_eager(function, dynamic=dynamic), eager_graphs()
    for number, (make, was_eager) in enumerate(calls):
        with observed_work() as work:
            check(function, call, make)
        assert number == 0 or work.graphs == 0, "compiled once"
        assert eager_graphs() - before == was_eager or not own_statistics()


def test_sizes_that_change_as_well() -> None:
    call = compiled_or_eager(add_and_multiply, dynamic=True)
    for make in (apart(0, 0), together(0, 6, size=6), together(0, 3, size=6), together(2, 3, size=3), apart(5, 0)):
        check(add_and_multiply, call, make)


def test_a_graph_for_inputs_that_are_apart_is_not_found_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With symbolic sizes they are the same inputs, but for the numbers behind the symbols."""
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "ferrite-cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch-cache"))
    for size in (5, 9):
        torch._dynamo.reset()  # as in another process
        check(add_and_multiply, compiled_or_eager(add_and_multiply, dynamic=True), together(0, 7, size=size))


@torch.library.custom_op("ferrite_tests::bump", mutates_args={"written"})
def bump(factor: float, read: Tensor, written: Tensor) -> Tensor:
    written.add_(factor)
    return read + written


@bump.register_fake
def _(factor: float, read: Tensor, written: Tensor) -> Tensor:
    return torch.empty_like(read)


def normalised(x: Tensor, y: Tensor) -> Tensor:
    F.batch_norm(torch.arange(8.0).reshape(2, 4), x, torch.ones(4), training=True)
    return x * y


def normalised_by_op(x: Tensor, y: Tensor) -> Tensor:
    rows = torch.arange(8.0).reshape(2, 4)
    torch.ops.aten._native_batch_norm_legit(rows, None, None, x, torch.ones(4), True, 0.1, 1e-5)
    return x * y


def looked_up(x: Tensor, y: Tensor) -> Tensor:
    F.embedding(torch.tensor([0, 1]), x.view(2, 2), max_norm=0.5)
    return x * y


def bumped(x: Tensor, y: Tensor) -> Tensor:
    return bump(2.0, y * 1, written=x) * y


WITHOUT_A_NAME = [normalised, normalised_by_op, looked_up, bumped]
"""Functions that write to their first argument by calls that do not look so."""


@pytest.mark.parametrize("is_found", [False, True], ids=["compiled", "found"])
@pytest.mark.parametrize("function", WITHOUT_A_NAME, ids=lambda function: function.__name__)
def test_writes_that_no_name_tells(
    function: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_found: bool
) -> None:
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "ferrite-cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch-cache"))
    for _ in range(1 + is_found):
        torch._dynamo.reset()  # as in another process
        call = compiled_or_eager(function)
        for make in (apart(0, 0), together(0, 4), together(0, 2), apart(1, 1)):
            mine, theirs = make(), make()
            torch.testing.assert_close(call(*mine), function(*theirs))  # roots and quotients round otherwise
            torch.testing.assert_close(mine, theirs)


@own_only("it says what our backend does")
def test_it_is_said_once_with_line_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    call = compiled_or_eager(add_and_multiply)
    check(add_and_multiply, call, apart(0, 0))
    with caplog.at_level(logging.WARNING, logger="ferrite_torch"):
        for start in (1, 1, 2):
            check(add_and_multiply, call, together(0, start))
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("ferrite")]
    assert "test_inputs_that_meet.py" in message
    assert "share memory" in message
    assert "slice it inside" in message
    assert any("share memory" in reason for reason in own_statistics()["fallbacks"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_gradients_of_inputs_that_come_to_share_memory(*, dynamic: bool) -> None:
    def step(call: Callable[..., Tensor], make: Make) -> list[Tensor]:
        x, leaf = (view.detach() for view in make())
        leaf.requires_grad_()
        result = call(x, leaf)
        result.square().sum().backward()
        assert leaf.grad is not None
        return [result.detach(), leaf.grad, x, leaf.detach()]

    call = compiled_or_eager(add_and_multiply, dynamic=dynamic)
    for make in (apart(0, 0), together(0, 4), together(0, 1), apart(0, 0)):
        assert_same_bits(step(call, make), step(add_and_multiply, make))


def test_inputs_of_a_model_that_come_to_share_memory() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(4.0))
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            self.count.add_(x)
            x.add_(1)
            return x * y * self.weight + self.count

    mine, theirs = Model(), Model()
    call = compiled_or_eager(mine)
    for make in (apart(0, 0), together(0, 1), together(0, 4)):
        check(theirs, call, make)
        assert_same_bits(mine.count, theirs.count, "buffer")
