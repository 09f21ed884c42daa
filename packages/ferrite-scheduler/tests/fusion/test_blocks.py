"""Reductions over blocks of rows share a kernel with reductions over the rows, or a rule says why not."""

from __future__ import annotations

import pytest

from checks import EAGER_TO_SPLIT, check, kernel_of, refusal
from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, explain, schedule
from ferrite_scheduler.model.forms import PersistentReduction

NORM = """
graph @f(x: f32[6, {cols}], w: f32[{cols}]) -> (scale, q) {{
  s: f32[6] = reduce {row} [i < 6 | c < {cols}] mul(x[i, c], x[i, c])
  m: f32[6, {blocks}] = reduce max [i < 6, b < {blocks} | k < {block}]
    mul(mul(x[i, b * {block} + k], s[i]), w[b * {block} + k])
  scale: f32[6, {blocks}] = loop [i < 6, b < {blocks}] mul(m[i, b], f32(0.5))
  q: f32[6, {cols}] = loop [i < 6, c < {cols}] div(mul(mul(x[i, c], s[i]), w[c]), scale[i, c // {block}])
}}"""


def norm(blocks: int, block: int, row: str = "sum") -> str:
    return NORM.format(cols=blocks * block, blocks=blocks, block=block, row=row)


@pytest.mark.parametrize(("blocks", "block"), [(3, 4), (4, 4), (2, 8), (5, 2)])
def test_a_norm_and_its_blocks_are_one_kernel(blocks: int, block: int) -> None:
    (kernel,) = check(norm(blocks, block)).kernels
    assert kernel.form == PersistentReduction(block)
    assert f"persistent(block_length={block})" in str(kernel)
    assert {param.name for param in kernel.params} == {"x", "w", "scale", "q"}
    rows, m = (next(d for d in kernel.body if d.results[0].name == name) for name in ("s", "m"))
    assert [dim.size for dim in rows.reduction_dims] == [blocks, block]
    assert ([dim.size for dim in m.dims], [dim.size for dim in m.reduction_dims]) == ([6, blocks], [block])


def test_blocks_come_first_where_rows_need_them() -> None:
    found = check("""
    graph @f(x: f32[6, 12]) -> (y, t) {
      m: f32[6, 3] = reduce sum [i < 6, b < 3 | k < 4] exp(x[i, b * 4 + k])
      y: f32[6, 12] = loop [i < 6, c < 12] div(exp(x[i, c]), m[i, c // 4])
      t: f32[6] = reduce sum [i < 6 | c < 12] y[i, c]
    }""")
    (kernel,) = found.kernels
    assert kernel.form == PersistentReduction(4)


def test_a_reduction_over_the_values_of_blocks_waits_for_memory() -> None:
    found = check("""
    graph @f(x: f32[6, 12]) -> (s, m, t) {
      s: f32[6] = reduce sum [i < 6 | c < 12] x[i, c]
      m: f32[6, 3] = reduce max [i < 6, b < 3 | k < 4] mul(x[i, b * 4 + k], s[i])
      t: f32[6] = reduce sum [i < 6 | b < 3] m[i, b]
    }""")
    assert kernel_of(found, "s") is kernel_of(found, "m")
    assert kernel_of(found, "t") is not kernel_of(found, "m")


def test_refusals_have_a_name_and_a_reason() -> None:
    odd = check(norm(4, 3))
    assert refusal(odd, "s", "m") == "F11"
    assert "power of two (block 3)" in explain(odd, "s", "m")
    wide = check(norm(3, 4), policy=Policy(persistent_elements=8))
    assert refusal(wide, "s", "m") == "F11"
    assert "would not fit in a tile (columns 12, block 4)" in explain(wide, "s", "m")
    assert len(wide.kernels) == 2
    best = """
    graph @f(x: f32[6, 12]) -> (high, place, m) {
      high: f32[6], place: i64[6] = reduce argmax [i < 6 | c < 12] (x[i, c], index.i64(c))
      m: f32[6, 3] = reduce max [i < 6, b < 3 | k < 4] x[i, b * 4 + k]
    }"""
    found = check(best)
    assert refusal(found, "high", "m") == "F11"
    assert "argmax does not share a kernel" in explain(found, "high", "m")


def test_two_lengths_of_blocks_are_two_kernels() -> None:
    found = check("""
    graph @f(x: f32[6, 16]) -> (s, m, n) {
      s: f32[6] = reduce sum [i < 6 | c < 16] x[i, c]
      m: f32[6, 4] = reduce max [i < 6, b < 4 | k < 4] mul(x[i, b * 4 + k], s[i])
      n: f32[6, 2] = reduce max [i < 6, b < 2 | k < 8] mul(x[i, b * 8 + k], s[i])
    }""")
    assert sorted(getattr(kernel.form, "block_length", 0) for kernel in found.kernels) == [0, 4]
    assert refusal(found, "s", "n") == "F03"


def test_columns_of_blocks_stay_apart() -> None:
    found = check(
        """
    graph @f(x: f32[12, 6]) -> (s, m) {
      s: f32[6] = reduce sum [i < 6 | c < 12] x[c, i]
      m: f32[6, 3] = reduce max [i < 6, b < 3 | k < 4] mul(x[b * 4 + k, i], s[i])
    }""",
        EAGER_TO_SPLIT,
    )
    assert kernel_of(found, "s") is not kernel_of(found, "m")


def test_rows_may_be_of_any_number_but_not_of_any_length() -> None:
    text = """
    graph @f(x: f32[n, {cols}]) -> (m) where n: size >= 1 {{
      s: f32[n] = reduce sum [i < n | c < {cols}] x[i, c]
      m: f32[n, {blocks}] = reduce max [i < n, b < {blocks} | k < 4] mul(x[i, b * 4 + k], s[i])
    }}"""
    (kernel,) = schedule(parse_graph(text.format(cols=16, blocks=4))).kernels
    assert kernel.form == PersistentReduction(4)
    symbolic = schedule(parse_graph(text.format(cols="4*n", blocks="n")))
    assert all(not getattr(kernel.form, "block_length", 0) for kernel in symbolic.kernels)


STATES = """
graph @f(m: f32[{block}, 6, {blocks}], q: f32[{block}, 6, {blocks}], w: f32[{blocks}]) -> (y) {{
  mean: f32[6], m2: f32[6], n: f32[6] = reduce welford [i < 6 | c < {blocks}, p < {block}]
    (m[p, i, c], q[p, i, c], f32(8.0))
  y: f32[6, {blocks}] = loop [i < 6, c < {blocks}] add(mul(mean[i], w[c]), m2[i])
}}"""
"""What channels make of the moments of their group, which come in parts."""


@pytest.mark.parametrize(("blocks", "block"), [(3, 4), (5, 2), (4, 4)])
def test_what_has_a_point_for_each_block_is_in_the_kernel_of_a_small_reduction(blocks: int, block: int) -> None:
    (kernel,) = check(STATES.format(blocks=blocks, block=block)).kernels
    assert kernel.form == PersistentReduction(block)
    reduction, loop = kernel.body
    assert [dim.size for dim in reduction.reduction_dims] == [blocks, block]
    assert [dim.size for dim in loop.dims] == [6, blocks]


def test_several_of_them_have_blocks_of_one_length() -> None:
    text = STATES.replace("-> (y)", "-> (y, z, v)").replace(
        "\n}}",
        """
  z: f32[6, {blocks}] = loop [i < 6, c < {blocks}] mul(y[i, c], mean[i])
  v: f32[6, 2] = loop [i < 6, b < 2] mul(mean[i], f32(2.0))
}}""",
    )
    found = check(text.format(blocks=4, block=4))
    assert kernel_of(found, "mean") is kernel_of(found, "y") is kernel_of(found, "z")
    assert kernel_of(found, "v") is not kernel_of(found, "mean")


@pytest.mark.parametrize(
    ("blocks", "block", "policy", "reason"),
    [
        (4, 3, Policy(), "power of two (block 3)"),
        (3, 4, Policy(block_bytes=6 * 12 * 4 - 1), "where they are small (block 4)"),
        (3, 4, Policy(persistent_elements=8, persistent_elements_outer=8), "would not fit in a tile"),
    ],
)
def test_it_stays_apart_otherwise(blocks: int, block: int, policy: Policy, reason: str) -> None:
    found = check(STATES.format(blocks=blocks, block=block), policy=policy)
    assert refusal(found, "mean", "y") == "F11"
    assert reason in explain(found, "mean", "y")
    assert all(not getattr(kernel.form, "block_length", 0) for kernel in found.kernels)
