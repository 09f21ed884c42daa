"""A kernel says what it reads for the last time, where that lies in the cache and would lose its place to results."""

from __future__ import annotations

import pytest

from checks import check
from ferrite_scheduler import Policy, Target

CACHE = Target(l2_bytes=1024)
LOOPED = Policy(persistent_elements=16)
TWICE = """graph @f(x: f32[{n}]) -> (y, z) {{
  a: f32[] = reduce sum [ | i < {n}] x[i]
  b: f32[] = extern aten.clone.default(a)
  y: f32[{n}] = loop [i < {n}] mul(x[i], b[])
  {z}
}}"""
AGAIN = """c: f32[{n}] = extern aten.clone.default(y)
  z: f32[{n}] = loop [i < {n}] mul(x[i], c[i])"""


def last_uses(text: str, target: Target = CACHE) -> list[list[str]]:
    """Returns for each kernel the params that it reads for the last time, after checking what the kernels compute."""
    return [[param.name for param in kernel.params if param.is_last] for kernel in check(text, target).kernels]


def read_twice(count: int, output: str = "y") -> str:
    return TWICE.format(n=count, z="").replace("(y, z)", f"({output})")


def test_the_second_of_two_readers_is_the_last() -> None:
    assert last_uses(read_twice(64)) == [[], ["x"]]


def test_a_third_reader_is_the_last_and_what_a_call_made_counts_too() -> None:
    assert last_uses(TWICE.format(n=64, z=AGAIN.format(n=64))) == [[], [], ["x", "c"]]


def test_what_takes_no_room_to_speak_of_is_left_to_the_cache() -> None:
    assert last_uses(read_twice(16)) == [[], []]


def test_of_what_does_not_fit_a_part_is_there_still() -> None:
    assert last_uses(read_twice(512)) == [[], ["x"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (read_twice(64), [[], ["y"]]),
        (read_twice(16), [[], []]),  # of results as small as what is read again
        (read_twice(64, "x, y"), [[], []]),  # nothing is read for the last time
        (TWICE.format(n=64, z=AGAIN.format(n=64)), [[], [], ["z"]]),  # y is read by a call
    ],
)
def test_large_results_that_nothing_reads_leave_the_rest_its_place(text: str, expected: list[list[str]]) -> None:
    kernels = check(text, CACHE).kernels
    assert [[param.name for param in kernel.params if param.is_streaming] for kernel in kernels] == expected


def test_what_moves_between_the_readers_counts() -> None:
    between = """b: f32[] = extern aten.clone.default(a)
      u: f32[256] = loop [i < 256] exp(w[i])
      v: f32[256] = extern aten.clone.default(u)"""
    text = read_twice(64, "y, v").replace("b: f32[] = extern aten.clone.default(a)", between)
    marked = last_uses(text.replace("(x: f32[64])", "(x: f32[64], w: f32[256])"))
    assert ["x"] not in marked
    assert len(marked) == 3


def test_what_is_read_more_than_once_at_a_time_stays() -> None:
    both_ends = read_twice(64).replace("mul(x[i], b[])", "mul(x[i], add(x[63 - i], b[]))")
    assert last_uses(both_ends) == [[], []]
    once = "y: f32[64] = loop [i < 64] mul(x[i], b[])"
    twice = "y: f32[128] = loop [i < 128] mul(x[i // 2], b[])"
    repeated = read_twice(64).replace(once, twice)
    assert last_uses(repeated) == [[], []]


def test_results_of_the_graph_stay() -> None:
    text = read_twice(64, "x, y")
    assert last_uses(text) == [[], []]


ROWS = """graph @f(x: f32[4, {n}]) -> ({output}) {{
  s: f32[4] = reduce sum [i < 4 | r < {n}] exp(x[i, r])
  y: f32[4, {n}] = loop [i < 4, r < {n}] div(exp(x[i, r]), s[i])
}}"""


@pytest.mark.parametrize(
    ("count", "output", "policy", "expected"),
    [
        (80, "s, y", LOOPED, ["y"]),
        (64, "s, y", LOOPED, []),  # it fits
        (80, "s, y", Policy(), []),  # one tile holds a row
        (80, "s", LOOPED, []),  # no row is read twice
    ],
)
def test_what_does_not_fit_beside_rows_that_wait_is_written_in_passing(
    count: int, output: str, policy: Policy, expected: list[str]
) -> None:
    (kernel,) = check(ROWS.format(n=count, output=output), CACHE, policy).kernels
    assert [param.name for param in kernel.params if param.is_streaming] == expected
