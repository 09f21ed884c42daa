"""Values of half types in registers: with excess precision between two operations, as stored where they are stored."""

from __future__ import annotations

import pytest

from ferrite_triton import emit_program
from hand_written import schedule_text


def lines_of(text: str, form: str = "pointwise") -> list[str]:
    (kernel,) = emit_program(schedule_text(text, form)).kernels
    return [line.strip() for line in kernel.source.splitlines()]


def body(outputs: str, conversion: str) -> str:
    return f"""graph @f(x: f32[64]) -> ({outputs}) {{
  y: bf16[64] = loop [i < 64] {conversion}.bf16(mul(x[i], x[i]))
  z: f32[64] = loop [i < 64] neg(cast.f32(y[i]))
}}"""


def is_widened(lines: list[str]) -> bool:
    """Returns whether the product is read back from what it was rounded to."""
    (rounding,) = [line.split(" = ")[0] for line in lines if ".to(tl.bfloat16)" in line]
    return any(f"{rounding}.to(tl.float32)" in line for line in lines)


def test_a_value_that_stays_in_a_register_keeps_its_excess() -> None:
    lines = lines_of(body("z", "cast"))
    assert not any("bfloat16" in line for line in lines if not line.startswith("#"))


def test_a_value_that_is_stored_is_read_as_stored() -> None:
    assert is_widened(lines_of(body("y, z", "cast")))


@pytest.mark.parametrize("outputs", ["z", "y, z"])
def test_a_rounding_that_is_stated_stays(outputs: str) -> None:
    assert is_widened(lines_of(body(outputs, "rounded")))


def test_a_value_read_through_a_copy_in_memory_is_as_stored() -> None:
    text = """graph @f(x: f32[64]) -> (c, z) {
  y: bf16[64] = loop [i < 64] cast.bf16(mul(x[i], x[i]))
  c: bf16[64] = loop [i < 64] y[i]
  z: f32[64] = loop [i < 64] neg(cast.f32(c[i]))
}"""
    assert is_widened(lines_of(text))


@pytest.mark.parametrize("conversion", ["cast", "rounded"])
def test_quotients_that_are_rounded_are_divided_fast(conversion: str) -> None:
    text = f"""graph @f(x: f32[64], s: f32[64]) -> (y) {{
  y: bf16[64] = loop [i < 64] {conversion}.bf16(div(x[i], s[i]))
}}"""
    lines = lines_of(text)
    assert any(" / " in line and ".to(tl.bfloat16)" in line for line in lines)
    assert not any("quotient" in line for line in lines)


SIMILARITY = """graph @f(x: f32[8, 68], y: f32[8, 68]) -> ({outputs}) {{
  a: f32[8] = reduce sum [d0 < 8 | r0 < 68] mul(x[d0, r0], x[d0, r0])
  u: f32[8, 68] = loop [d0 < 8, r0 < 68] div(x[d0, r0], a[d0])
  s: f32[8] = reduce {combine} [d0 < 8 | r0 < 68] mul(neg(u[d0, r0]), y[d0, r0])
  z: f32[8, 68] = loop [d0 < 8, r0 < 68] add(y[d0, r0], s[d0])
}}"""


@pytest.mark.parametrize("form", ["persistent", "looped"])
def test_terms_of_a_sum_are_divided_fast(form: str) -> None:
    """What divides a row is inverted once; a term is off by 1.5 ulp where the order of the sum is anybody's."""
    lines = lines_of(SIMILARITY.format(outputs="s, z", combine="sum"), form)
    assert any(line.startswith("div_") and "inverse" in line and "row_quotient" not in line for line in lines)
    assert not any("row_quotient" in line for line in lines)


def test_quotients_of_quotients_that_are_terms_are_divided_fast() -> None:
    twice = SIMILARITY.format(outputs="s", combine="sum").replace("neg(u[d0, r0])", "div(u[d0, r0], a[d0])")
    lines = lines_of(twice, "persistent")
    assert sum(line.startswith("div_") and "inverse" in line for line in lines) == 2
    assert not any("row_quotient" in line for line in lines)


@pytest.mark.parametrize(("outputs", "combine"), [("s, z", "max"), ("u, s", "sum"), ("u, s", "max")])
def test_quotients_that_are_seen_are_exact(outputs: str, combine: str) -> None:
    lines = lines_of(SIMILARITY.format(outputs=outputs, combine=combine), "persistent")
    assert any("row_quotient" in line for line in lines)


def test_a_stored_value_read_as_it_is_stored_needs_no_conversion() -> None:
    text = """graph @f(h: bf16[64]) -> (z) {
  z: bf16[64] = loop [i < 64] rounded.bf16(h[i])
}"""
    assert not any(".to(" in line for line in lines_of(text))
