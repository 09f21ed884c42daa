"""Statistics of vectors are computed by the products that need them, where that costs a product nothing."""

from __future__ import annotations

import pytest

from checks import check
from ferrite_scheduler import Policy, Schedule, Target

POLICY = Policy(programs_per_processor=2)
TARGET = Target(processors=2)


def product(results: str = "y", **pieces: str) -> Schedule:
    """Returns the schedule of a product of a matrix with vectors, which are divided by their norms."""
    chosen = {"vectors": 1, "rows": 8, "combine": "sum", "square": "mul(x[m, k], x[m, k])", "more": "", **pieces}
    text = """
    graph @f(x: f32[{vectors}, 6], w: f32[{rows}, 6]) -> ({results}) {{
      s: f32[{vectors}] = reduce {combine} [m < {vectors} | k < 6] {square}
      y: f32[{vectors}, {rows}] = reduce sum [m < {vectors}, n < {rows} | k < 6] mul(w[n, k], div(x[m, k], s[m]))
      {more}
    }}"""
    return check(text.format(results=results, **chosen), TARGET, POLICY)


@pytest.mark.parametrize("vectors", ["1", "3", "16"])
def test_a_product_normalises_its_vectors(vectors: str) -> None:
    (kernel,) = product(vectors=vectors).kernels
    assert {param.name for param in kernel.params} == {"x", "w", "y"}
    assert [definition.results[0].name for definition in kernel.body] == ["s_of_y", "y"]


@pytest.mark.parametrize(
    ("results", "pieces"),
    [
        ("y, s", {}),
        ("y", {"vectors": "17"}),
        ("y", {"rows": "3"}),
        ("y", {"combine": "prod"}),
        ("y", {"square": "exp(exp(x[m, k]))"}),
        ("y, z", {"more": "z: f32[1] = loop [m < 1] neg(s[m])"}),
    ],
    ids=["kept", "many vectors", "few programs", "another reduction", "dear", "other readers"],
)
def test_others_are_computed_once(results: str, pieces: dict[str, str]) -> None:
    found = product(results, **pieces)
    assert any(r.name == "s" for kernel in found.kernels for d in kernel.body for r in d.results)


def test_each_product_has_its_own() -> None:
    more = "z: f32[1, 8] = reduce sum [m < 1, n < 8 | k < 6] mul(exp(w[n, k]), mul(x[m, k], s[m]))"
    found = product("y, z", more=more)
    made = {r.name for kernel in found.kernels for d in kernel.body for r in d.results}
    assert made == {"s_of_y", "y", "s_of_z", "z"}
