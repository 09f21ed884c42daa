"""The end of a settled call: views and results are what the function of the last section would return."""

from __future__ import annotations

from typing import Any

import pytest

from engines.test_graphs import DEVICE, Recorder, graphed, only
from ferrite_runtime.engines import graph_recorder
from ferrite_runtime.engines.cuda_graphs import GraphedProgram
from ferrite_runtime.engines.engine import InterpretedEngine
from ferrite_runtime.engines.generations import Key
from ferrite_runtime.engines.lent_memory import Lending
from ferrite_runtime.formats.program import Program
from graph_part_programs import KERNELS, STEP, eight, made
from runtime_kernels import layout, program

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def view(name: str, base: str, shape: list[int], offset: int = 0, dtype: str = "f32") -> dict[str, Any]:
    return {"do": "view", "name": name, "base": base, **layout(shape), "offset": offset, "dtype": dtype}


def ending(views: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a program of two kernels, which ends with some views."""
    return program([eight("x")], KERNELS, [*made(STEP, "a", "x"), *made(STEP, "b", "a"), *views], outputs, "cuda")


def lending(mapping: dict[str, Any], lent: Lending) -> GraphedProgram:
    """Returns a program that lends results."""
    found = Program.from_mapping(mapping)
    engine = InterpretedEngine.load(found)

    def build(section: Program) -> Any:
        return engine.of_section(section).first(DEVICE)

    return GraphedProgram(found, engine.first(DEVICE), build, graph_recorder.Recorder(Recorder()), 1, lent)


def expected(x: Any) -> tuple[Any, Any]:
    a = x * 0.5 + 1
    return a, a * 0.5 + 1


def test_views_of_views_and_results_that_come_twice() -> None:
    views = [view("v", "b", [2, 4]), view("w", "v", [4], 4), view("unused", "a", [8])]
    outputs = [{"value": "w"}, {"value": "b"}, {"none": True}, {"value": "v"}, {"value": "b"}, {"value": "x"}]
    call, _ = graphed(ending(views, outputs))
    for _ in range(6):
        x = torch.randn(8)
        w, b, nothing, v, again, given = call([x])
        assert torch.equal(b, expected(x)[1])
        assert torch.equal(v, b.view(2, 4))
        assert torch.equal(w, b[4:])
        assert w.data_ptr() == b[4:].data_ptr()
        assert nothing is None
        assert again is b
        assert given is x
    playback = only(call).playback
    assert playback is not None
    assert playback.is_fit


def test_views_of_other_types() -> None:
    views = [view("v", "b", [6], 2, dtype="i32"), view("w", "v", [8], 4, dtype="u8"), view("u", "b", [2], 6)]
    call, _ = graphed(ending(views, [{"value": each} for each in ("v", "w", "u", "a")]))
    for _ in range(6):
        x = torch.randn(8)
        v, w, u, a = call([x])
        b = expected(x)[1]
        assert torch.equal(a, expected(x)[0])
        assert torch.equal(v, b[2:].view(torch.int32))
        assert torch.equal(w, b[2:].view(torch.uint8)[4:12])
        assert torch.equal(u, b[6:])
    playback = only(call).playback
    assert playback is not None
    assert playback.is_fit is False


def test_views_of_other_types_of_lent_memory() -> None:
    call = lending(ending([view("v", "b", [6], 2, dtype="i32")], [{"value": "v"}, {"value": "a"}]), Lending((0, 1), 1))
    for _ in range(6):
        x = torch.randn(8)
        v, a = call([x])
        assert torch.equal(v, expected(x)[1][2:].view(torch.int32))
        assert torch.equal(a, expected(x)[0])
        del v, a
    playback = call.generations[Key(0, (), ())].playback
    assert playback is not None
    assert len(playback.handover.kept) == 1


@pytest.mark.parametrize("calls", [1, 8])
@pytest.mark.parametrize("held", ["view", "whole"])
def test_views_of_lent_memory_hold_it(calls: int, held: str) -> None:
    call = lending(ending([view("v", "b", [2, 4])], [{"value": "v"}, {"value": "a"}]), Lending((0, 1), calls))
    for _ in range(6):
        call([torch.randn(8)])
    assert list(call.generations) == [Key(0, (), ())]
    playback = call.generations[Key(0, (), ())].playback
    assert playback is not None
    assert len(playback.handover.kept) == 1
    kept = []
    for _ in range(6):
        x = torch.randn(8)
        v, a = call([x])
        kept.append((v if held == "view" else a, expected(x)[held == "view"]))
        if held == "view":
            before = a._version
            v.add_(0)
            assert (v._version, a._version) == (1, before)
        del v, a
        kept = kept[-2:]
        for found, wanted in kept:
            assert torch.equal(found.view(8), wanted)
    assert len(call.generations) >= 2
    assert max(key[0] for key in call.generations) <= call._lending.depths
    del kept, found
    call([torch.randn(8)])
    assert call._last is call.generations[Key(0, (), ())]
