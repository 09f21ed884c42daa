"""Reductions over blocks of rows, in the text of the kernel that holds the rows."""

from __future__ import annotations

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler import schedule
from ferrite_triton import KernelSpec, emit_program


def kernel(blocks: int, row: str = "sum") -> KernelSpec:
    columns = blocks * 32
    text = f"""
    graph @f(x: f32[64, {columns}]) -> (scale, q) {{
      s: f32[64] = reduce {row} [i < 64 | c < {columns}] x[i, c]
      m: f32[64, {blocks}] = reduce max [i < 64, b < {blocks} | k < 32] mul(x[i, b * 32 + k], s[i])
      scale: f32[64, {blocks}] = loop [i < 64, b < {blocks}] mul(m[i, b], f32(0.5))
      q: f32[64, {columns}] = loop [i < 64, c < {columns}] div(mul(x[i, c], s[i]), scale[i, c // 32])
    }}"""
    (found,) = emit_program(schedule(parse_graph(text))).kernels
    return found


def lines(spec: KernelSpec) -> list[str]:
    return [line.strip() for line in spec.source.splitlines()]


def test_a_tile_has_an_axis_of_blocks() -> None:
    spec = kernel(4)
    assert [(axis["name"], axis["kind"], axis["size"], axis["block"]) for axis in spec.axes] == [
        ("x", "grid", 64, "XBLOCK"),
        ("b", "reduction", 4, "BBLOCK"),
        ("r", "reduction", 32, "RBLOCK"),
    ]
    assert spec.blocks == {"BBLOCK": 4, "RBLOCK": 32}
    assert (
        spec.facts.to_mapping()["reduction_size"],
        spec.facts.to_mapping()["contiguous_axis"],
        spec.facts.to_mapping()["numel"],
    ) == (128, "r", 64)
    text = lines(spec)
    assert "i_1 = x * 128 + b * 32 + r" in text
    assert "sum_3 = tl.sum(tl.sum(load_2, 2, keep_dims=True), 1, keep_dims=True)" in text
    assert "max_5 = tl.reduce(mul_4, 2, fmath.maximum_nan, keep_dims=True)" in text
    assert sum("tl.load" in line for line in text) == 1
    assert not any("mask" in line for line in text)


@pytest.mark.parametrize(("row", "neutral"), [("sum", "0.0"), ("max", 'float("-inf")')])
def test_lanes_of_blocks_past_the_end_count_for_nothing(row: str, neutral: str) -> None:
    text = lines(kernel(5, row))
    assert "bmask = b < 5" in text
    assert any(f"tl.where(bmask, load_2, {neutral})" in line for line in text)
    assert sum(", bmask)" in line for line in text) == 3, "a load and two stores"
