"""What conditions of launches say to people."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from ferrite_runtime.formats.expressions import evaluate, read_expr
from ferrite_torch.inspection.launch_conditions import predicate_text

PREDICATES: list[tuple[Any, int, str]] = [
    ("s0", 8192, "a <= 8,192"),
    (["mul", "s0", -1], -9, "a >= 9"),
    (["add", ["mul", "s0", 4], -1], 30, "a <= 7"),
    (["add", ["mul", "s0", -3], 1], -9, "a >= 4"),
    (["add", ["mul", ["floordiv", "s0", 4], -4], "s0"], 0, "a % 4 == 0"),
    (["sub", ["mul", "s0", 3], ["mul", ["floordiv", "s0", 4], 12]], 0, "a % 4 == 0"),
    (["add", ["mul", ["floordiv", "s0", 4], -4], "s0"], 1, "-4*(a // 4) + a <= 1"),
    (["add", "s0", ["mul", "b", -1], 2], 5, "a - b <= 3"),
    (["mul", "s0", "b"], 40, "(a * b) <= 40"),
]


@pytest.mark.parametrize(("expr", "limit", "text"), PREDICATES)
def test_predicates(expr: Any, limit: int, text: str) -> None:
    """The text, and that of the opposite, are true exactly where they should be."""
    names: Mapping[str, str] = {"s0": "a"}
    assert predicate_text(expr, limit, names) == text
    opposite = predicate_text(expr, limit, names, holds=False)
    for a, b in product(range(2, 30), range(7)):
        holds = evaluate(read_expr(expr, "expr"), {"s0": a, "b": b}) <= limit
        assert _truth(text, a, b) is holds
        assert _truth(opposite, a, b) is not holds


def _truth(text: str, a: int, b: int) -> bool:
    return bool(eval(text.replace(",", ""), {"a": a, "b": b}))
