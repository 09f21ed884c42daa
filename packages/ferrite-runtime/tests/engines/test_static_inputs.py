"""Programs that are called with several sets of parameters: one capture for each set, and copies beyond a bound."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from engines.test_graphs import DEVICE
from ferrite_runtime.engines import generations, graph_recorder
from ferrite_runtime.engines.cuda_graphs import GraphedProgram, capture_counts
from ferrite_runtime.engines.engine import InterpretedEngine
from ferrite_runtime.engines.lent_memory import Lending
from ferrite_runtime.formats.program import Program
from ferrite_runtime.host.thresholds import GraphThresholds
from graph_part_programs import JOIN, KERNELS, STEP, eight, made
from runtime_kernels import program

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def at_address(tensor: Any) -> Any:
    """Returns a tensor over the same memory that does not hold it, as a graph reads it."""
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


class Recorder:
    """Plays by running again, to and from the addresses of the capture; counts captures, replays and pools."""

    def __init__(self) -> None:
        self.captures = self.replays = 0
        self.pools: list[Any] = []
        self._made = itertools.count(1)

    def __call__(self, run: Callable[[], tuple[Any, ...]], pool: Any) -> tuple[tuple[Any, ...], Callable[[], None]]:
        self.captures += 1
        self.pools.append(pool)
        held = inspect.getclosurevars(run).nonlocals["held"]
        fixed = list(map(at_address, held))

        def again() -> tuple[Any, ...]:
            held[:], kept = fixed, list(held)
            try:
                return run()
            finally:
                held[:] = kept

        results = again()

        def replay() -> None:
            self.replays += 1
            for old, new in zip(results, again(), strict=True):
                old.copy_(new)

        return results, replay

    def made(self) -> GraphedProgram:
        """Returns ``(x + w) * 0.5 + 1``, where w is static."""
        steps = [*made(JOIN, "a", "x", "w"), *made(STEP, "b", "a")]
        found = Program.from_mapping(program([eight("x"), eight("w")], KERNELS, steps, [{"value": "b"}], "cuda"))
        engine = InterpretedEngine.load(found)

        def build(section: Program) -> Any:
            return engine.of_section(section).first(DEVICE)

        recorder = graph_recorder.Recorder(self, make_pool=lambda: next(self._made))
        return GraphedProgram(found, engine.first(DEVICE), build, recorder, 1, Lending(static=(1,)))


INPUTS = itertools.cycle(torch.randn(5, 8).unbind())
"""Each lies elsewhere than the one before it, of all calls and of those with one parameter; what is new may not."""


def check(call: GraphedProgram, w: Any) -> None:
    x = next(INPUTS)
    torch.testing.assert_close(call([x, w])[0], (x + w) * 0.5 + 1, rtol=0, atol=1e-6)


def limit(monkeypatch: pytest.MonkeyPatch, **values: int) -> None:
    monkeypatch.setattr(generations, "GRAPHS", GraphThresholds(**values))


def copied(call: GraphedProgram) -> list[bool]:
    """Returns for each generation that is captured whether it copies the parameter."""
    return ["w" in each.moving for each in call.generations.values() if each.captured]


def test_each_set_of_parameters_has_a_capture() -> None:
    recorder, weights = Recorder(), torch.randn(6, 8).unbind()
    call = recorder.made()
    for w in weights * 5:
        check(call, w)
    assert recorder.captures == 6
    assert recorder.replays == 6 * 4
    assert copied(call) == [False] * 6
    assert set(recorder.pools) == {1}, "they share their temporary memory"
    assert capture_counts()["test: 2 launches, 1 of 2 inputs copied"] >= 6
    weights[3].fill_(7)
    check(call, weights[3])
    assert recorder.captures == 6


def test_a_pool_in_which_a_capture_failed_is_not_taken_again() -> None:
    """The next one of its generation is: torch may have released the first."""
    found = generations.Generations(["x"], [0], Lending(), lends=False)
    (x,) = torch.randn(1, 8)
    first, second = (found.at(depth, [x.data_ptr()], [x]) for depth in (0, 1))
    assert first is not None
    assert second is not None
    first.pools = [0, 1]
    assert found.pool_for(second) == 1


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_depth_that_never_came_again_makes_room_for_other_sets(
    monkeypatch: pytest.MonkeyPatch, *, is_captured: bool
) -> None:
    """The first call of a layer may be at another depth than its later ones; one of these is captured."""
    limit(monkeypatch, addresses=2)
    found = generations.Generations(["x"], [0], Lending(static=(0,)), lends=False)
    a, b = torch.randn(2, 8)
    first, later = (found.at(depth, [a.data_ptr()], [a]) for depth in (1, 0))
    assert first is not None
    assert later is not None
    later.captured = int(is_captured)
    other = found.at(0, [b.data_ptr()], [b])
    assert other is not None
    assert bool(other.static) is is_captured
    assert (first in found.values()) is not is_captured


def test_sets_beyond_the_bound_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, addresses=2, calls_when_full=1000)
    recorder, weights = Recorder(), torch.randn(5, 8).unbind()
    call = recorder.made()
    for w in weights * 6:
        check(call, w)
    assert copied(call) == [False, False, True]
    assert recorder.captures <= 4
    assert len(call.generations) == 3


def test_a_set_that_comes_often_takes_the_place_of_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, addresses=2, calls_when_full=8)
    recorder, (a, b, c, d) = Recorder(), torch.randn(4, 8).unbind()
    call = recorder.made()
    for w in [a, b, c, d] * 12:
        check(call, w)
    assert copied(call) == [False, False, True], "all are in use"
    for w in [b, c] * 16:
        check(call, w)
    own = {key.static for key in call.generations if key.static}
    assert own == {(b.data_ptr(),), (c.data_ptr(),)}
    captures = recorder.captures
    for w in [b, c] * 4:
        check(call, w)
    assert recorder.captures == captures


def test_a_parameter_that_is_replaced_is_not_held() -> None:
    recorder = Recorder()
    call, w = recorder.made(), torch.randn(8)
    for _ in range(4):
        check(call, w)
    old = weakref.ref(w.untyped_storage()), w.data_ptr()
    kept, w = at_address(w), torch.randn(8)
    assert old[0]() is None
    for _ in range(4):
        check(call, w)
    assert recorder.captures == 2
    assert [key.static for key in call.generations] == [(w.data_ptr(),)]
    assert recorder.pools == [1, 2], "nothing is left in the first pool"
    del kept


def test_another_parameter_at_the_address_of_one_that_is_gone() -> None:
    recorder, memory = Recorder(), bytearray(64)
    call = recorder.made()
    for value in (1.0, 2.0, 3.0):
        w = torch.frombuffer(memory, dtype=torch.float32, count=8).fill_(value)
        for _ in range(4):
            check(call, w)
        del w
    assert recorder.captures == 1


@pytest.mark.parametrize("is_kept", [True, False])
def test_parameters_that_are_new_in_each_call_are_copied(monkeypatch: pytest.MonkeyPatch, is_kept: bool) -> None:  # noqa: FBT001 - pytest's way
    limit(monkeypatch, addresses=4)
    recorder, kept = Recorder(), []
    call = recorder.made()
    for number in range(12):
        kept = [*kept, torch.randn(8)] if is_kept or number % 2 else [*kept[1:], torch.randn(8)]
        check(call, kept[-1])
    assert recorder.captures == 1
    assert copied(call) == [True]
