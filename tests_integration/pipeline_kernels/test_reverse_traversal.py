"""Kernels whose first programs take the end of what they compute: the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Run = Callable[..., tuple[Any, ...]]

FLAT = "graph @f(x: f32[5000]) -> (y) {{ y: f32[5000] = loop [d0 < 5000] mul(x[d0], x[4999 - d0]) }}"
TURNED = "graph @f(x: f32[70, 90]) -> (y) {{ y: f32[90, 70] = loop [d0 < 90, d1 < 70] neg(x[d1, d0]) }}"
ROWS = """graph @f(x: f32[70, 90]) -> (y) {{
  m: f32[70] = reduce max [d0 < 70 | r0 < 90] x[d0, r0]
  y: f32[70, 90] = loop [d0 < 70, r0 < 90] sub(x[d0, r0], m[d0])
}}"""


@pytest.mark.parametrize(
    ("text", "shape", "form", "placed"),
    [
        (FLAT, (5000,), "pointwise", {}),
        (TURNED, (70, 90), "pointwise", {"d0": "y"}),
        (ROWS, (70, 90), "persistent", {}),
    ],
    ids=["flat", "two axes", "rows"],
)
def test_results_are_the_same(run: Run, text: str, shape: tuple[int, ...], form: str, placed: dict) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    text = text.replace("{{", "on cpu {").replace("}}", "}")
    given = {"form": form, "placed": placed}
    (forwards,), (backwards,) = (run(text, x, **given, backwards=turned) for turned in (False, True))
    assert torch.equal(forwards, backwards)


def test_the_first_program_takes_the_end(emit: Callable[..., Any]) -> None:
    for turned in (False, True):
        (kernel,) = emit(TURNED.format(), placed={"d0": "y"}, backwards=turned).kernels
        assert ("tl.num_programs(0) - 1 - tl.program_id(0)" in kernel.source) is turned
