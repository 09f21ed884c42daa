"""Kernels whose lanes go through an axis, unrolled: each load stands once for all of its points."""

from __future__ import annotations

from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, Target, schedule
from ferrite_triton import emit_program

SUM = "x[c, h, w]"
for row in range(1, 9):
    SUM = f"add({SUM}, x[c, h + {row}, w])"
TEXT = f"""graph @columns(x: f32[4, 24, 40], b: f32[4]) -> (y, z) {{
  y: f32[4, 16, 32] = loop [c < 4, h < 16, w < 32] add({SUM}, b[c])
  z: f32[4, 16, 32] = loop [c < 4, h < 16, w < 32] exp(y[c, h, w])
}}"""
"""Sums of nine rows, of which those of eight results in a column have all but two in common with the next."""


def source_of(**changes: float) -> str:
    policy = Policy(coarsened_lanes=1, mixed_combos=False, **changes)
    (kernel,) = emit_program(schedule(parse_graph(TEXT), Target(processors=1), policy)).kernels
    return kernel.source


def test_what_rows_have_in_common_is_loaded_once() -> None:
    source, apart = source_of(), source_of(coarsened_rows=1)
    assert apart.count("tl.load(") == 10
    assert source.count("tl.load(") == 17, "nine rows and seven more, for eight results, and a number for all of them"
    assert source.count("tl.store(") == 16
    assert source.count("fmath.exp(") == 8
    assert "u: 8, unrolled" in source


def test_facts_say_how_many_results_a_lane_has() -> None:
    policy = Policy(coarsened_lanes=1, mixed_combos=False)
    (kernel,) = emit_program(schedule(parse_graph(TEXT), Target(processors=1), policy)).kernels
    facts = kernel.facts.to_mapping()
    assert facts["unrolled"] == 8
    assert facts["numel"] == 4 * 16 * 32 // 8
    assert facts["bytes"] == (4 * 24 * 40 + 4 + 2 * 4 * 16 * 32) * 4
