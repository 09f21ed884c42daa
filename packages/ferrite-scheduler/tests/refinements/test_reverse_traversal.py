"""Kernels begin at the end of what the kernel before has left in the cache, if that is larger."""

from __future__ import annotations

import pytest

from checks import APART, check
from ferrite_scheduler import Policy, Target

CACHE = Target(l2_bytes=1024)
CHAIN = """graph @f(x: f32[{n}], a: f32[]) -> (y, z) {{
  b: f32[] = extern aten.clone.default(a)
  y: f32[{n}] = loop [i < {n}] exp(mul(x[i], b[]))
  s: f32[] = loop [] y[7]
  c: f32[] = extern aten.clone.default(s)
  z: f32[{n}] = loop [i < {n}] mul(y[i], c[])
}}"""
TWICE = """graph @f(x: f32[{n}]) -> (y) {{
  a: f32[] = reduce sum [ | i < {n}] x[i]
  b: f32[] = extern aten.clone.default(a)
  y: f32[{n}] = loop [i < {n}] mul(x[i], b[])
}}"""


def traversals(text: str, target: Target = CACHE, policy: Policy = APART) -> list[bool]:
    """Returns for each kernel whether it walks backwards, after checking what the kernels compute."""
    return [kernel.backwards for kernel in check(text, target, policy).kernels]


@pytest.mark.parametrize("text", [CHAIN, TWICE], ids=["what it makes", "what it reads"])
@pytest.mark.parametrize(("count", "turns"), [(1024, True), (64, False)], ids=["larger than the cache", "smaller"])
def test_the_next_reader_begins_at_the_end(text: str, count: int, *, turns: bool) -> None:
    *before, last = traversals(text.format(n=count))
    assert not any(before)
    assert last is turns


def test_it_is_a_matter_of_policy() -> None:
    assert not any(traversals(TWICE.format(n=1024), policy=Policy(reverse_traversal=False)))


def test_what_has_left_the_cache_does_not_count() -> None:
    between = "b: f32[] = extern aten.clone.default(a)\n  v: f32[512] = loop [i < 512] exp(w[i])"
    text = TWICE.format(n=1024).replace("b: f32[] = extern aten.clone.default(a)", between)
    text = text.replace("(x: f32[1024])", "(x: f32[1024], w: f32[512])").replace("-> (y)", "-> (y, v)")
    assert not any(traversals(text))
