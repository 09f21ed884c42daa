"""Graphs that are compiled beside their calls: what runs when, and that nobody can tell from results."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import ferrite_torch
from ferrite_runtime import LoadedProgram
from ferrite_torch import pipeline
from ferrite_torch.cache.environment import check_environment, compile_facts
from ferrite_torch.calls import background
from ferrite_torch.calls.compiled_graph import CompiledGraph
from ferrite_torch.errors import CompileError, OptionError
from ferrite_torch.options import Options
from ferrite_torch.torch_private.aot_cache import stores_graphs

PATIENCE = 120.0
"""Seconds after which a test gives up on a thread that should have ended."""

KINDS = ("forward", "backward", "inference")


class Gates:
    """Hold up what compiles beside calls, by the kind of graph, until they are opened.

    Attributes:
        opened: the gates.
        threads: what compiles each kind of graph in the background.
        emitted_by: the threads that wrote the program of each kind.
    """

    def __init__(self) -> None:
        self.opened = {kind: threading.Event() for kind in KINDS}
        self.threads: dict[str, threading.Thread] = {}
        self.emitted_by: dict[str, threading.Thread] = {}

    def hold(self, beside: Any, work: Callable[[Any], None]) -> None:
        kind = beside._kind
        self.threads[kind] = threading.current_thread()
        assert self.opened[kind].wait(PATIENCE)
        work(beside)

    def open(self, *kinds: str) -> None:
        """Lets graphs of these kinds (all, without one) be compiled, and waits until they have switched."""
        for kind in kinds or KINDS:
            self.opened[kind].set()
        for thread in threading.enumerate():
            if thread.name == "ferrite-background" and (not kinds or thread in map(self.threads.get, kinds)):
                thread.join(PATIENCE)
                assert not thread.is_alive()


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    found, work, emit = Gates(), background._Beside._work, pipeline.emit_programs

    def emit_programs(simplified: Any, kind: str, *rest: Any) -> Any:
        found.emitted_by[kind] = threading.current_thread()
        return emit(simplified, kind, *rest)

    monkeypatch.setattr(pipeline, "emit_programs", emit_programs)
    monkeypatch.setattr(background._Beside, "_work", lambda beside: found.hold(beside, work))
    ferrite_torch.reset_statistics()
    yield found
    found.open()


def compiled(function: Callable[..., Any], *, dynamic: bool | None = False, **options: Any) -> Callable[..., Any]:
    given = {"background": True, "fallback": False, **options}
    return torch.compile(function, backend="ferrite", dynamic=dynamic, options=given)


def state() -> dict[str, int]:
    found: dict[str, int] = ferrite_torch.statistics()["background"]
    return found


def test_calls_run_eagerly_until_the_program_is_there(gates: Gates, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ferrite.background")
    call, x = compiled(lambda x: torch.softmax(x.tanh(), -1)), torch.randn(4, 7)
    results = [call(x), call(x)]
    assert (state(), ferrite_torch.statistics()["graphs"]) == ({"waiting": 1, "ready": 0}, 0)
    gates.open()
    results.append(call(x))
    assert (state(), ferrite_torch.statistics()["kernels"]) == ({"waiting": 0, "ready": 1}, 1)
    assert gates.emitted_by["inference"] is not threading.main_thread()
    for result in results:
        torch.testing.assert_close(result, torch.softmax(x.tanh(), -1))
    waiting, ready = (record.getMessage() for record in caplog.records if record.name == "ferrite.background")
    assert waiting == "inference graph: waiting, calls run eagerly after 0 s until it is ready"
    assert ready.startswith("inference graph: ready, calls are compiled from now on")
    assert ready.endswith("2 calls ran eagerly)")


def test_writes_views_and_strides_are_the_same_before_and_after(gates: Gates) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        y = x.t() + 1
        return x.view(-1), y, y.t(), x[0]

    call = compiled(function)

    def facts(run: Callable[..., Any]) -> list[Any]:
        x = torch.arange(12.0).view(3, 4)
        found = run(x)
        found[0][5] = 100.0
        bases = [each.untyped_storage().data_ptr() for each in (x, *found)]
        shared = [[a == b for a in bases] for b in bases]
        return [shared, [each.stride() for each in found], [each.tolist() for each in (x, *found)]]

    before = facts(call)
    gates.open()
    assert facts(call) == before == facts(function)
    assert state()["ready"] == 1


def block() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(128, 5)
    )


@pytest.mark.parametrize("first", ["forward", "backward"])
def test_forward_and_backward_switch_apart(gates: Gates, first: str) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(2, 3, 6, 6) for _ in range(4)]
    model, plain = block(), block()
    call = compiled(model)
    # Eager both; one of the two compiled; switched between a forward and its backward; compiled both.
    for number, x in enumerate(inputs):
        loss, expected = call(x).square().sum(), plain(x).square().sum()
        if number == 2:
            gates.open()
        loss.backward()
        expected.backward()
        if number == 0:
            gates.open(first)
            assert state() == {"waiting": 1, "ready": 1}
        torch.testing.assert_close(loss, expected)
        for own, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        for own, theirs in zip(model.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(own, theirs)
    assert state() == {"waiting": 0, "ready": 2}


@pytest.mark.parametrize("first", ["forward", "backward"])
@pytest.mark.parametrize("again", [False, True], ids=["saved", "recomputed"])
def test_a_backward_drops_what_its_forward_dropped(gates: Gates, first: str, *, again: bool) -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.sin(), 0.5)

    call = compiled(lambda x: checkpoint(dropped, x, use_reentrant=False) if again else dropped(x))
    for number in range(4):
        x = torch.randn(64, 8, requires_grad=True)
        result = call(x)
        if number == 2:
            gates.open()
        result.sum().backward()
        if number == 0:
            gates.open(first)
        kept = result.detach() != 0
        assert 0.2 < kept.double().mean() < 0.8
        torch.testing.assert_close(x.grad, torch.where(kept, 2 * x.detach().cos(), 0.0))
    assert state() == {"waiting": 0, "ready": 2}


def fail(*_: Any) -> Any:
    raise CompileError("no kernel")


def test_what_fails_is_said_once_and_the_graph_stays_eager(
    gates: Gates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline, "emit_programs", fail)
    call, x = compiled(lambda x: x.exp() + 1, fallback=True), torch.randn(5)
    for _ in range(3):
        torch.testing.assert_close(call(x), x.exp() + 1)
        gates.open()
    assert state() == {"waiting": 0, "ready": 0}
    ((reason, count),) = ferrite_torch.statistics()["fallbacks"].items()
    assert count == 1
    assert re.fullmatch(rf"aten\.exp \({re.escape(__file__)}:\d+\): no kernel", reason)
    said = [record.getMessage() for record in caplog.records if "runs eagerly" in record.getMessage()]
    assert said == [f"a graph runs eagerly: {reason}. What to do: report it with the lines of the program"]


def test_without_fallback_later_calls_raise_what_failed(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "emit_programs", fail)
    call, x = compiled(lambda x: x.exp() + 1), torch.randn(5)
    torch.testing.assert_close(call(x), x.exp() + 1)
    gates.open()
    for _ in range(2):
        with pytest.raises(CompileError, match="no kernel"):
            call(x)
    assert state() == {"waiting": 0, "ready": 0}


def test_programs_of_symbolic_sizes_are_made_before_and_their_kernels_waited_for_beside(
    gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiles = threading.Event()

    def wait(self: LoadedProgram) -> LoadedProgram:
        assert threading.current_thread() is not threading.main_thread(), "a call waits"
        assert compiles.wait(PATIENCE)
        return self

    monkeypatch.setattr(LoadedProgram, "wait", wait)
    monkeypatch.setattr(LoadedProgram, "is_ready", lambda self: compiles.is_set())
    call = compiled(lambda x: x.softmax(-1), dynamic=True, use_cache=False)
    for size in (5, 9):
        x = torch.randn(3, size)
        torch.testing.assert_close(call(x), x.softmax(-1))
    assert gates.emitted_by["inference"] is threading.main_thread(), "code generation may ask for a guard"
    assert state() == {"waiting": 1, "ready": 0}
    compiles.set()
    gates.open()
    assert state() == {"waiting": 0, "ready": 1}
    x = torch.randn(3, 11)
    torch.testing.assert_close(call(x), x.softmax(-1))
    assert ferrite_torch.statistics()["graphs"] == 1


def test_what_is_stored_is_ready_at_once_whoever_stored_it(gates: Gates) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)

    x = torch.randn(4, 7)
    compiled(function)(x)
    gates.open()
    assert state() == {"waiting": 0, "ready": 1}
    for options in ({}, {"background": False}, {"background": False, "compile_budget_s": 3.0}):
        torch._dynamo.reset()
        ferrite_torch.reset_statistics()
        torch.testing.assert_close(compiled(function, **options)(x), x.softmax(-1))
        found = ferrite_torch.statistics()
        assert (found["graphs"], found["recalled"], found["background"]) == (1, 1, {"waiting": 0, "ready": 0})


def test_keys_of_stored_graphs_do_not_say_who_waited() -> None:
    facts = compile_facts("cpu", Options())
    assert facts == compile_facts("cpu", Options(background=True)) == compile_facts("cpu", Options(compile_budget_s=2))


@pytest.mark.skipif(not stores_graphs(), reason="this torch's AOTAutograd keeps no graphs of other compilers")
def test_what_a_process_left_unfinished_is_compiled_anew(gates: Gates) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1) * 2

    x = torch.randn(4, 7)
    for _ in range(2):  # AOTAutograd's cache has the second one, whose program is in no store yet
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(function)(x), x.softmax(-1) * 2)
    assert state() == {"waiting": 2, "ready": 0}
    gates.open()
    assert state() == {"waiting": 0, "ready": 2}


def test_calls_wait_within_the_budget_and_no_longer(gates: Gates) -> None:
    x = torch.randn(4, 7)
    call = compiled(lambda x: x.softmax(-1), background=False, compile_budget_s=0.01)
    torch.testing.assert_close(call(x), x.softmax(-1))
    assert state() == {"waiting": 1, "ready": 0}
    gates.open()
    torch._dynamo.reset()
    waits = compiled(lambda x: x.softmax(0), background=False, compile_budget_s=float("inf"))
    torch.testing.assert_close(waits(x), x.softmax(0))
    assert state() == {"waiting": 0, "ready": 2}


def test_two_threads_call_while_it_switches(gates: Gates) -> None:
    call, x = compiled(lambda x: x.tanh().softmax(-1)), torch.randn(4, 7)
    expected = x.tanh().softmax(-1)
    call(x)
    eager, problems = threading.Barrier(3), []

    def run() -> None:
        try:
            torch.testing.assert_close(call(x), expected)
            eager.wait(PATIENCE)
            while state()["waiting"]:
                torch.testing.assert_close(call(x), expected)
            torch.testing.assert_close(call(x), expected)
        except BaseException as error:  # noqa: BLE001  # the test fails with it
            problems.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    eager.wait(PATIENCE)
    gates.open()
    for thread in threads:
        thread.join(PATIENCE)
    assert (problems, state()) == ([], {"waiting": 0, "ready": 1})


def test_threads_keep_their_usual_turns_when_nothing_is_made(gates: Gates) -> None:
    usual, while_made = sys.getswitchinterval(), []
    beside = CompiledGraph(lambda arguments: "eager")

    def rest() -> CompiledGraph:
        while_made.append(sys.getswitchinterval())
        return CompiledGraph(lambda arguments: "compiled")

    beside.rest = rest
    background.go_on_beside(beside, "inference", 0.0, lambda error: None)
    gates.open()
    assert beside([]) == "compiled"
    assert while_made[0] < usual == sys.getswitchinterval()


def test_kernels_that_do_not_compile_leave_the_graph_eager(gates: Gates) -> None:
    def wait() -> None:
        raise fails

    fails, told = RuntimeError("no instruction"), []
    eager = CompiledGraph(lambda arguments: "eager")
    eager.rest = lambda: CompiledGraph(lambda arguments: "compiled", wait=wait)
    background.go_on_beside(eager, "inference", 0.0, told.append)
    assert (eager([]), told) == ("eager", [])
    gates.open()
    assert (eager([]), told, state()) == ("eager", [fails], {"waiting": 0, "ready": 0})


@pytest.mark.parametrize("value", [-1, float("nan"), "1", True])
def test_a_budget_that_is_none_is_refused_before_the_first_call(value: Any) -> None:
    with pytest.raises(OptionError, match=r"'compile_budget_s' is .*; it .*takes .*"):
        Options(compile_budget_s=value)


def test_options_that_do_not_go_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="background is a budget of 0"):
        Options(background=True, compile_budget_s=2.0)
    monkeypatch.setenv("FERRITE_RANKS", "first")
    with pytest.raises(OptionError, match="FERRITE_RANKS is 'first', and background=True"):
        check_environment(Options(background=True))
    check_environment(Options())


def test_an_explanation_says_that_calls_do_not_wait() -> None:
    def notes(**options: Any) -> tuple[str, ...]:
        return ferrite_torch.explain(lambda x: x.exp() + 1, torch.randn(5), options=options).notes

    before = state()
    (note,) = notes(background=True)
    assert note.startswith("graphs run op by op while they are compiled: ")
    assert notes(compile_budget_s=1.0) == (note,)
    assert (notes(), state()) == ((), before), "an explanation compiles nothing in the background"


HELD = """
import os, threading, torch, ferrite_torch
from ferrite_torch import pipeline
theirs, opened = pipeline.emit_programs, threading.Event()

def emit_programs(*given):
    opened.wait()
    return theirs(*given)

pipeline.emit_programs = emit_programs
call = torch.compile(lambda x: x.softmax(-1), backend="ferrite", options={"background": True, "fallback": False})
x = torch.randn(4, 7)
call(x)
assert ferrite_torch.statistics()["background"]["waiting"] == 1
"""
IN_CHILD = """
child = os.fork()
opened.set()
if child == 0:
    torch.testing.assert_close(call(x), x.softmax(-1))
for thread in threading.enumerate():
    if thread.name == "ferrite-background":
        thread.join()
torch.testing.assert_close(call(x), x.softmax(-1))
assert ferrite_torch.statistics()["background"] == {"waiting": 0, "ready": 1}, ferrite_torch.statistics()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("more", ["", IN_CHILD], ids=["ends", "forks"])
def test_a_process_with_a_compilation_beside_it(tmp_path: Path, more: str) -> None:
    env = {**os.environ, "FERRITE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", HELD + more],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
