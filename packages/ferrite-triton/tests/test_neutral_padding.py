"""Sums whose operand is zero past the end of a symbolic row: which they are, and that no others lose their masks."""

from __future__ import annotations

import pytest

from ferrite_triton import emit_program
from hand_written import schedule_text

MASKED = "tl.where(rmask, "


def source(body: str, length: str = "m", form: str = "looped", combine: str = "sum", repeated: str = "{1, 0}") -> str:
    types = f"x: f32[n, {length}], w: f32[n], v: f32[{length}], e: f32[n, {length}]{repeated}"
    text = f"""graph @f({types}) -> (s) where n: size >= 1, m: size >= 0 {{
      s: f32[n] = reduce {combine} [i < n | r < {length}] {body}
    }}"""
    return emit_program(schedule_text(text, form)).kernels[0].source


@pytest.mark.parametrize("form", ["looped", "persistent"])
@pytest.mark.parametrize(
    "body",
    [
        "x[i, r]",
        "mul(x[i, r], v[r])",
        "neg(abs(add(x[i, r], mul(v[r], f32(-2.5)))))",
        "masked(lt(index.i64(i), index.i64(r)), x[i, r], f32(0.0))",
        "maximum(relu(x[i, r]), v[r])",
    ],
)
def test_what_is_zero_needs_no_mask(body: str, form: str) -> None:
    written = source(body, form=form)
    assert MASKED not in written
    assert all("other=0" in line for line in written.splitlines() if "tl.load(" in line)


@pytest.mark.parametrize("form", ["looped", "persistent"])
@pytest.mark.parametrize(
    "body",
    [
        "exp(x[i, r])",
        "sub(x[i, r], w[i])",  # the same all along the row
        "mul(x[i, r], w[i])",  # which may be infinite
        "mul(x[i, r], f32(inf))",
        "div(x[i, r], v[r])",
        "masked(lt(index.i64(i), index.i64(r)), x[i, r], f32(1.0))",
        "cast.f32(index.i64(r))",
        "f32(2.0)",
        "e[i, r]",  # one element all along the row, which stands at stride 0
        "add(x[i, r], e[i, r])",
    ],
)
def test_what_may_be_something_else_is_masked(body: str, form: str) -> None:
    assert MASKED in source(body, form=form)


def test_only_sums_of_symbolic_rows() -> None:
    assert MASKED in source("x[i, r]", combine="max")
    assert MASKED in source("x[i, r]", length="1000")
    assert "other=0" not in source("x[i, r]", length="1000")
