"""Kernels that differ in names alone: found to be equal, and written once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler.model.forms import LoopedReduction, RowColumnReduction
from ferrite_scheduler.model.identity import without_names
from ferrite_scheduler.model.schedule import Kernel, Launch, Schedule
from ferrite_triton import emit_program, program
from ferrite_triton.kernels import Emitted, emit_alternatives
from hand_written import make_kernel, schedule_text
from test_golden import GIVES, GOLDEN

SOFTMAX = """graph @f(x: f32[4, 100], b: f32[4]) -> (y) {
  m: f32[4] = reduce max [d0 < 4 | r0 < 100] add(x[d0, r0], b[d0])
  y: f32[4, 100] = loop [d0 < 4, r0 < 100] add(exp(sub(x[d0, r0], m[d0])), f32(0.0))
}"""
GATHER = """graph @f(x: f32[10, 4], i: i64[8]) -> (y) {
  y: f32[8, 4] = loop [d0 < 8, d1 < 4] x[wrap(i[d0], 10), d1]
}"""
ADD_AT = """graph @f(t: f32[10], i: i64[8], x: f32[8]) -> (u) {
  u: f32[10] = update add t [d0 < 8] at [wrap(i[d0], 10)] x[d0]
}"""


def kernel_of(text: str, form: str = "persistent") -> Kernel:
    return make_kernel(parse_graph(text), form)


def unsourced(emitted: Emitted) -> object:
    alternatives = [(conditions, replace(spec, origin=())) for conditions, spec in emitted.alternatives]
    return replace(emitted.spec, origin=()), alternatives


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_names_leave_no_trace_in_texts_and_specs(path) -> None:
    header, text = path.read_text().split(GIVES)[0].split("\n", 1)
    words = header.removeprefix("# kernel:").split()
    placed = {dim: axis for axis, dim in (word.split("=") for word in words[1:])}
    for kernel in schedule_text(text, words[0], placed).kernels:
        assert unsourced(emit_alternatives(without_names(kernel))) == unsourced(emit_alternatives(kernel))


@pytest.mark.parametrize(("text", "form"), [(SOFTMAX, "persistent"), (GATHER, "pointwise"), (ADD_AT, "pointwise")])
def test_other_names_make_no_other_kernel(text: str, form: str) -> None:
    names = {"x": "weights", "b": "shift", "m": "most", "y": "out", "i": "places", "t": "table", "u": "sums"}
    words = {name: new for name, new in names.items() if f"{name}: " in text}
    other = text
    for name, new in words.items():
        for before, after in ((f"{name}: ", f"{new}: "), (f"{name}[", f"{new}["), (f"({name})", f"({new})")):
            other = other.replace(before, after)
        other = other.replace(f"add {name} ", f"add {new} ")
    first, second = kernel_of(text, form), kernel_of(other, form)
    assert first != second
    assert without_names(first) == without_names(second)
    assert hash(without_names(first)) == hash(without_names(second))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f32(0.0)", "f32(-0.0)"),
        ("exp(", "log("),
        ("sub(x[d0, r0], m[d0])", "sub(m[d0], x[d0, r0])"),
        ("sub(x[d0, r0], m[d0])", "sub(x[d0, r0], b[d0])"),
        ("reduce max", "reduce min"),
        ("b: f32[4]", "b: f32[4]{2}"),
    ],
)
def test_anything_else_makes_another(before: str, after: str) -> None:
    assert before in SOFTMAX
    assert without_names(kernel_of(SOFTMAX)) != without_names(kernel_of(SOFTMAX.replace(before, after)))


def test_form_storage_and_places_count() -> None:
    kernel = kernel_of(SOFTMAX)
    for other in (
        replace(kernel, form=LoopedReduction()),
        replace(kernel, stored=("m", "y")),
        replace(kernel, homes={**kernel.homes, "m": kernel.homes["y"]}),
        replace(kernel, params=kernel.params[::-1]),
        replace(kernel, form=RowColumnReduction(2)),
    ):
        assert without_names(other) != without_names(kernel)


def test_a_program_writes_equal_kernels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[str] = []
    write = program._emit
    monkeypatch.setattr(program, "_emit", lambda kernel: emitted.append(kernel.name) or write(kernel))
    graph = parse_graph(SOFTMAX)
    other = kernel_of(SOFTMAX.replace("m: ", "n: ").replace("m[", "n["))
    kernels = (replace(kernel_of(SOFTMAX), name="first"), replace(other, name="second"))
    steps = (Launch(0, ("x", "b", "y")), Launch(1, ("x", "b", "y")))
    made = emit_program(Schedule(graph, kernels, steps, ("y",)))
    assert emitted == ["first"]
    assert len(made.kernels) == 1
    assert [step["kernel"] for step in made.steps] == [made.kernels[0].id] * 2
