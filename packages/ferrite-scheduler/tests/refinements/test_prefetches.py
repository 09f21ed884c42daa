"""How far ahead programs that wait for others prefetch what later ones will read."""

from __future__ import annotations

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.model.policy import DEFAULT_POLICY

SCAN = """graph @f(x: {dtype}[{lines}, {n}]) -> (s) {{
  s: f32[{lines}, {n}] = scan sum [i < {lines}, r < {n}] along r {body}
}}"""
IMAGES = """graph @norm(x: f32[{n}, 64, 16, 16]{{16384, 1, 1024, 64}}) -> (y) {{
  mean: f32[{n}, 4], m2: f32[{n}, 4], count: f32[{n}, 4] = reduce welford
      [n < {n}, g < 4 | c < 16, h < 16, w < 16] x[n, g*16 + c, h, w]
  y: f32[{n}, 64, 16, 16]{{16384, 1, 1024, 64}} = loop [n < {n}, k < 64, h < 16, w < 16]
      mul(sub(x[n, k, h, w], mean[n, k // 16]), rsqrt(m2[n, k // 16]))
}}"""


def distance_of(text: str, processors: int, **changes: object) -> int:
    """Returns how far ahead the programs of the only kernel ask."""
    policy = Policy(small_kernel_bytes=0, split_minimum=4, look_back_points=1024, prefetch_bandwidth=0, **changes)
    (kernel,) = schedule(parse_graph(text), Target(processors=processors, bandwidth=1e6), policy).kernels
    return getattr(kernel.form, "prefetch_distance", 0)


def scan(lines: int, parts: int, dtype: str = "f32", body: str = "x[i, r]") -> str:
    return SCAN.format(lines=lines, n=parts * 1024, dtype=dtype, body=body)


@pytest.mark.parametrize(("lines", "processors"), [(1, 4), (1, 6), (2, 6), (4, 8)])
def test_scans_are_ahead_by_bytes_whatever_the_lines(lines: int, processors: int) -> None:
    wanted = DEFAULT_POLICY.prefetch_scan_bytes * processors // (1024 * 4 * lines)
    assert distance_of(scan(lines, 400), processors) == wanted


def test_all_that_is_read_of_a_part_counts() -> None:
    one, two = scan(1, 200), scan(1, 200, body="mul(x[i, r], x[i, 204799 - r])")
    assert distance_of(one, 4) == 2 * distance_of(two, 4)
    # Of halves a part has twice as many.
    assert distance_of(scan(1, 400, "bf16", "cast.f32(x[i, r])"), 4) == distance_of(one, 4)


def test_nobody_asks_for_what_nobody_reads_later() -> None:
    wanted = 4 * DEFAULT_POLICY.prefetch_scan_bytes // (1024 * 4)
    assert distance_of(scan(1, wanted), 4) == 0
    assert distance_of(scan(1, wanted + 1), 4) == wanted


@pytest.mark.parametrize(("count", "processors"), [(8, 2), (8, 4), (3, 2), (2, 2)])
def test_images_are_ahead_by_images(count: int, processors: int) -> None:
    wanted = DEFAULT_POLICY.prefetch_norm_bytes * processors // (16384 * 4)
    assert distance_of(IMAGES.format(n=count), processors) == (wanted if wanted < count else 0)


def test_prefetches_can_be_left_out() -> None:
    assert distance_of(scan(1, 200), 4, prefetch=False) == 0
    assert distance_of(IMAGES.format(n=8), 2, prefetch=False) == 0


def test_scans_do_not_ask_where_memory_is_slow() -> None:
    text, policy = scan(1, 4400), Policy(look_back_points=64)
    fast, slow = (Target(bandwidth=bandwidth) for bandwidth in (4.25e12, 3e12))  # an H200 and an H100
    prefetch_distance = [
        schedule(parse_graph(text), target, policy).kernels[0].form.prefetch_distance for target in (fast, slow)
    ]
    assert prefetch_distance == [132 * DEFAULT_POLICY.prefetch_scan_bytes // 256, 0]


def test_others_wait_for_nobody() -> None:
    assert distance_of("graph @f(x: f32[9000]) -> (y) {\n  y: f32[9000] = loop [i < 9000] neg(x[i])\n}", 1) == 0
