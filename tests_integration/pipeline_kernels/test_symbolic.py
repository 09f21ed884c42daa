"""Programs with symbolic sizes: compiled once, right at every size, whatever the hint was."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ferrite_ir import PIPELINE, evaluate, require_valid
from ferrite_ir.text.parser import parse_graph
from ferrite_runtime import InputError, LoadedProgram, Program, load_program
from ferrite_runtime.engines import shape_cache
from ferrite_runtime.engines.bucketed_sequence import Plans
from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.host.thresholds import ShapeThresholds
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.store.interface import MemoryStore
from ferrite_scheduler import schedule
from ferrite_scheduler.simulation.simulator import simulate
from ferrite_triton import emit_program

STORE = MemoryStore()
WIDE = "n: size >= 1 ~ 16, m: size >= 1 ~ 64"
GRAPHS = {
    "rows": """graph @f(x: f32[n, 24]) -> (y) on cpu where n: size >= 1 {
      y: f32[n, 24] = loop [i < n, j < 24] mul(exp(x[i, j]), f32(2.0))
    }""",
    "softmax": f"""graph @f(x: f32[n, m], w: f32[m]) -> (y, c) on cpu where {WIDE} {{
      m1: f32[n]  = reduce max [i < n | j < m] x[i, j]
      e: f32[n, m] = loop [i < n, j < m] exp(sub(x[i, j], m1[i]))
      s: f32[n]   = reduce sum [i < n | j < m] e[i, j]
      y: f32[n, m] = loop [i < n, j < m] mul(w[j], div(e[i, j], s[i]))
      c: f32[m]   = reduce sum [j < m | i < n] e[i, j]
    }}""",
    "views": f"""graph @f(x: f32[n, m]) -> (y, s, t) on cpu where {WIDE} {{
      v: f32[m, n] = loop [i < m, j < n] mul(x[j, i], f32(2.0))
      w: f32[n*m]  = loop [i < n*m] v[i // n, i % n]
      y: f32[n, m] = loop [i < n, j < m] masked(lt(index.i64(j), index.i64(m - 1)), x[i, j + 1], f32(0.0))
      s: f32[]     = reduce sum [ | r < n*m] w[r]
      t: f32[2*n]  = loop [i < 2*n] x[i % n, 0]
    }}""",
    "cat": f"""graph @f(x: f32[n, 8], z: f32[m, 8]) -> (y) on cpu where {WIDE} {{
      y: f32[n + m, 8] = loop [i < n + m, j < 8]
        let before = lt(index.i64(i), index.i64(n))
        where(before, masked(before, x[i, j], f32(0.0)), masked(logical_not(before), z[i - n, j], f32(0.0)))
    }}""",
    "moments": f"""graph @f(x: f32[n, m]) -> (a, b, c) on cpu where {WIDE} {{
      a: f32[n], b: f32[n], c: f32[n] = reduce welford [i < n | j < m] x[i, j]
    }}""",
    "scan": f"""graph @f(x: f32[n, m]) -> (y) on cpu where {WIDE} {{
      y: f32[n, m] = scan sum [i < n, j < m] along j x[i, j]
    }}""",
    "best": f"""graph @f(x: f32[n, m]) -> (a, b) on cpu where {WIDE} {{
      a: f32[n], b: i64[n] = reduce argmax [i < n | j < m] (x[i, j], index.i64(j))
    }}""",
    "scatter": f"""graph @f(x: f32[m], k: i64[n], v: f32[n]) -> (y) on cpu where {WIDE} {{
      c: f32[m] = loop [i < m] x[i]
      y: f32[m] = update add c [i < n] at [wrap(k[i], m)] v[i]
    }}""",
    "heads": f"""graph @f(x: f32[n, m, 24]) -> (y) on cpu where {WIDE} {{
      h: f32[n, 3, m, 8] = loop [b < n, h < 3, i < m, d < 8] x[b, i, h*8 + d]
      y: f32[n*m, 24] = loop [i < n*m, j < 24] relu(h[i // m, j // 8, i % m, j % 8])
    }}""",
}


def loaded(text: str) -> LoadedProgram:
    graph = parse_graph(text)
    require_valid(graph)
    return load_program(emit_program(schedule(PIPELINE.run(graph))).to_mapping())


def made_inputs(text: str, values: dict[str, int]) -> list[torch.Tensor]:
    inputs = []
    for value in parse_graph(text).inputs:
        shape = [size if type(size) is int else values[str(size)] for size in value.type.shape]
        given = torch.randn(shape)
        inputs.append(torch.randint(-values["m"], values["m"], shape) if value.type.dtype.is_integer else given)
    return inputs


def expected(text: str, inputs: list[torch.Tensor]) -> list[Any]:
    return [torch.tensor(result) for result in evaluate(parse_graph(text), [x.tolist() for x in inputs])]


@pytest.mark.parametrize("name", GRAPHS)
def test_one_program_is_right_at_every_size(name: str) -> None:
    program = loaded(GRAPHS[name])
    for n, m in [(1, 1), (2, 2), (3, 7), (65, 3), (2, 130), (17, 16), (5, 64)]:
        inputs = made_inputs(GRAPHS[name], {"n": n, "m": m})
        want = expected(GRAPHS[name], inputs)
        for got, reference in zip(program(*inputs), want, strict=True):
            torch.testing.assert_close(got, reference.to(got.dtype), rtol=1e-4, atol=1e-4, msg=f"{n=} {m=}")


@pytest.mark.parametrize("hint", [1, 2, 31, 64, 4096])
@pytest.mark.parametrize("name", ["softmax", "views", "cat", "heads"])
def test_no_hint_decides_what_is_right(name: str, hint: int) -> None:
    text = GRAPHS[name].replace("~ 16", f"~ {hint}").replace("~ 64", "~ 3")
    plan = schedule(PIPELINE.run(parse_graph(text)))
    for n, m in itertools.product((1, 2, 5), (1, 3)):
        inputs = made_inputs(text, {"n": n, "m": m})
        got = simulate(plan, [x.tolist() for x in inputs])
        for found, reference in zip(got, expected(text, inputs), strict=True):
            torch.testing.assert_close(torch.tensor(found), reference, rtol=1e-5, atol=1e-5)


def test_a_row_that_a_tile_holds_has_each_exponential_once() -> None:
    text = """graph @f(x: f32[n, m]) -> (y) on cpu where n: size >= 1 ~ 16, m: size >= 1 ~ 64 {
      m1: f32[n]  = reduce max [i < n | j < m] x[i, j]
      e: f32[n, m] = loop [i < n, j < m] exp(sub(x[i, j], m1[i]))
      s: f32[n]   = reduce sum [i < n | j < m] e[i, j]
      y: f32[n, m] = loop [i < n, j < m] div(e[i, j], s[i])
    }"""
    kernels = emit_program(schedule(PIPELINE.run(parse_graph(text)))).kernels
    counts = {kernel.form: kernel.source.count("fmath.exp(") for kernel in kernels}
    assert counts["persistent"] == 1
    assert counts["looped"] > 1


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_compile_for_sm90(name: str, compile_sm90: Callable[..., list[Any]]) -> None:
    assert compile_sm90(emit_program(schedule(PIPELINE.run(parse_graph(GRAPHS[name])))))


def fakes() -> Any:
    folder = str(Path(__file__).parents[2] / "packages" / "ferrite-runtime" / "tests")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("runtime_fakes")


CALLS = ((16, 64), (3, 7), (16, 64), (65, 3), (2, 130), (32, 16), (33, 17), (3, 7), (2, 130))


WAYS = ("sequences", "known sizes")
"""Native sequences looked up by buckets, and those of functions that are written for each combination of sizes."""
LAUNCHERS = [*((name, way) for name in GRAPHS for way in WAYS), ("rows", "one by one"), ("softmax", "one by one")]


@pytest.mark.parametrize(("name", "launcher"), LAUNCHERS)
def test_the_gpu_engine_keeps_a_build_for_each_bucket(
    name: str, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine for GPUs runs with a driver that interprets, so what is launched with which blocks is real."""
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=1 if launcher == "known sizes" else 1000))
    native = None if launcher == "one by one" else find_launcher(STORE, may_build=True)
    if launcher in WAYS and native is None:
        pytest.skip("no C compiler here")
    pool = fakes().FakePool()
    machine = fakes().fake_machine(pool=pool)
    engine = engine_on(GRAPHS[name], machine, native)
    device = torch.device("cpu", 0)
    engine.device_kernels(0)
    assert all(job.spec.index_width == 32 for job in pool.jobs), "what is not expected is not compiled at load"
    engine.first(device)(made_inputs(GRAPHS[name], {"n": 16, "m": 64}))
    host = engine.steady(device, lambda args: ())
    for n, m in CALLS:
        inputs = made_inputs(GRAPHS[name], {"n": n, "m": m})
        want = expected(GRAPHS[name], inputs)
        for got, reference in zip(host(list(inputs)), want, strict=True):
            torch.testing.assert_close(got, reference.to(got.dtype), rtol=1e-4, atol=1e-4, msg=f"{n=} {m=}")
    compiled = len(pool.jobs)
    host(made_inputs(GRAPHS[name], {"n": 33, "m": 17}))
    assert len(pool.jobs) == compiled
    assert any(job.divisors for job in pool.jobs), "sizes that are multiples of 16 are promised"


def engine_on(text: str, machine: Any, native: Any) -> CudaEngine:
    """Returns the engine for GPUs with a graph's program, on a machine that interprets, for tensors on the host."""
    mapping = emit_program(schedule(PIPELINE.run(parse_graph(text.replace(" on cpu ", " on cuda "))))).to_mapping()
    for value in mapping["inputs"]:
        value["device"] = "cpu"
    program = Program.from_mapping({**mapping, "device": "cpu"})
    return CudaEngine(program, fakes().FakeStreams().platform(), lambda index: machine, lambda: native)


def test_a_new_size_in_a_known_bucket_is_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    native = find_launcher(STORE, may_build=True)
    if native is None:
        pytest.skip("no C compiler here")
    machine = fakes().fake_machine()
    engine = engine_on(GRAPHS["softmax"], machine, native)
    device = torch.device("cpu", 0)
    engine.first(device)(made_inputs(GRAPHS["softmax"], {"n": 16, "m": 64}))
    host = engine.steady(device, lambda args: ())
    host(made_inputs(GRAPHS["softmax"], {"n": 17, "m": 35}))
    launched = len(machine.driver.launches)

    def refuse(*args: Any) -> None:
        raise AssertionError("prepared again")

    monkeypatch.setattr(Plans, "__call__", refuse)
    for n, m in ((18, 38), (31, 63), (19, 50)):
        inputs = made_inputs(GRAPHS["softmax"], {"n": n, "m": m})
        want = expected(GRAPHS["softmax"], inputs)
        for got, reference in zip(host(list(inputs)), want, strict=True):
            torch.testing.assert_close(got, reference, rtol=1e-4, atol=1e-4, msg=f"{n=} {m=}")
    assert len(machine.driver.launches) == launched + 3 * 2
    with pytest.raises(AssertionError, match="prepared again"):
        host(made_inputs(GRAPHS["softmax"], {"n": 18, "m": 65}))


SUMS = """graph @f(x: f32[n, m]) -> (c, s) on cpu where n: size >= 0 ~ 2, m: size >= 0 ~ 3 {
  a: f32[m] = reduce sum [j < m | i < n] x[i, j]
  c: f32[m] = loop [j < m] mul(a[j], f32(2.0))
  s: f32[]  = reduce max [ | i < n, j < m] x[i, j]
}"""
SUM_SIZES = ((2, 3), (1, 1), (0, 3), (7, 2), (4508, 3), (4509, 3), (9560, 3), (9561, 3), (8191, 2), (3, 1700), (31, 3))


@pytest.mark.parametrize("launcher", ["interpreter", "one by one", *WAYS])
def test_reductions_in_two_forms(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel does the work of two up to a length; what is not launched is no part of a native sequence."""
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=1 if launcher == "known sizes" else 1000))
    machine = fakes().fake_machine()
    if launcher == "interpreter":
        program = loaded(SUMS)
        first = steady = lambda inputs: program(*inputs)
    else:
        native = find_launcher(STORE, may_build=True) if launcher in WAYS else None
        if launcher in WAYS and native is None:
            pytest.skip("no C compiler here")
        engine = engine_on(SUMS, machine, native)
        first = engine.first(torch.device("cpu", 0))
        steady = None
    for n, m in (*SUM_SIZES, *SUM_SIZES):
        x = torch.randn(n, m)
        before = len(machine.driver.launches)
        c, s = (steady or first)([x])
        torch.testing.assert_close(c, x.sum(0) * 2, rtol=1e-4, atol=1e-3)
        assert s == (x.amax() if n else -torch.inf)
        if steady is None:
            steady = engine.steady(torch.device("cpu", 0), lambda args: ())
        elif launcher != "interpreter":
            is_split = (n > 4508 and m < 1689) + (n * m > 28681)
            assert len(machine.driver.launches) - before == 2 + is_split, (n, m)


def test_addresses_that_are_less_aligned_take_another_build() -> None:
    """What a symbolic slice starts at is known at the call only."""
    text = """graph @f(x: f32[n, 8], z: f32[n, 8]) -> (y) on cpu where n: size >= 1 ~ 16 {
      y: f32[n, 8] = loop [i < n, j < 8] add(x[i, j], z[i, j])
    }"""
    for native in (None, find_launcher(STORE, may_build=True)):
        machine = fakes().fake_machine()
        engine = engine_on(text, machine, native)
        device = torch.device("cpu", 0)
        z = torch.randn(16, 8)
        engine.first(device)([z, z])
        host = engine.steady(device, lambda args: ())
        for start in (0, 1, 4):
            x = torch.randn(16 * 8 + 8)[start : start + 16 * 8].view(16, 8)
            torch.testing.assert_close(host([x, z])[0], x + z)
        assert [aligned for _, _, aligned, *_ in machine.driver.launches[-3:]] == [True, False, True]


def test_a_short_symbolic_row_is_held_in_one_tile() -> None:
    program = emit_program(schedule(PIPELINE.run(parse_graph(GRAPHS["softmax"])))).to_mapping()
    forms = {kernel["id"]: kernel["form"] for kernel in program["kernels"]}
    launch = next(step for step in program["steps"] if step["do"] == "launch")
    assert [forms[other["kernel"]] for other in launch["alternatives"]] == ["persistent", "looped", "looped"]
    assert launch["alternatives"][0]["when"][0] == ["m", 8192]
    assert launch["expected"] == 0


def test_a_wide_kernel_stands_by() -> None:
    program = emit_program(schedule(PIPELINE.run(parse_graph(GRAPHS["rows"])))).to_mapping()
    (launch,) = [step for step in program["steps"] if step["do"] == "launch"]
    widths = {kernel["id"]: kernel["index_width"] for kernel in program["kernels"]}
    assert widths[launch["kernel"]] == 64
    assert [widths[other["kernel"]] for other in launch["alternatives"]] == [32]


def test_inputs_are_checked_against_each_other() -> None:
    program = loaded(GRAPHS["softmax"])
    with pytest.raises(InputError, match=r"input 'w'.*has shape \(5,\), got \(4,\)"):
        program(torch.randn(3, 5), torch.randn(4))
    with pytest.raises(InputError, match="has 2 axes, got 1"):
        program(torch.randn(3), torch.randn(4))
