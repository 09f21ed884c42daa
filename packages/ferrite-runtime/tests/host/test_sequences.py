"""Programs whose sizes a call gives: whole sequences at all sizes, and less memory held at large ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ferrite_runtime.host.deferred_release
import ferrite_runtime.host.host_function
from ferrite_runtime.engines.cuda_engine import CudaEngine
from ferrite_runtime.engines.sequence_function import Later
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.host.host_function import LARGE_FALLBACK
from ferrite_runtime.host.layout_bytes import bytes_of, lengths_of
from ferrite_runtime.host.product_library import find_products
from ferrite_runtime.host.thresholds import MemoryThresholds
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.store.interface import MemoryStore
from runtime_fakes import FakeStreams, fake_machine
from runtime_kernels import program, scaled, tensor_input

torch = pytest.importorskip("torch")

LAUNCHER = find_launcher(MemoryStore(), may_build=True)
pytestmark = pytest.mark.skipif(LAUNCHER is None, reason="no C compiler here")

K = 6
COUNTS = (5, 0, 1, 2, 3, 7, 31, 32, 33, 64, 5)


def mm(left: str, right: str, result: str) -> dict:
    args = [{"ref": left}, {"ref": right}]
    return {"do": "extern", "target": "aten.mm.default", "args": args, "kwargs": {}, "results": [result]}


def layers(n: int | str = "n", device: str = "cpu", count: int = 3) -> dict:
    """Returns ``x = 2 (x w)`` of n rows, several times over; each step frees what is not needed any more."""
    kernel = scaled()
    size = n * K if isinstance(n, int) else ["mul", n, K]
    rows = {"dtype": "f32", "shape": [n, K], "strides": [K, 1]}
    flat = {"dtype": "f32", "shape": [size], "strides": [1]}
    steps: list[dict] = []
    last = "x"
    for layer in range(count):
        made, view, doubled, whole = (f"{name}{layer}" for name in ("made", "view", "doubled", "whole"))
        steps += [
            mm(last, "w", made),
            {"do": "view", "name": view, "base": made, **flat, "offset": 0},
            {"do": "alloc", "name": doubled, **flat},
            {"do": "launch", "kernel": kernel["id"], "args": [view, doubled, size, 2.0]},
            {"do": "view", "name": whole, "base": doubled, **rows, "offset": 0},
            {"do": "free", "names": [last, made, view, doubled]},
        ]
        last = whole
    inputs = [
        {"name": "x", "kind": "tensor", **rows, "device": device},
        tensor_input("w", [K, K], device=device),
        {"name": "n", "kind": "scalar", "dtype": "i64"},
    ]
    return program(inputs, [kernel], steps, [{"value": last}], device)


def expected(x, w, count: int = 3):
    for _ in range(count):
        x = 2 * torch.mm(x, w)
    return x


def steady(mapping: dict | Program, inputs: list):
    machine, given = fake_machine(), mapping if isinstance(mapping, Program) else Program.from_mapping(mapping)
    engine = CudaEngine(given, FakeStreams().platform(), lambda index: machine, lambda: LAUNCHER, find_products)
    device = torch.device("cpu", 0)
    engine.first(device)(list(inputs))
    return usual(engine.steady(device, lambda args: None))


def usual(host):
    """Returns the function for sizes that do not recur."""
    return host.__globals__["_specialise"].usual if "_specialise" in host.__globals__ else host


def given(n: int) -> list:
    return [torch.randn(n, K), torch.randn(K, K), n]


def calls_in(host) -> list[str]:
    return [name for name in host.__code__.co_names if name.startswith(("_run", "_plans", "_aten", "_empty"))]


def large_fallback(host) -> Later:
    return host.__globals__[LARGE_FALLBACK]


def check(host) -> None:
    for n in COUNTS:
        for _ in range(3):  # launched one by one, prepared, by the sequence
            x, w, _ = inputs = given(n)
            (found,) = host(list(inputs))
            assert torch.equal(found, expected(x, w)), n


def test_small_calls_are_one_sequence_on_one_allocation() -> None:
    host = steady(layers(), given(5))
    assert calls_in(host) == ["_empty", "_plans0"]
    check(host)
    assert large_fallback(host)._host is None


def limit(monkeypatch: pytest.MonkeyPatch, **thresholds: int) -> None:
    """Has host functions tell large calls, and free memory, by other numbers of bytes."""
    for module in (ferrite_runtime.host.host_function, ferrite_runtime.host.deferred_release):
        monkeypatch.setattr(module, "MEMORY", MemoryThresholds(**thresholds))


def test_larger_calls_allocate_one_by_one_and_yet_larger_ones_free_early(monkeypatch) -> None:
    host = steady(layers(), given(5))
    small = host.__code__.co_names
    limit(monkeypatch, arena=3 * 2 * (31 * K * 4 + 512), deferred_of_lengths=5 * 32 * K * 4)
    host = steady(layers(), given(5))
    assert host.__code__.co_names == small
    check(host)
    middle = large_fallback(host)._host
    assert middle is not None, "for 32 rows"
    assert calls_in(middle) == ["_empty", "_plans0"]
    sized = large_fallback(middle)._host
    assert sized is not None, "for 33"
    assert calls_in(sized) == calls_in(middle), "all that dies is small at 33 rows"


def test_calls_that_are_larger_by_far_free_what_is_large_early(monkeypatch) -> None:
    """Functions are written for the sizes of the first call that needs them."""
    limit(monkeypatch, arena=0, deferred_of_lengths=2 * 10 * K * 4, deferred=10 * K * 4)
    host = steady(layers(), given(5))

    def starts(n: int) -> tuple[int, int]:
        """Returns the number of functions there are after a call, and how often the last one starts what waits."""
        found, level = host, 0
        for _ in range(2):
            x, w, _ = inputs = given(n)
            assert torch.equal(host(list(inputs))[0], expected(x, w)), n
        while LARGE_FALLBACK in found.__globals__ and large_fallback(found)._host is not None:
            found, level = large_fallback(found)._host, level + 1
        return level, len([name for name in calls_in(found) if name.startswith("_plans")])

    assert starts(2) == (1, 1)
    assert starts(4) == (2, 2)
    assert starts(39) == (3, 3)
    assert starts(4000) == (3, 3), "it puts nothing off, whatever the size"


def test_what_is_held_by_others_does_not_make_a_call_large(monkeypatch) -> None:
    """Weights count as put off too, since nobody says that the caller keeps them."""
    mapping = layers()
    mapping["steps"][5]["names"].append("w")
    mapping["steps"][6]["args"][1] = mapping["steps"][12]["args"][1] = {"ref": "v"}
    mapping["inputs"].insert(2, tensor_input("v", [K, K]))
    limit(monkeypatch, arena=0, deferred=K * K * 4)
    x, w, v, _ = inputs = [torch.randn(4, K), torch.randn(K, K), torch.randn(K, K), 4]
    host = steady(mapping, inputs)
    (found,) = host(list(inputs))
    assert torch.equal(found, expected(expected(x, w, 1), v, 2))
    middle = large_fallback(host)._host
    assert calls_in(middle) == ["_empty", "_plans0"]
    assert large_fallback(middle)._host is None


def test_each_call_goes_where_its_sizes_belong(monkeypatch) -> None:
    limit(monkeypatch, arena=3 * 2 * (31 * K * 4 + 512))
    host = steady(layers(), given(5))
    host(given(31))
    assert large_fallback(host)._host is None
    host(given(32))
    assert large_fallback(host)._host is not None
    x, w, _ = inputs = given(31)
    assert torch.equal(host(list(inputs))[0], expected(x, w))


def with_large_result(rows: int) -> dict:
    """Returns three layers of 20 rows, whose values die late, and a result of so many rows that is added up of all."""
    mapping = layers(20)
    flat = {"dtype": "f32", "shape": [rows * K], "strides": [1]}
    last = mapping["outputs"][0]["value"]
    mapping["steps"] += [
        {"do": "alloc", "name": "large", **flat},
        {"do": "launch", "kernel": mapping["steps"][3]["kernel"], "args": [last, "large", 20 * K, 1.0]},
    ]
    mapping["outputs"] = [{"value": last}, {"value": "large"}]
    return mapping


@pytest.mark.parametrize(("rows", "raised", "starts"), [(1000, 256, 2), (1000, 1 << 20, 1), (1000, 480, 1)])
def test_what_dies_late_adds_nothing_to_the_largest_result(monkeypatch, rows: int, raised: int, starts: int) -> None:
    limit(monkeypatch, arena=0, raised=raised)
    host = steady(with_large_result(rows), given(20))
    x, w, _ = inputs = given(20)
    found, large = host(list(inputs))
    assert torch.equal(found, expected(x, w))
    assert torch.equal(large[: 20 * K].view(20, K), found)
    assert len([name for name in calls_in(host) if name.startswith(("_plans", "_run"))]) == starts


@pytest.mark.parametrize("n", [5, "n"])
def test_an_error_of_a_library_call_between_sequences_has_a_note_of_its_line(n: int | str, monkeypatch) -> None:
    mapping, failing = (
        layers(n),
        mm("x", "w", "y") | {"target": "captured.fail.1", "origin": ["mine.fail (model.py:3)"]},
    )
    mapping["steps"][6:6] = [{"do": "extern", "target": "aten.neg.default", "args": [{"ref": "w"}], "kwargs": {}}]
    mapping["steps"][6] |= {"results": [None], "origin": ["aten.neg (model.py:2)"]}
    (last,) = mapping["outputs"]
    mapping["steps"].append(mm(last["value"], "w", "y") | failing | {"args": [{"ref": last["value"]}]})
    calls = []

    def fail(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        calls.append(x)
        if len(calls) > 1:
            raise ValueError("not today")
        return (x,)

    program = replace(Program.from_mapping(mapping), captured={"captured.fail.1": fail})
    limit(monkeypatch, arena=4 << 10, deferred_of_lengths=4 << 10)
    host = steady(program, given(5))
    for count in (5, 500) if n == "n" else (5,):
        with pytest.raises(ValueError, match="not today") as caught:
            host(given(count))
        assert caught.value.__notes__ == ["while mine.fail (model.py:3) ran as a step of a compiled graph"]
    assert n == 5 or large_fallback(host)._host is not None


def test_a_program_of_known_sizes_has_one_function() -> None:
    host = steady(layers(5), given(5))
    assert LARGE_FALLBACK not in host.__globals__
    x, w, _ = inputs = given(5)
    assert torch.equal(host(list(inputs))[0], expected(x, w))


def test_lengths_are_extents_of_inputs_that_are_known_at_the_start() -> None:
    mapping = layers()
    assert lengths_of(Program.from_mapping(mapping)) == {"n"}
    mapping["inputs"].pop()
    mapping["steps"].insert(0, {"do": "let", "name": "n", "value": {"size": ["x", 0]}})
    assert lengths_of(Program.from_mapping(mapping)) == {"n"}
    host = steady(mapping, given(5)[:2])
    for n in (5, 5, 5, 0, 8, 8):
        x, w, _ = given(n)
        assert torch.equal(host([x, w])[0], expected(x, w))


@pytest.mark.parametrize(
    ("shape", "strides", "found"),
    [
        (("n", 6), (6, 1), {("n",): 24}),
        ((6, "n"), (1, 6), {("n",): 24}),
        (("m", 2, "n", 8), (("mul", "n", 48), 8, 48, 1), {("m", "n"): 192}),
        ((3, 0), (1, 1), {}),
        ((3, 4), (8, 1), {(): 80}),
        (("u",), (1,), None),
        (("n",), ("u",), None),
    ],
)
def test_bytes_are_at_most_those_to_the_last_element(shape: tuple, strides: tuple, found: dict | None) -> None:
    assert bytes_of(Layout("f32", shape, strides), frozenset("mn")) == found
