"""Products that are rounded before they are part of a sum, and those that may be contracted with it."""

from __future__ import annotations

import pytest

from ferrite_triton import emit_program
from hand_written import schedule_text

ROUNDED = {
    "less itself": "  z: f32[64] = loop [i < 64] sub(mul(x[i], y[i]), mul(x[i], y[i]))",
    "less itself, the other way round": "  z: f32[64] = loop [i < 64] sub(mul(x[i], y[i]), mul(y[i], x[i]))",
    "in a sum and an exponential": "  z: f32[64] = loop [i < 64] add(exp(mul(x[i], y[i])), add(mul(x[i], y[i]), x[i]))",
    "rounded to a half, and added": "  z: f32[64] = loop [i < 64] add(cast.f32(rounded.bf16(mul(x[i], y[i]))), x[i])",
    "read by another loop": """  p: f32[64] = loop [i < 64] mul(x[i], y[i])
  q: f32[64] = loop [i < 64] exp(p[i])
  z: f32[64] = loop [i < 64] sub(p[i], q[i])""",
}
CONTRACTED = {
    "a sum alone": "  z: f32[64] = loop [i < 64] add(mul(x[i], y[i]), x[i])",
    "two products": "  z: f32[64] = loop [i < 64] add(mul(x[i], y[i]), mul(x[i], x[i]))",
    "by a power of two": "  z: f32[64] = loop [i < 64] sub(mul(x[i], f32(0.5)), exp(mul(x[i], f32(0.5))))",
    "in no sum": "  z: f32[64] = loop [i < 64] div(mul(x[i], y[i]), exp(mul(x[i], y[i])))",
    "stored as a half": "  z: bf16[64] = loop [i < 64] cast.bf16(mul(x[i], y[i]))",
}


def source(definitions: str, outputs: str = "z") -> str:
    text = f"graph @f(x: f32[64], y: f32[64]) -> ({outputs}) {{\n{definitions}\n}}"
    (kernel,) = emit_program(schedule_text(text, "pointwise")).kernels
    return kernel.source


@pytest.mark.parametrize("name", ROUNDED)
def test_products_that_something_else_reads_are_rounded(name: str) -> None:
    assert "fmath.product(" in source(ROUNDED[name])


@pytest.mark.parametrize("name", CONTRACTED)
def test_products_of_a_sum_alone_are_contracted(name: str) -> None:
    assert "fmath.product(" not in source(CONTRACTED[name])


def test_a_stored_product_is_seen() -> None:
    definitions = "  p: f32[64] = loop [i < 64] mul(x[i], y[i])\n  z: f32[64] = loop [i < 64] sub(p[i], x[i])"
    assert "fmath.product(" in source(definitions, "p, z")
    assert "fmath.product(" not in source(definitions)
