"""Tiles of products whose results would be stored with gaps: another kernel lays these out anew."""

from __future__ import annotations

import pytest

from checks import check, refusal
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Contract
from ferrite_scheduler import Policy, Schedule, schedule

TILES = Policy(tile_products=True)
LARGE = Policy(tile_products=True, sector_seconds=1.0, mixed_combos=False)
"""For results that a test can compute: a part of a sector costs more than a launch."""

FILTERS = """
graph @f(g: bf16[{points}, {filters}], x: bf16[{points}, {steps}, {depth}]) -> (y) {{
  p: f32[{filters}, {steps}, {depth}]  = contract stored bf16 [f < {filters}, s < {steps}, c < {depth} | k < {points}] g[k, f] * x[k, s, c]
  y: bf16[{filters}, {depth}, {steps}] = loop [f < {filters}, c < {depth}, s < {steps}] cast.bf16(p[f, s, c])
}}"""  # noqa: E501
"""The gradient of filters that lie with their windows last, of images with channels last."""


def filters(filters: int, steps: int, depth: int, points: int = 64, policy: Policy = TILES) -> Schedule:
    text = FILTERS.format(filters=filters, steps=steps, depth=depth, points=points)
    return schedule(parse_graph(text), policy=policy)


@pytest.mark.parametrize(
    ("count", "steps", "depth", "kernels"),
    [(512, 9, 512, 2), (64, 9, 64, 1), (512, 1, 512, 1)],
    ids=["large", "small", "one step"],
)
def test_results_are_laid_out_anew_where_that_is_faster(count: int, steps: int, depth: int, kernels: int) -> None:
    found = filters(count, steps, depth)
    assert len(found.kernels) == kernels
    if kernels == 2:
        assert refusal(found, "p_rounded", "y") == "P06"
        assert found.graph.values["p_rounded"].type.strides == (steps * depth, depth, 1)


def test_what_is_laid_out_anew_is_right() -> None:
    found = check(FILTERS.format(filters=17, steps=9, depth=18, points=20), policy=LARGE)
    assert [kernel.stored for kernel in found.kernels] == [("p_rounded",), ("y",)]


READERS = {
    "as it is multiplied": "y: bf16[24, 9, 16] = loop [f < 24, s < 9, c < 16] cast.bf16(p[f, s, c])",
    "filters side by side": "y: bf16[9, 16, 24] = loop [s < 9, c < 16, f < 24] cast.bf16(p[f, s, c])",
    "runs of channels": "y: bf16[9, 24, 16] = loop [s < 9, f < 24, c < 16] cast.bf16(p[f, s, c])",
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_results_in_runs_are_stored_by_their_tiles(reader: str) -> None:
    text = f"""
    graph @f(g: bf16[20, 24], x: bf16[20, 9, 16]) -> (y) {{
      p: f32[24, 9, 16] = contract stored bf16 [f < 24, s < 9, c < 16 | k < 20] g[k, f] * x[k, s, c]
      {reader}
    }}"""
    (kernel,) = check(text, policy=LARGE).kernels
    assert kernel.stored == ("y",)


def test_factors_that_walk_as_the_result_does_make_runs() -> None:
    """Images whose positions lie side by side: so do the steps of windows on them."""
    text = """
    graph @f(g: bf16[24, 20], x: bf16[16, 28]) -> (y) {
      p: f32[24, 9, 16]  = contract stored bf16 [f < 24, s < 9, c < 16 | k < 20] g[f, k] * x[c, k + s]
      y: bf16[24, 16, 9] = loop [f < 24, c < 16, s < 9] cast.bf16(p[f, s, c])
    }"""
    (kernel,) = check(text, policy=LARGE).kernels
    assert kernel.stored == ("y",)


def test_what_nobody_stores_has_no_gaps() -> None:
    text = """
    graph @f(g: bf16[20, 24], x: bf16[20, 9, 16], b: bf16[24, 16, 9]) -> (z) {
      p: f32[24, 9, 16]  = contract stored bf16 [f < 24, s < 9, c < 16 | k < 20] g[k, f] * x[k, s, c]
      y: f32[24, 16, 9]  = loop [f < 24, c < 16, s < 9] add(p[f, s, c], cast.f32(b[f, c, s]))
      z: bf16[24, 9, 16] = loop [f < 24, s < 9, c < 16] cast.bf16(relu(y[f, c, s]))
    }"""
    found = check(text, policy=LARGE)
    assert any(isinstance(definition, Contract) for definition in found.kernels[0].body)
    assert found.kernels[-1].stored == ("z",)


SOFTMAX = """
graph @f(x: bf16[128, {channels}, 225]{{{image}, 1, {channels}}}) -> (y) {{
  a: f32[128, {channels}, 225]  = loop [n < 128, c < {channels}, p < 225] exp(exp(exp(exp(cast.f32(x[n, c, p])))))
  m: f32[128, 225]              = reduce max [n < 128, p < 225 | c < {channels}] a[n, c, p]
  s: f32[128, 225]              = reduce sum [n < 128, p < 225 | c < {channels}] exp(sub(a[n, c, p], m[n, p]))
  y: bf16[128, {channels}, 225] = loop [n < 128, c < {channels}, p < 225] cast.bf16(div(exp(sub(a[n, c, p], m[n, p])), s[n, p]))
}}"""  # noqa: E501
"""A softmax over channels that lie last in what it reads, and before the positions in what it makes."""


@pytest.mark.parametrize(("channels", "kernels"), [(32, 1), (8, 2)])
def test_whole_columns_are_read_along_them_where_they_fill_sectors(channels: int, kernels: int) -> None:
    found = schedule(parse_graph(SOFTMAX.format(channels=channels, image=channels * 225)))
    assert len(found.kernels) == kernels
