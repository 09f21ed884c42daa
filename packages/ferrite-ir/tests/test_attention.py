"""What an attention means, beside the same in plain Python."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from ferrite_ir import PIPELINE, Graph, evaluate, parse_graph

ROWS, COLUMNS, DEPTH, WIDTH = 5, 7, 3, 2


def drawn(*shape: int, seed: int = 0) -> Any:
    generator = random.Random(str((shape, seed)))

    def fill(shape: tuple[int, ...]) -> Any:
        return [fill(shape[1:]) for _ in range(shape[0])] if shape else round(generator.uniform(-2, 2), 3)

    return fill(shape)


def attention(
    kind: str, weigh: str, times: str = "v[j, e]", results: str = "o", mask: str = "", blocks: str = "", scale: str = ""
) -> Graph:
    types = {"o": f"f32[{ROWS}, {WIDTH}]", "o2": f"f32[{ROWS}, {WIDTH}]", "l": f"f32[{ROWS}]", "m": f"f32[{ROWS}]"}
    named = ", ".join(f"{name}: {types[name]}" for name in results.split(", "))
    scaled = f" scaled by {scale}" if scale else ""
    condition = f" if {mask}" if mask else ""
    listed = f" in blocks {blocks}" if blocks else ""
    return parse_graph(f"""
    graph @f(q: f32[{ROWS}, {DEPTH}], k: f32[{COLUMNS}, {DEPTH}], v: f32[{COLUMNS}, {WIDTH}],
             c: i32[3], p: i32[3, 2], w: i32[3]) -> ({results}) {{
      {named} = attend {kind} (s) [i < {ROWS}, e < {WIDTH} | j < {COLUMNS} | d < {DEPTH}, x < 2, y < 2]
        q[i, d] * k[j, d] along d weigh {weigh} times {times}{scaled}{condition}{listed}
    }}""")


Q, K, V = drawn(ROWS, DEPTH), drawn(COLUMNS, DEPTH), drawn(COLUMNS, WIDTH)
COUNTS, PLACES, WHOLE = [1, 0, 2], [[1, 0], [0, 0], [3, 0]], [0, 1, 0]
SCORES = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in K] for x in Q]


def run(graph: Graph) -> list[Any]:
    return evaluate(PIPELINE.run(graph), [Q, K, V, COUNTS, PLACES, WHOLE])


def softmax(allowed: list[list[bool]], scale: float = 0.5) -> tuple[Any, Any, Any]:
    """Returns the three results of a softmax of scaled scores."""
    out, sums, tops = [], [], []
    for scores, row in zip(SCORES, allowed, strict=True):
        powers = [math.exp(scale * score) if is_in else 0.0 for score, is_in in zip(scores, row, strict=True)]
        total = sum(powers)
        out.append([sum(p * v[e] for p, v in zip(powers, V, strict=True)) / (total or 1.0) for e in range(WIDTH)])
        sums.append(math.log2(total) if total else -math.inf)
        tops.append(
            max([scale * s for s, is_in in zip(scores, row, strict=True) if is_in], default=-math.inf) / math.log(2)
        )
    return out, sums, tops


def approx(expected: Any) -> Any:
    return (
        [pytest.approx(row, rel=1e-5) for row in expected]
        if isinstance(expected[0], list)
        else pytest.approx(expected, rel=1e-5)
    )


def causal(i: int, j: int) -> bool:
    return i >= j + 1


@pytest.mark.parametrize("mask", ["", "ge(index.i64(i), index.i64(j + 1))"], ids=["all", "causal"])
def test_softmax_with_its_sum_and_its_maximum(mask: str) -> None:
    allowed = [[not mask or causal(i, j) for j in range(COLUMNS)] for i in range(ROWS)]
    found = run(attention("softmax", "mul(s[], f32(0.5))", results="o, l, m", mask=mask))
    assert found == [approx(expected) for expected in softmax(allowed)]
    assert not mask or found[0][0] == [0.0, 0.0]
    assert not mask or found[1][0] == -math.inf


def test_shares_are_scaled_once_they_are_normalised() -> None:
    scale = "where(ge(index.i64(j), index.i64(i)), f32(2.0), f32(0.0))"
    graph = attention("softmax", "mul(s[], f32(0.5))", results="o, l, m", scale=scale)
    assert parse_graph(str(graph)) == graph
    rows = [[math.exp(score / 2) for score in scores] for scores in SCORES]
    kept = [[2 * p / sum(row) * (j >= i) for j, p in enumerate(row)] for i, row in enumerate(rows)]
    expected = [[sum(p * v[e] for p, v in zip(row, V, strict=True)) for e in range(WIDTH)] for row in kept]
    _, *of_rows = softmax([[True] * COLUMNS] * ROWS)
    assert run(graph) == [approx(each) for each in (expected, *of_rows)]


def test_lists_say_where_the_mask_is_asked_and_where_all_counts() -> None:
    blocks = "2 by 2 x < c[i // 2] at p[i // 2, x] whole y < w[i // 2] at p[i // 2, y]"
    found = run(attention("softmax", "mul(s[], f32(0.5))", mask="ge(index.i64(i), index.i64(j + 1))", blocks=blocks))

    def is_allowed(i: int, j: int) -> bool:
        row, block = i // 2, j // 2
        return block in PLACES[row][: WHOLE[row]] or (block in PLACES[row][: COUNTS[row]] and causal(i, j))

    allowed = [[is_allowed(i, j) for j in range(COLUMNS)] for i in range(ROWS)]
    assert any(any(row) for row in allowed)
    assert found == [approx(softmax(allowed)[0])]


def test_sums_of_several_weights() -> None:
    graph = attention(
        "sum", "s[], add(s[], f32(1.0))", "v[j, e], neg(v[j, e])", "o, o2", "ge(index.i64(i), index.i64(j))"
    )

    def expected(change: float, sign: float) -> list[list[float]]:
        return [
            [sum((SCORES[i][j] + change) * sign * V[j][e] for j in range(COLUMNS) if i >= j) for e in range(WIDTH)]
            for i in range(ROWS)
        ]

    assert run(graph) == [approx(expected(0.0, 1.0)), approx(expected(1.0, -1.0))]
