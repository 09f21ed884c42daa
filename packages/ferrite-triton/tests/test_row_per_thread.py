"""Short rows of odd sizes, of which each thread has one: when, and how their positions are written."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ferrite_triton import KernelSpec, emit_program
from ferrite_triton.analysis import row_per_thread
from ferrite_triton.analysis.lowering_policy import LOWERING
from hand_written import schedule_text

SOFTMAX = """graph @f(x: {type}[{shape}]) -> (y) {{
  m: f32[777] = reduce max [d0 < 777 | r0 < {points}] cast.f32(x[{place}])
  s: f32[777] = reduce sum [d0 < 777 | r0 < {points}] exp(sub(cast.f32(x[{place}]), m[d0]))
  y: f32[777, {points}] = loop [d0 < 777, r0 < {points}] div(exp(sub(cast.f32(x[{place}]), m[d0])), s[d0])
}}"""


@pytest.fixture(autouse=True)
def few_rows_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_per_thread, "LOWERING", replace(LOWERING, least_thread_rows=100))


def test_few_rows_are_shared_by_the_threads_of_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert softmax("bf16", 33).facts.to_mapping()["row_per_thread"]
    monkeypatch.setattr(row_per_thread, "LOWERING", replace(LOWERING, least_thread_rows=778))
    assert "row_per_thread" not in softmax("bf16", 33).facts.to_mapping()


def softmax(element: str, points: int, shape: str = "777, {}", place: str = "d0, r0") -> KernelSpec:
    text = SOFTMAX.format(type=element, points=points, shape=shape.format(points), place=place)
    return emit_program(schedule_text(text, "persistent")).kernels[0]


def test_what_is_read_hides_its_neighbours_and_what_is_stored_shows_them() -> None:
    source = softmax("bf16", 33).source
    assert "    position = tl.arange(0, RBLOCK)[None, :]\n" in source
    assert re.search(r"    (\w+) = fmath\.opaque_indices\(tl\.arange\(0, RBLOCK\)\)\n    r = \1\[None, :\]\n", source)
    read = next(line for line in source.splitlines() if "fmath.load_rows(in0 + " in line)
    stored = next(line for line in source.splitlines() if "tl.store(out0 + " in line)
    assert "= x * 33 + r\n" in source
    assert "= x * 33 + position\n" in source
    for line, place in ((read, "x * 33 + r"), (stored, "x * 33 + position")):
        (name,) = (each.split()[0] for each in source.splitlines() if each.endswith(f" = {place}"))
        assert f"0 + {name}, " in line


def test_without_a_store_along_the_row_there_is_one_name_for_its_positions() -> None:
    text = "graph @f(x: f32[777, 7]) -> (y) {\n  y: f32[777] = reduce sum [d0 < 777 | r0 < 7] x[d0, r0]\n}"
    spec = emit_program(schedule_text(text, "persistent")).kernels[0]
    assert spec.facts.to_mapping()["row_per_thread"]
    assert "position" not in spec.source


@pytest.mark.parametrize(
    ("element", "points", "row_per_thread"),
    [
        ("bf16", 3, True),
        ("bf16", 6, True),
        ("bf16", 43, True),
        ("f32", 21, True),
        ("i8", 63, True),
        ("bf16", 8, False),
        ("bf16", 12, False),
        ("bf16", 45, True),
        ("bf16", 63, True),
        ("f32", 6, False),
        ("f32", 33, True),
        ("f32", 35, False),
        ("f64", 5, False),
        ("i8", 65, False),
    ],
)
def test_sizes(element: str, points: int, *, row_per_thread: bool) -> None:
    """No power of two, no multiple of eight bytes, 64 elements and 132 bytes at most: two numbers are reduced."""
    spec = softmax(element, points)
    assert spec.facts.to_mapping().get("row_per_thread", False) is row_per_thread
    assert ("fmath.opaque_indices" in spec.source) is row_per_thread


@pytest.mark.parametrize(("element", "points", "row_per_thread"), [("f32", 21, True), ("f32", 23, False)])
def test_a_row_that_is_only_added_up_is_shorter(element: str, points: int, *, row_per_thread: bool) -> None:
    body = f"  y: f32[777] = reduce sum [d0 < 777 | r0 < {points}] x[d0, r0]"
    text = f"graph @f(x: {element}[777, {points}]) -> (y) {{\n{body}\n}}"
    spec = emit_program(schedule_text(text, "persistent")).kernels[0]
    assert spec.facts.to_mapping().get("row_per_thread", False) is row_per_thread


def test_rows_that_do_not_follow_each_other_are_not_walked() -> None:
    assert not softmax("bf16", 7, shape="777, 64").facts.to_mapping().get("row_per_thread")
    assert not softmax("bf16", 7, shape="{}, 777", place="r0, d0").facts.to_mapping().get("row_per_thread")
    assert softmax("bf16", 7, shape="778, {}", place="d0 + 1, r0").facts.to_mapping()["row_per_thread"]


@pytest.mark.parametrize(("operands", "row_per_thread"), [(3, True), (4, False)])
def test_a_thread_holds_no_more_than_it_has_registers_for(operands: int, *, row_per_thread: bool) -> None:
    names = [f"x{n}" for n in range(operands)]
    total = "x0[d0, r0]"
    for name in names[1:]:
        total = f"add({total}, {name}[d0, r0])"
    inputs = ", ".join(f"{name}: bf16[777, 41]" for name in names)
    text = f"graph @f({inputs}) -> (y) {{\n  y: f32[777] = reduce sum [d0 < 777 | r0 < 41] cast.f32({total})\n}}"
    spec = emit_program(schedule_text(text, "persistent")).kernels[0]
    assert spec.facts.to_mapping().get("row_per_thread", False) is row_per_thread


def test_a_program_may_have_hundreds_of_rows_whatever_divides_their_number() -> None:
    text = "graph @f(x: f32[{n}, {k}]) -> (y) {{\n  y: f32[{n}] = reduce sum [d0 < {n} | r0 < {k}] x[d0, r0]\n}}"
    rows = {
        k: emit_program(schedule_text(text.format(n=64 * 777, k=k), "persistent")).kernels[0].axes[0].get("max_block")
        for k in (7, 8)
    }
    assert rows == {7: None, 8: 64}
