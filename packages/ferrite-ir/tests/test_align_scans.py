"""Aligned scans compute what the scans computed that they were: for all signs, shifts, lengths and combines."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from ferrite_ir import evaluate, parse_graph, verify
from ferrite_ir.passes import AlignScans

LENGTH = 6
LINE = [3.0, -2.0, 0.0, 5.0, 5.0, -1.0]
OPERANDS = {
    "sum": "x[i]",
    "prod": "x[i]",
    "max": "x[i]",
    "min": "x[i]",
    "logaddexp": "x[i]",
    "cummax": "(x[i], index.i64(i))",
    "cummin": "(x[i], index.i64(5 - i))",
}


def text_of(combine: str, sign: str, offset: int, extent: int, *, reverse: bool) -> str:
    place, results = f"{offset} {sign} j", "v: f32[6], k: i64[6]" if combine.startswith("cum") else "v: f32[6]"
    inside = f"bitand(ge(index.i64({place}), i64(0)), lt(index.i64({place}), i64(6)))"
    positions = f"z: i64[{extent}] = loop [j < {extent}] masked({inside}, k[{place}], i64(-7))"
    return f"""graph @f(x: f32[6]) -> ({"y, z" if combine.startswith("cum") else "y"}) {{
  {results} = scan {"reverse " * reverse}{combine} [i < 6] along i {OPERANDS[combine]}
  y: f32[{extent}] = loop [j < {extent}] masked({inside}, v[{place}], f32(100.0))
  {positions if combine.startswith("cum") else ""}
}}"""


def is_near(found: Any, expected: Any) -> bool:
    return all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)
        for one, other in zip(found, expected, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("combine", OPERANDS)
def test_aligned_scans_compute_the_same(combine: str, *, reverse: bool) -> None:
    changed = 0
    for sign, offset, extent in itertools.product("+-", range(-3, 10), (4, 6, 7)):
        text = text_of(combine, sign, offset, extent, reverse=reverse)
        graph = parse_graph(text)
        if verify(graph):
            continue  # nothing is read where something is
        aligned = AlignScans().run(graph)
        assert not verify(aligned), text
        assert is_near(evaluate(aligned, [LINE]), evaluate(graph, [LINE])), text
        changed += aligned is not graph
    assert changed > 12


@pytest.mark.parametrize(("growth", "longest"), [(8, 7), (3, 9), (1, 13)])
def test_a_scan_gets_no_longer_than_the_pass_allows(growth: int, longest: int) -> None:
    """Six points may become 6 + 6 / growth + 1."""
    for extent in range(7, 16):
        text = text_of("sum", "+", -extent + 6, extent, reverse=False)
        graph = parse_graph(text)
        assert not verify(graph)
        assert (AlignScans(growth).run(graph) is not graph) == (extent <= longest), text
