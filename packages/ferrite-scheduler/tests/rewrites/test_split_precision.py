"""Rows of float32 that are multiplied with weights of eight bits, in three parts."""

from __future__ import annotations

from random import Random

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Contract, Loop
from ferrite_scheduler import Policy
from ferrite_scheduler.model.contractions import part_loads
from ferrite_scheduler.model.forms import Contraction
from ferrite_scheduler.rewrites.split_precision import cut_rows

TEXT = """
graph @f(x: f32[{rows}, 18], w: {dtype}[20, 18], v: {dtype}[20, 18], s: f32[20]) -> (y{more}) {{
  p: f32[{rows}, 20] = contract [m < {rows}, n < 20 | k < 18] {left} * mul(cast.f32(w[n, k]), s[n])
  y: f32[{rows}, 20] = loop [m < {rows}, n < 20] neg(p[m, n])
  {second}
}}"""
SECOND = "z: f32[3, 20] = contract [m < 3, n < 20 | k < 18] x[m, k] * cast.f32(v[n, k])"


def text(rows: int = 3, dtype: str = "i8", left: str = "x[m, k]", second: str = "") -> str:
    return TEXT.format(rows=rows, dtype=dtype, left=left, second=second, more=", z" if second else "")


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("left", ["x[m, k]", "exp(x[m, k])"])
def test_parts_are_made_once_and_multiplied_together(left: str, dtype: str) -> None:
    random, lowest = Random(0), -128 if dtype == "i8" else 0
    x = [[random.uniform(-2, 2) for _ in range(18)] for _ in range(3)]
    w, v = ([[random.randrange(lowest, lowest + 256) for _ in range(18)] for _ in range(20)] for _ in range(2))
    scales = [2.0 ** random.randrange(-3, 4) for _ in range(20)]
    cut, multiplied = check(text(dtype=dtype, left=left), inputs=[x, w, v, scales]).kernels
    assert [value.type.shape for value in cut.body[0].results] == [(3, 3, 18)]
    contract, *others = multiplied.body
    assert isinstance(contract, Contract)
    assert [str(part) for part in part_loads(contract)] == [f"p_unscaled_parts[{part}, y0, r0]" for part in range(3)]
    assert multiplied.form == Contraction()
    assert all(isinstance(other, Loop) for other in others)


def test_products_of_the_same_rows_share_their_parts() -> None:
    cut, multiplied = check(text(second=SECOND)).kernels
    assert len(cut.body) == 1
    contracts = [definition for definition in multiplied.body if isinstance(definition, Contract)]
    assert len({part_loads(contract) for contract in contracts}) == 1
    assert len(contracts) == 2


@pytest.mark.parametrize(
    ("graph", "policy"),
    [(text(rows=5), {}), (text(dtype="i16"), {}), (text(), {"cut_rows": False}), (text(), {"scale_sums": False})],
    ids=["more rows than tensor cores take at once", "not exact", "policy", "weights are scaled first"],
)
def test_other_rows_stay_whole(graph: str, policy: dict[str, bool]) -> None:
    kernels = check(graph, policy=Policy(**policy)).kernels
    contracts = [d for kernel in kernels for d in kernel.body if isinstance(d, Contract)]
    assert len(contracts) == 1
    assert not part_loads(contracts[0])


def test_rows_that_a_call_has_changed_have_parts_of_their_own() -> None:
    text = """graph @f(x: f32[3, 18], w: i8[20, 18]) -> (p, q) {
      t: f32[3, 18] = loop [m < 3, k < 18] x[m, k]
      p: f32[3, 20] = contract [m < 3, n < 20 | k < 18] t[m, k] * cast.f32(w[n, k])
      extern lib.scale_.default(t, x) mutates (t) effects
      q: f32[3, 20] = contract [m < 3, n < 20 | k < 18] t[m, k] * cast.f32(w[n, k])
    }"""
    graph = cut_rows(parse_graph(text), Policy())
    loops = [definition for definition in graph.definitions if isinstance(definition, Loop)]
    assert [loop.results[0].name for loop in loops] == ["t", "p_parts", "q_parts"]
