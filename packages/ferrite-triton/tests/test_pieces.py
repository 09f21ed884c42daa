"""Scans of halves in pieces: loaded and added up before the program waits, widened and scanned after it."""

from __future__ import annotations

import re

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, Target, schedule
from ferrite_triton import KernelSpec, emit_program

SLOW = Target(bandwidth=1e6)
"""A machine on which a few thousand elements are worth several programs."""


def scan(body: str = "cast.f32(x[j])", dtype: str = "bf16", points: int = 512, more: str = "") -> KernelSpec:
    """Returns the kernel of a scan of 5000 elements, and of ``more`` definitions after it."""
    text = f"""graph @f(x: {dtype}[5000], u: f32[5000]) -> (y) {{
  s: f32[5000] = scan sum [j < 5000] along j {body}
  {more or "y: bf16[5000] = loop [j < 5000] cast.bf16(s[j])"}
}}"""
    policy = Policy(split_minimum=4, look_back_points=points)
    return next(
        spec for spec in emit_program(schedule(parse_graph(text), SLOW, policy)).kernels if spec.family == "scan"
    )


def test_all_is_loaded_before_a_program_waits_and_widened_after_it() -> None:
    source = scan().source
    words = re.findall(r"tl\.load|tl\.cumsum|fmath\.\w+|tl\.store", source)
    assert words == [
        "fmath.draw_part",
        *["tl.load"] * 4,
        "fmath.publish_part",
        "fmath.unknown_zero",
        "fmath.sum_before",
        *["fmath.kept", "tl.cumsum", "tl.store"] * 4,
    ]
    assert source.count("r = first + ") == 8


def test_a_block_is_a_quarter_of_a_part() -> None:
    spec = scan()
    assert spec.blocks["RBLOCK"] == 128
    assert spec.grid == ["mul", ["ceildiv", "x", "XBLOCK"], ["ceildiv", "r", 512]]
    assert (spec.facts["parts"], spec.facts["pieces"], spec.facts["registers"]) == (10, 4, 72)
    assert "first = part * 512\n" in spec.source


def test_every_piece_ends_where_the_line_does() -> None:
    assert scan().source.count("rmask = r < 5000") == 8


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ({"dtype": "f32", "body": "x[j]"}, "elements of four bytes"),
        ({"body": "mul(cast.f32(x[j]), u[j])"}, "one of two operands has them"),
        ({"points": 128}, "pieces of 32 elements"),
        ({"more": "y: f32[5000] = loop [j < 5000] mul(s[j], rand(i64(7), index.i64(j)))"}, "random numbers"),
    ],
)
def test_what_gains_nothing_is_one_tile(kernel: dict[str, str], why: str) -> None:
    spec = scan(**kernel)
    assert "pieces" not in spec.facts, why
    assert "fmath.kept" not in spec.source
    assert spec.source.count("tl.cumsum") == 1


def test_what_reads_the_scan_is_written_for_each_piece() -> None:
    source = scan(more="y: f32[5000] = loop [j < 5000] mul(s[j], u[j])").source
    assert source.count("tl.load(in0") == 4
    assert source.count("tl.load(in1") == 4
    assert source.index("tl.load(in1") > source.index("fmath.sum_before")
