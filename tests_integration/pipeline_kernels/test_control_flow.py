"""Modules as programs: calls, choices and loops in Triton's interpreter give what the evaluator gives."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ferrite_ir import PIPELINE, Module, evaluate, parse_module, require_valid
from ferrite_runtime import InputError, Program, SpecError, UnknownField, load_program
from ferrite_runtime.engines import engine
from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.kernel_source.provenance import Provenance
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.store.interface import MemoryStore
from ferrite_scheduler import schedule_module
from ferrite_triton import emit_program

CHOICE = """
graph @main(x: f32[4], y: f32[4]) -> (w, z as f32[2]{2} at 1) on cpu {
  s: f32[] = reduce sum [ | i < 4] x[i]
  c: bool[] = loop [] gt(s[], f32(0.0))
  a: f32[4] = loop [i < 4] mul(x[i], f32(3.0))
  z: f32[4], unused: f32[4] = if c then @first else @second (a, y)
  w: f32[4] = loop [i < 4] add(z[i], x[i])
}
graph @first(a: f32[4], y: f32[4]) -> (e, d) on cpu {
  b: f32[4] = loop [i < 4] add(a[i], y[i])
  d: f32[4] = scan sum [i < 4] along i b[i]
  e: f32[4] = loop [i < 4] d[-i + 3]
}
graph @second(a: f32[4], y: f32[4]) -> (d, a1) on cpu {
  d: f32[4] = call @leaf(a)
  a1: f32[4] = loop [i < 4] neg(a[i])
}
graph @leaf(a: f32[4]) -> (d) on cpu {
  d: f32[4] = loop [i < 4] neg(a[i])
}
"""
LOOP = """
graph @main(x: f32[n], y: f32[], m: size) -> (w, size(u), z) on cpu where n: size >= 1 ~ 4, m: size, u: size {
  a: f32[n] = loop [i < n] neg(x[i])
  z: f32[n], b: f32[] = while @more do @step (a, y) sizes (0, m) binds (u)
  w: f32[n] = loop [i < n] add(mul(z[i], index.f32(u)), add(a[i], b[]))
}
graph @more(x: f32[n], y: f32[], i: size, m: size) -> (size(max(0, -i + m)))
  on cpu where i: size, m: size, n: size >= 1 ~ 4 {
}
graph @step(x: f32[n], y: f32[], i: size, m: size) -> (z, b, size(i + 2))
  on cpu where i: size, m: size, n: size >= 1 ~ 4 {
  z: f32[n] = loop [a < n] add(x[a], mul(y[], index.f32(i)))
  b: f32[] = loop [] add(y[], f32(0.5))
}
"""
SEARCH = """
graph @main(x: f32[4]) -> (z) on cpu {
  z: f32[4] = while @more do @half (x)
}
graph @more(x: f32[4]) -> (c) on cpu {
  s: f32[] = reduce max [ | i < 4] x[i]
  c: bool[] = loop [] gt(s[], f32(1.0))
}
graph @half(x: f32[4]) -> (z) on cpu {
  z: f32[4] = loop [i < 4] mul(x[i], f32(0.5))
}
"""


def program_of(text: str) -> dict[str, Any]:
    module = parse_module(text)
    require_valid(module)
    module = PIPELINE.run_module(module)
    require_valid(module)
    return emit_program(schedule_module(module)).to_mapping()


def values(results: Any) -> list[Any]:
    return [result.tolist() if isinstance(result, torch.Tensor) else result for result in results]


def check(text: str, *inputs: Any, symbols: dict[str, int] | None = None) -> None:
    module: Module = parse_module(text)
    mapping = program_of(text)
    assert Program.from_mapping(mapping).to_mapping() == mapping
    expected = evaluate(module, list(inputs), symbols=symbols)
    numbers = list((symbols or {}).values())
    for provenance in (Provenance(), Provenance(is_foreign=True, is_trusted=False)):
        program = load_program(mapping, provenance=provenance)
        for _ in range(2):
            given = [torch.tensor(value) for value in inputs]
            assert values(program(*given, *numbers)) == expected


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_choices(sign: float) -> None:
    check(CHOICE, [sign, 2 * sign, 3 * sign, 0.0], [1.0, 1.0, 2.0, 5.0])


@pytest.mark.parametrize(("turns", "length"), list(itertools.product((0, 1, 2, 5), (1, 3))))
def test_loops_over_integers(turns: int, length: int) -> None:
    check(LOOP, [1.0, 2.0, 3.0][:length], 0.5, symbols={"m": turns})


@pytest.mark.parametrize("most", [0.5, 1.5, 100.0])
def test_loops_that_ask_a_tensor(most: float) -> None:
    check(SEARCH, [most, 0.25, 0.5, 0.0])


def test_bundles_do_not_call_graphs_with_too_little() -> None:
    mapping = program_of(SEARCH)
    wrong = {**mapping, "inputs": [{**mapping["inputs"][0], "shape": [2]}]}
    with pytest.raises(SpecError, match=r"steps\[0\]\.args\[0\].*laid out otherwise"):
        load_program(wrong, provenance=Provenance(is_foreign=True))


def test_bundles_do_not_call_graphs_with_too_little_at_sizes_that_a_call_tells() -> None:
    mapping = program_of(SEARCH)
    wrong = {
        **mapping,
        "inputs": [{**mapping["inputs"][0], "shape": ["n"]}],
        "steps": [{"do": "let", "name": "n", "value": {"size": ["x", 0]}}, *mapping["steps"]],
    }
    program = load_program(wrong, provenance=Provenance(is_foreign=True))
    assert values(program(torch.full((4,), 3.0))) == [[0.75] * 4]
    with pytest.raises(InputError, match="shape"):
        program(torch.full((2,), 3.0))


BROKEN = [
    ({"graph": "missing"}, "no graph 'missing' stands before"),
    ({"args": []}, "0 and 0 are given to 'double', which takes 1 tensors and 0 integers"),
    ({"sizes": [3]}, "1 and 1 are given to 'double'"),
    ({"results": ["y", "z"]}, "'double' returns 1 values"),
    ({"args": ["y"]}, "'y' is not defined"),
    ({"binds": ["n"]}, "binds"),
]


@pytest.mark.parametrize(("change", "reason"), BROKEN)
def test_steps_that_do_not_fit_their_graph_are_refused(change: dict[str, Any], reason: str) -> None:
    mapping = program_of("""
graph @main(x: f32[4]) -> (y) on cpu {
  y: f32[4] = call @double(x)
}
graph @double(x: f32[4]) -> (y) on cpu {
  y: f32[4] = loop [i < 4] add(x[i], x[i])
}
""")
    (step,) = (step for step in mapping["steps"] if step["do"] == "call")
    step.update(change)
    with pytest.raises((SpecError, UnknownField), match=re.escape(reason)):
        Program.from_mapping(mapping)


def test_a_loop_has_two_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a loop turns, it allocates two buffers for what it carries, and its condition one."""
    made: list[str] = []
    allocator = engine.make_allocator

    def counting(device: torch.device) -> Any:
        allocate = allocator(device)
        return lambda *args: made.append("alloc") or allocate(*args)

    def like(tensor: torch.Tensor) -> torch.Tensor:
        made.append("like")
        return torch.empty_like(tensor)

    monkeypatch.setattr(engine, "make_allocator", counting)
    monkeypatch.setattr(engine, "empty_like", like)
    program = load_program(program_of(LOOP))
    x = torch.tensor([1.0, 2.0, 3.0])
    counts = []
    for turns in (2, 8, 32):
        made.clear()
        program(x.clone(), torch.tensor(0.5), turns)
        counts.append(made.count("like"))
        assert made.count("alloc") == 1
    assert counts == [2, 4, 4]


def fakes() -> Any:
    folder = str(Path(__file__).parents[2] / "packages" / "ferrite-runtime" / "tests")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("runtime_fakes")


def engine_on(text: str, machine: Any, native: Any) -> CudaEngine:
    """Returns the engine for GPUs with a module's program, on a machine that interprets, for tensors on the host."""
    mapping = program_of(text.replace(" on cpu", " on cuda"))
    for body in (mapping, *mapping["graphs"]):
        for value in body["inputs"]:
            if value["kind"] == "tensor":
                value["device"] = "cpu"
    program = Program.from_mapping({**mapping, "device": "cpu"})
    return CudaEngine(program, fakes().FakeStreams().platform(), lambda index: machine, lambda: native)


CALLS = [
    (CHOICE, ([1.0, 2.0, 3.0, 0.0], [1.0, 1.0, 2.0, 5.0]), {}),
    (CHOICE, ([-1.0, -2.0, -3.0, 0.0], [1.0, 1.0, 2.0, 5.0]), {}),
    (LOOP, ([1.0, 2.0, 3.0], 0.5), {"m": 5}),
    (LOOP, ([1.0, 2.0], 0.5), {"m": 0}),
    (SEARCH, ([30.0, 0.25, 0.5, 0.0],), {}),
]


@pytest.mark.parametrize("way", ["sequences", "one by one"])
@pytest.mark.parametrize(("text", "inputs", "symbols"), CALLS)
def test_the_gpu_engine_calls_graphs(text: str, inputs: Any, symbols: dict[str, int], way: str) -> None:
    """Each graph has sequences of its own; the first call chooses configs for its kernels, too."""
    native = find_launcher(MemoryStore(), may_build=True) if way == "sequences" else None
    if way == "sequences" and native is None:
        pytest.skip("no C compiler here")
    machine = fakes().fake_machine()
    engine, device = engine_on(text, machine, native), torch.device("cpu", 0)
    expected = evaluate(parse_module(text), list(inputs), symbols=symbols)

    def given() -> list[Any]:
        return [*map(torch.tensor, inputs), *symbols.values()]

    assert values(engine.first(device)(given())) == expected
    host = engine.steady(device, lambda args: ())
    for _ in range(3):
        assert values(host(given())) == expected
    assert machine.driver.launches
