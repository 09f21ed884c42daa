"""The memory that a schedule needs, step by step."""

from __future__ import annotations

from checks import CHAIN, check
from ferrite_scheduler import Policy, footprint
from ferrite_scheduler.model.schedule import Launch


def test_inputs_count_until_they_are_dropped():
    found = footprint(check(CHAIN))
    assert found.peak == 32, "a call's operand and result"
    assert footprint(check(CHAIN), held=("x",)).peak == 48
    assert set(found.alive.values()) == {16}


def test_reuse_needs_no_more():
    plain = footprint(check(CHAIN, policy=Policy(inplace=False, reuse=False)))
    assert plain.peak == 32
    assert sum(plain.bytes_at) > sum(footprint(check(CHAIN)).bytes_at)


def test_views_hold_the_storage_they_look_at():
    schedule = check("""
    graph @f(x: f32[4, 6]) -> (d) {
      a: f32[4, 6] = loop [i < 4, j < 6] exp(x[i, j])
      d: f32[4, 3] = extern aten.clone.default(a as f32[4, 3]{6, 1} at 3)
    }""")
    found = footprint(schedule)
    assert found.peak == 4 * (24 + 24)
    assert found.bytes_at[-1] == 4 * 12
    launch = next(number for number, step in enumerate(schedule.steps) if isinstance(step, Launch))
    assert found.step <= launch


def test_a_step_names_what_is_alive_at_the_peak():
    found = footprint(
        check("""
    graph @f(x: f32[8]) -> (s) {
      a: f32[8] = extern aten.clone.default(x)
      b: f32[8] = extern aten.clone.default(a)
      s: f32[] = reduce sum [ | i < 8] mul(a[i], b[i])
    }""")
    )
    assert found.peak == 4 * 17
    assert set(found.alive) == {"a", "b", "s"}
    assert found.bytes_at[found.step] == found.peak
