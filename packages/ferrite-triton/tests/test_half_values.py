"""Values of half types in registers: with excess precision between two operations, as stored where they are stored."""

from __future__ import annotations

import pytest

from ferrite_triton import emit_program
from hand_written import schedule_text


def lines_of(text: str) -> list[str]:
    (kernel,) = emit_program(schedule_text(text, "pointwise")).kernels
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
    assert not any("div_rn" in line for line in lines)


def test_a_stored_value_read_as_it_is_stored_needs_no_conversion() -> None:
    text = """graph @f(h: bf16[64]) -> (z) {
  z: bf16[64] = loop [i < 64] rounded.bf16(h[i])
}"""
    assert not any(".to(" in line for line in lines_of(text))
