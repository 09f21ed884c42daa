"""The shape-specialisation cache: its host functions compute the same, and there are only so many."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from ferrite_runtime import CheckFailed
from ferrite_runtime.engines import shape_cache
from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.engines.engine import build_host
from ferrite_runtime.engines.shape_cache import ShapeCache, write_entry
from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.expressions import evaluate, settle
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.sized_program import at_sizes, size_roots
from ferrite_runtime.formats.steps import Alloc, Check, Free, Launch, Output
from ferrite_runtime.host.product_library import find_products
from ferrite_runtime.host.thresholds import ShapeThresholds
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.store.interface import MemoryStore
from host.test_sequences import K, expected, given, layers
from runtime_fakes import FakeStreams, fake_machine
from runtime_kernels import scaled, tensor_input

torch = pytest.importorskip("torch")

LAUNCHER = find_launcher(MemoryStore(), may_build=True)
native = pytest.mark.skipif(LAUNCHER is None, reason="no C compiler here")
LET = {"do": "let", "name": "n", "value": {"size": ["x", 0]}}


# --- expressions ----------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")
OPERATORS = ("add", "mul", "min", "max", "sub", "floordiv", "ceildiv", "mod")
LEAVES = st.one_of(st.integers(-20, 20), st.sampled_from(NAMES))
EXPRS = st.recursive(LEAVES, lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner), max_leaves=8)
VALUES = st.fixed_dictionaries({name: st.integers(-20, 20) for name in NAMES})


@settings(deadline=None)
@drawn(EXPRS, VALUES, st.sets(st.sampled_from(NAMES)))
def test_a_settled_expression_has_the_same_value(expr, values: dict[str, int], known: set[str]) -> None:
    settled = settle(expr, {name: values[name] for name in known})
    try:
        wanted = evaluate(expr, values)
    except SpecError:
        with pytest.raises(SpecError, match="divides by zero"):
            evaluate(settled, values)
        return
    assert evaluate(settled, values) == wanted
    assert known < set(NAMES) or isinstance(settled, int)


# --- programs at known sizes ----------------------------------------------------------------------------------------


def launches_of(mapping: dict, **sizes: int) -> list[Launch]:
    steps = at_sizes(Program.from_mapping(mapping), sizes).steps
    return [step for step in steps if isinstance(step, Launch)]


def test_extents_and_strides_depend_on_inputs_and_what_these_tell() -> None:
    mapping = layers()
    assert size_roots(Program.from_mapping(mapping)) == ("n",)
    mapping["inputs"].pop()
    mapping["steps"].insert(0, LET)
    assert size_roots(Program.from_mapping(mapping)) == ("n",)
    mapping["inputs"][0]["shape"][0] = "rows"
    mapping["inputs"][0]["strides"][0] = "pitch"
    mapping["inputs"].append({"name": "half", "kind": "scalar", "dtype": "i64"})
    mapping["inputs"].append({"name": "other", "kind": "scalar", "dtype": "i64"})
    mapping["steps"].insert(1, {"do": "let", "name": "rows", "value": ["mul", "half", 2]})
    mapping["steps"].insert(1, {"do": "let", "name": "pitch", "value": {"stride": ["x", 0]}})
    assert size_roots(Program.from_mapping(mapping)) == ("half", "pitch")
    assert size_roots(Program.from_mapping(layers(5))) == (), "its scalar is no size of a tensor"


def test_nothing_but_numbers_is_left_of_known_sizes() -> None:
    mapping = layers()
    mapping["inputs"].pop()
    mapping["steps"][:0] = [LET, {"do": "let", "name": "all", "value": ["mul", "n", K]}]
    mapping["steps"][-1]["names"].append("all")
    mapping["outputs"] += [{"scalar": ["add", "n", 1]}, {"value": "n"}]
    known, numbers = at_sizes(Program.from_mapping(mapping), {"n": 5}), Program.from_mapping(layers(5))
    assert [step for step in known.steps if not isinstance(step, Free)] == [
        step for step in numbers.steps if not isinstance(step, Free)
    ]
    assert known.inputs == numbers.inputs[:2]
    assert known.outputs[1:] == (Output(scalar=6), Output(scalar=5))


def test_sizes_decide_which_kernel_is_launched() -> None:
    mapping = layers(count=1)
    few = scaled("few")
    mapping["kernels"].append(few)
    launch = next(step for step in mapping["steps"] if step["do"] == "launch")
    main = launch["kernel"]

    def chosen(n: int, *alternatives: tuple) -> list:
        launch["alternatives"] = [{"when": list(map(list, when)), "kernel": kernel} for when, kernel in alternatives]
        return [(one.kernel, one.alternatives) for one in launches_of(mapping, n=n)]

    twice = (["mul", "n", 2], 8)
    assert chosen(4, ((twice,), None)) == []
    assert chosen(5, ((twice,), None)) == [(main, ())]
    assert chosen(5, ((twice,), None), ((("n", 5),), few["id"])) == [(few["id"], ())]
    assert chosen(6, ((twice,), None), ((("n", 5),), few["id"])) == [(main, ())]
    assert chosen(4, ((("n", 3), twice), None)) == [(main, ())]


def in_two_forms() -> dict:
    """Returns a program of n rows whose result is made in one step, or in two for more than four; a third follows."""
    mapping = layers(count=1)
    flat = {"dtype": "f32", "shape": [["mul", "n", K]], "strides": [1]}
    short, long = [{"when": [["n", 4]], "kernel": None}], [{"when": [[["sub", 0, "n"], -5]], "kernel": None}]

    def launch(source: str, to: str, *alternatives: dict) -> dict:
        kernel = mapping["kernels"][0]["id"]
        args = [source, to, ["mul", "n", K], 2.0]
        return {"do": "launch", "kernel": kernel, "args": args, "alternatives": list(alternatives)}

    mapping["steps"] = [
        {"do": "alloc", "name": "part", **flat},
        launch("x", "part", *short),
        {"do": "view", "name": "seen", "base": "part", **flat, "offset": 0},
        {"do": "view", "name": "again", "base": "seen", **flat, "offset": 0},
        {"do": "alloc", "name": "whole", **flat},
        launch("again", "whole", *short),
        launch("x", "whole", *long),
        {"do": "free", "names": ["again", "seen"]},
        {"do": "reuse", "name": "third", "from": "part", **flat},
        launch("whole", "third"),
        {"do": "free", "names": ["whole"]},
    ]
    mapping["outputs"] = [{"value": "third"}]
    return mapping


def test_buffers_of_launches_that_sizes_leave_out_are_not_made() -> None:
    program = Program.from_mapping(in_two_forms())
    layout = Layout("f32", (4 * K,), (1,))
    whole, _, third, _, free = at_sizes(program, {"n": 4}).steps
    assert (whole, third, free) == (Alloc("whole", layout), Alloc("third", layout), Free(("whole",)))
    long = at_sizes(program, {"n": 5})
    assert [type(step) for step in long.steps] == [type(step) for step in program.steps if step != program.steps[6]]


def test_a_buffer_that_nothing_follows_on_is_not_made() -> None:
    mapping = in_two_forms()
    mapping["steps"][9]["args"][1] = "whole"
    mapping["outputs"] = [{"value": "whole"}]
    mapping["steps"][10]["names"] = ["third"]
    names = [getattr(step, "name", "") for step in at_sizes(Program.from_mapping(mapping), {"n": 4}).steps]
    assert names == ["whole", "", ""]


def test_data_dependent_sizes_stay_open() -> None:
    """Of two alternatives one is decided by an integer that the program reads, one by the sizes of the call."""
    mapping = layers(count=1)
    mapping["inputs"].append(tensor_input("length", [], "i64"))
    mapping["steps"].insert(0, {"do": "item", "name": "u", "from": "length", "dtype": "i64"})
    launch = next(step for step in mapping["steps"] if step["do"] == "launch")
    launch["alternatives"] = [
        {"when": [["n", 3], [["add", "u", "n"], 9]], "kernel": launch["kernel"]},
        {"when": [["n", 5]], "kernel": None},
    ]
    (one,) = launches_of(mapping, n=3)
    assert [other.when for other in one.alternatives] == [((3, 3), (("add", "u", 3), 9)), ((3, 5),)]
    assert launches_of(mapping, n=4) == []
    (one,) = launches_of(mapping, n=6)
    assert one.alternatives == ()


def test_checks_keep_what_they_say() -> None:
    mapping = layers(count=1)
    check = {"do": "check", "holds": ["le", "n", 3], "message": "model.py:3", "names": [["n", "n"]]}
    mapping["steps"].insert(0, check)
    made = at_sizes(Program.from_mapping(mapping), {"n": 4}).steps[0]
    assert made == Check(("le", 4, 3), "model.py:3", (("n", 4),))


# --- which sizes get a function -------------------------------------------------------------------------------------


def entry(front: ShapeCache, mapping: dict):
    names = {"_prepared": front.prepared, "_specialise": front}
    return build_host(write_entry(Program.from_mapping(mapping), ("n",)), names, torch.device("cpu"))


class Written:
    """Functions that return for which sizes they are; counts how often one is written."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, ...]] = []
        self.shape_cache = ShapeCache(lambda args: "usual", self.write)
        self.call = entry(self.shape_cache, layers(count=1))

    def write(self, sizes: tuple[int, ...]):
        self.sizes.append(sizes)
        return lambda args: sizes

    def at(self, n: int):
        return self.call([None, None, n])


def test_a_function_is_written_after_several_calls(monkeypatch) -> None:
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=3))
    written = Written()
    assert [written.at(n) for n in (5, 6, 5, 5, 5, 6, 7)] == ["usual"] * 4 + [(5,), "usual", "usual"]
    assert written.sizes == [(5,)]
    assert [written.at(6) for _ in range(2)] == ["usual", (6,)]


def test_there_are_only_so_many_and_the_oldest_goes(monkeypatch) -> None:
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=1, calls_when_full=4, functions=2))
    written = Written()
    for n in (5, 6, 7, 7, 7):
        written.at(n)
    assert list(written.shape_cache.prepared) == [(5,), (6,)]
    written.at(7)
    assert list(written.shape_cache.prepared) == [(6,), (7,)]
    assert [written.at(n) for n in (5, 6, 7)] == ["usual", (6,), (7,)]


def test_sizes_that_keep_changing_get_no_function(monkeypatch) -> None:
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=2, counted=8))
    written = Written()
    for n in [*range(9), *range(9), *range(9)]:
        assert written.at(n) == "usual"
    assert written.sizes == []


def test_sizes_are_read_from_scalars_and_tensors() -> None:
    mapping = layers(count=1)
    mapping["inputs"].pop()
    mapping["steps"].insert(0, LET)
    seen: list[tuple[int, ...]] = []
    front = ShapeCache(lambda args: (), lambda sizes: lambda args: ())
    front.prepared = type("Seen", (dict,), {"get": lambda self, sizes: seen.append(sizes)})()
    entry(front, mapping)([torch.empty(7, K), None])
    assert seen == [(7,)]


def test_sizes_whose_function_cannot_be_written_go_on_with_that_for_all(monkeypatch, caplog) -> None:
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=2))
    tries: list[tuple[int, ...]] = []

    def write(sizes: tuple[int, ...]):
        tries.append(sizes)
        raise KeyError("a defect")

    call = entry(ShapeCache(lambda args: "usual", write), layers(count=1))
    assert [call([None, None, n]) for n in (5, 5, 5, 5, 6)] == ["usual"] * 5
    assert tries == [(5,)]
    assert "sizes (5,)" in caplog.text
    assert "a defect" in caplog.text


def test_threads_write_each_function_once(monkeypatch) -> None:
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=20))
    written = Written()
    barrier = threading.Barrier(4)

    def run() -> set:
        barrier.wait()
        return {written.at(n) for _ in range(40) for n in (5, 6, 7)}

    with ThreadPoolExecutor(4) as pool:
        found = set().union(*(job.result() for job in [pool.submit(run) for _ in range(4)]))
    assert found == {"usual", (5,), (6,), (7,)}
    assert sorted(written.sizes) == [(5,), (6,), (7,)]


# --- what they compute ----------------------------------------------------------------------------------------------


def entry_of(mapping: dict, inputs: list):
    machine = fake_machine()
    engine = CudaEngine(
        Program.from_mapping(mapping), FakeStreams().platform(), lambda index: machine, lambda: LAUNCHER, find_products
    )
    device = torch.device("cpu", 0)
    engine.first(device)(list(inputs))
    return engine.steady(device, lambda args: None)


def prepared(host) -> dict:
    return host.__globals__["_prepared"]


@native
def test_functions_of_interleaved_sizes_compute_the_same(monkeypatch) -> None:
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=2, calls_when_full=3, functions=3))
    host = entry_of(layers(), given(5))
    seen = set()
    for n in (5, 8, 0, 1, 33) * 8:
        x, w, _ = inputs = given(n)
        (found,) = host(inputs)
        assert inputs == [], "a caller's list is emptied by each"
        assert torch.equal(found, expected(x, w)), n
        assert len(prepared(host)) <= 3
        seen.update(prepared(host))
    assert seen == {(5,), (8,), (0,), (1,), (33,)}


@native
def test_known_sizes_need_one_allocation_and_one_prepared_sequence(monkeypatch) -> None:
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=1))
    host = entry_of(layers(), given(5))
    host(given(5))
    (made,) = prepared(host).values()
    calls = [name for name in made.__code__.co_names if name.startswith(("_run", "_plan", "_aten", "_empty"))]
    assert calls == ["_empty", "_run0"]


@native
def test_a_check_fails_as_it_does_at_sizes_that_are_new(monkeypatch) -> None:
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=2))
    mapping = layers()
    check = {"do": "check", "holds": ["le", "n", 6], "message": "model.py:3: few rows", "names": [["rows", "n"]]}
    mapping["steps"].insert(0, check)
    host = entry_of(mapping, given(5))
    for _ in range(5):
        with pytest.raises(CheckFailed, match=r"model.py:3: few rows: rows is 7"):
            host(given(7))
    assert (7,) in prepared(host)
    x, w, _ = inputs = given(6)
    assert torch.equal(host(inputs)[0], expected(x, w))


@native
def test_threads_with_other_sizes_do_not_disturb_each_other(monkeypatch) -> None:
    """Functions come and go while others run."""
    monkeypatch.setattr(shape_cache, "SHAPES", ShapeThresholds(calls=1, calls_when_full=1, functions=2))
    host = entry_of(layers(), given(5))
    host(given(5))

    def run(first: int) -> int:
        right = 0
        for n in [first, first + 1, first, first + 2] * 6:
            x, w, _ = inputs = given(n)
            right += torch.equal(host(inputs)[0], expected(x, w))
        return right

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, (1, 2, 3))) == [24] * 3
    assert len(prepared(host)) <= 2
