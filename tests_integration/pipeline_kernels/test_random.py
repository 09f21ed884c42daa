"""Random numbers are pure functions of seed and offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ferrite_ir.reference.philox import rand

Run = Callable[..., tuple[Any, ...]]

DRAWS = {"rand": "f32", "randn": "f32"}


@pytest.mark.parametrize("op", DRAWS)
def test_numbers_do_not_depend_on_the_tiling(run: Run, op: str) -> None:
    text = f"""graph @f(s: i64[2]) -> (y) on cpu {{
  y: f32[70, 90] = loop [d0 < 70, d1 < 90] {op}(s[1], index.i64(90*d0 + d1))
}}"""
    seeds = torch.tensor([5, 42])
    (flat,) = run(text, seeds)
    (tiled,) = run(text, seeds, placed={"d0": "y"})
    assert torch.equal(flat, tiled)
    assert not torch.equal(flat, run(text, torch.tensor([5, 43]))[0])
    if op == "rand":
        assert (flat >= 0).all()
        assert (flat < 1).all()
    assert abs(flat.mean() - (0.5 if op == "rand" else 0.0)) < 0.05


def test_integers_in_a_range(run: Run) -> None:
    text = """graph @f(s: i64[1]) -> (y) on cpu {
  y: i64[5000] = loop [d0 < 5000] randint64(s[0], index.i64(d0), i64(-3), i64(4))
}"""
    (found,) = run(text, torch.tensor([7]))
    assert found.unique().tolist() == [-3, -2, -1, 0, 1, 2, 3]


def test_dropout(run: Run) -> None:
    text = """graph @f(s: i64[1], x: bf16[64, 100]) -> (y) on cpu {
  k: bool[64, 100] = loop [d0 < 64, d1 < 100] gt(rand(s[0], index.i64(100*d0 + d1)), f32(0.5))
  y: bf16[64, 100] = loop [d0 < 64, d1 < 100] cast.bf16(where(k[d0, d1], mul(cast.f32(x[d0, d1]), f32(2.0)), f32(0.0)))
}"""
    x = torch.ones(64, 100, dtype=torch.bfloat16)
    (y,) = run(text, torch.tensor([9]), x)
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert abs(y.float().mean() - 1) < 0.05


@pytest.mark.parametrize("columns", [64, 90, 128])
@pytest.mark.parametrize("form", ["pointwise", "persistent", "looped"])
def test_numbers_are_those_of_the_reference_one_by_one_or_four_at_a_time(run: Run, form: str, columns: int) -> None:
    offset = f"index.i64({columns}*d0 + d1 + 8)"
    if form == "pointwise":
        body = f"  y: f32[5, {columns}] = loop [d0 < 5, d1 < {columns}] rand(s[0], {offset})"
    else:
        offset = offset.replace("d1", "r0")
        body = f"""  y: f32[5, {columns}] = loop [d0 < 5, r0 < {columns}] rand(s[0], {offset})
  t: f32[5] = reduce sum [d0 < 5 | r0 < {columns}] y[d0, r0]"""
    outputs = "y" if form == "pointwise" else "y, t"
    text = f"graph @f(s: i64[1]) -> ({outputs}) on cpu {{\n{body}\n}}"
    seed = (1 << 40) + 12345
    for placed in ({}, {"d0": "y"}) if form == "pointwise" else ({},):
        found = run(text, torch.tensor([seed]), form=form, placed=placed)[0]
        wanted = torch.tensor([[rand(seed, columns * i + j + 8) for j in range(columns)] for i in range(5)])
        assert torch.equal(found, wanted)
