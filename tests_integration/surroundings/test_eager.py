"""What runs eagerly says so once, with op, place, reason and remedy, and `statistics` lists it: each way into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ferrite_runtime
import ferrite_torch
from against_eager import own_only
from ferrite_torch import CompileError, compilation
from ferrite_torch.lowering import registry

pytestmark = own_only("it reads what ferrite says")


ANEW = {"use_cache": False}
"""A graph that was compiled before would be found."""


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Gives what was said so far."""
    ferrite_torch.reset_statistics()
    caplog.set_level("WARNING", "ferrite_torch")
    return lambda: [each.getMessage() for each in caplog.records if each.name.startswith("ferrite_torch")]


def check(function: Callable[..., Any], *inputs: Tensor, said: Callable[[], list[str]], line: int, reason: str) -> None:
    """Calls a function twice, compiled anew each time; it runs eagerly for a reason that is said and counted."""
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(function, backend="ferrite", options=ANEW)(*inputs)
    place = f"{__file__}:{function.__code__.co_firstlineno + line}"
    (told,) = said()
    assert told.startswith("a graph runs eagerly: "), told
    assert f"({place}): " in told, told
    assert reason in told, told
    assert ". What to do: " in told, told
    (counted,) = ferrite_torch.statistics()["fallbacks"].items()
    assert counted[1] == 2
    assert counted[0] in told


def doubled(x: Tensor) -> Tensor:
    y = x * 2
    return y + 1


def test_a_device_that_is_not_compiled_for(said: Any) -> None:
    check(doubled, torch.empty(3, device="meta"), said=said, line=1, reason="a graph on meta")


def test_a_layer_that_fails(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(compilation, "schedule_module", fail)
    check(doubled, torch.ones(3), said=said, line=1, reason="scheduling failed: ZeroDivisionError: a defect")


def test_kernels_that_do_not_compile(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> Any:
        raise CompileError("kernel k does not compile")

    monkeypatch.setattr(ferrite_runtime.LoadedProgram, "wait", fail)
    check(doubled, torch.ones(3), said=said, line=1, reason="kernel k does not compile")


def test_a_backward_of_a_training_graph(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = compilation.schedule_module

    def fail(module: Any, *args: Any, **named: Any) -> Any:
        if module.graphs[0].name == "backward":
            raise ZeroDivisionError("a defect")
        return theirs(module, *args, **named)

    monkeypatch.setattr(compilation, "schedule_module", fail)
    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: x.sin().exp(), backend="ferrite", options=ANEW)(x).sum().backward()
    (told,) = said()
    assert "ZeroDivisionError: a defect" in told
    assert f"({__file__}:" in told


def test_an_op_that_falls_to_a_library_call(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **named: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setitem(registry.LOWERINGS, "aten.add.Tensor", fail)
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(doubled, backend="ferrite", options=ANEW)
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0))
    (told,) = said()
    place = f"{__file__}:{doubled.__code__.co_firstlineno + 2}"
    assert told.startswith(f"aten.add ({place}): aten.add.Tensor runs as an extern call: ")
    assert "ZeroDivisionError: a defect. What to do: report it" in told
    assert ferrite_torch.statistics()["externs"] == {"aten.add.Tensor": {"its lowering failed: ZeroDivisionError": 2}}
    assert not ferrite_torch.statistics()["fallbacks"]
