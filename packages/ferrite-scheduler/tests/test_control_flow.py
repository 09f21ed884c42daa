"""Modules: each graph has a schedule of its own, and called graphs run as they are scheduled."""

from __future__ import annotations

import pytest

from ferrite_ir import parse_module
from ferrite_ir.reference.evaluator import evaluate
from ferrite_scheduler import Schedule, parse_schedule, schedule_module
from ferrite_scheduler.model.schedule import CallGraph, Free, Launch
from ferrite_scheduler.simulation.simulator import simulate

CHOICE = """
graph @main(x: f32[4], y: f32[4]) -> (w) {
  s: f32[] = reduce sum [ | i < 4] x[i]
  c: bool[] = loop [] gt(s[], f32(0.0))
  a: f32[4] = loop [i < 4] mul(x[i], f32(3.0))
  z: f32[4], unused: f32[4] = if c then @first else @second (a, y)
  w: f32[4] = loop [i < 4] add(z[i], x[i])
}
graph @first(a: f32[4], y: f32[4]) -> (e, d) {
  b: f32[4] = loop [i < 4] add(a[i], y[i])
  d: f32[4] = scan sum [i < 4] along i b[i]
  e: f32[4] = loop [i < 4] d[-i + 3]
}
graph @second(a: f32[4], y: f32[4]) -> (d, a1) {
  d: f32[4] = call @leaf(a)
  a1: f32[4] = loop [i < 4] neg(a[i])
}
graph @leaf(a: f32[4]) -> (d) {
  d: f32[4] = loop [i < 4] neg(a[i])
}
"""
LOOP = """
graph @main(x: f32[n], y: f32[]) -> (w, size(u)) where n: size >= 1 ~ 4, u: size {
  a: f32[n] = loop [i < n] neg(x[i])
  z: f32[n] = while @more do @step (a, y) sizes (0, 3) binds (u)
  w: f32[n] = loop [i < n] add(z[i], x[i])
}
graph @more(x: f32[n], y: f32[], i: size, m: size) -> (size(max(0, -i + m))) where i: size, m: size, n: size >= 1 ~ 4 {
}
graph @step(x: f32[n], y: f32[], i: size, m: size) -> (z, size(i + 2)) where i: size, m: size, n: size >= 1 ~ 4 {
  z: f32[n] = loop [a < n] add(x[a], mul(y[], index.f32(i)))
}
"""
STACKED = """
graph @main(x: f32[4]) -> (w) where u: size >= 0 {
  a: f32[4] = loop [i < 4] neg(x[i])
  z: f32[u, 4] = while @more do @step (a) stacked
  w: f32[u, 4] = loop [i < u, j < 4] add(z[i, j], index.f32(u))
}
graph @more(x: f32[4]) -> (c) {
  c: bool[] = loop [] lt(x[0], f32(20.0))
}
graph @step(x: f32[4]) -> (z) {
  z: f32[4] = loop [i < 4] add(x[i], f32(8.0))
}
"""
ROWS = """
graph @main(s: f32[2], x: f32[n, 2]) -> (w, t) where n: size >= 1 ~ 4 {
  a: f32[n, 2] = loop [i < n, j < 2] neg(x[i, j])
  t: f32[2], y: f32[n, 2] = for @turn(s, a) times (n) carries (1) rows (1)
  w: f32[n, 2] = loop [i < n, j < 2] add(y[i, j], x[i, j])
}
graph @turn(s: f32[2], x: f32[2]) -> (t, y) {
  t: f32[2] = loop [j < 2] add(s[j], x[-j + 1])
  y: f32[2] = loop [j < 2] mul(s[j], x[j])
}
"""


def check(text: str, *inputs: object) -> Schedule:
    module = parse_module(text)
    found = schedule_module(module)
    for backwards in (False, True):
        assert simulate(found, list(inputs), backwards=backwards) == evaluate(module, list(inputs))
    return found


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_choice_runs_either_graph_as_it_is_scheduled(sign: float) -> None:
    found = check(CHOICE, [sign, 2 * sign, 3 * sign, 0.0], [1.0, 1.0, 2.0, 5.0])
    assert [each.graph.name for each in found.callees] == ["first", "leaf", "second"]
    (call,) = [step for step in found.steps if isinstance(step, CallGraph)]
    assert call.results == ("z", None)


def test_operands_of_a_call_are_dropped_behind_it_and_held_inside() -> None:
    found = check(CHOICE, [1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 2.0, 5.0])
    place = next(place for place, step in enumerate(found.steps) if isinstance(step, CallGraph))
    assert "a" in {name for step in found.steps[place:] if isinstance(step, Free) for name in step.names}
    freed = {name for each in found.callees for step in each.steps if isinstance(step, Free) for name in step.names}
    assert not freed & {"a", "y"}


def test_a_loop_carries_tensors_and_integers() -> None:
    found = check(LOOP, [1.0, 2.0, 3.0], 0.5)
    assert [len(each.kernels) for each in found.callees] == [0, 1]
    assert "while @more do @step (a, y) sizes (0, 3) binds (u)" in str(found)


def test_a_loop_over_rows_has_its_own_schedule_and_storage_for_what_it_returns() -> None:
    found = check(ROWS, [1.0, 2.0], [[1.0, 2.0], [3.0, 4.0], [0.5, 0.25]])
    assert "for @turn(s, a) times (n) carries (1) rows (1)" in str(found)
    (body,) = found.callees
    assert [value.name for value in body.inputs] == ["s", "x", "t_to", "y_to"]


@pytest.mark.parametrize("first", [-1.0, -30.0])
def test_a_loop_that_stacks_is_given_no_storage_and_tells_its_turns(first: float) -> None:
    found = check(STACKED, [first, 2.0, 3.0, 4.0])
    _, body = found.callees
    assert [value.name for value in body.inputs] == ["x"]


def test_what_uses_the_last_integer_of_a_loop_comes_behind_it() -> None:
    found = check(LOOP.replace("add(z[i], x[i])", "mul(x[i], index.f32(u))"), [1.0, 2.0], 0.5)
    place = next(place for place, step in enumerate(found.steps) if isinstance(step, CallGraph))
    last = max(place for place, step in enumerate(found.steps) if isinstance(step, Launch))
    assert place < last


@pytest.mark.parametrize("text", [CHOICE, LOOP, STACKED, ROWS])
def test_schedules_of_modules_parse_back(text: str) -> None:
    found = schedule_module(parse_module(text))
    again = parse_schedule(str(found))
    assert again == found
    assert str(again) == str(found)
