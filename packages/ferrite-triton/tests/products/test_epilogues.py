"""What reads a product as a device function for kernels that somebody else wrote."""

from __future__ import annotations

import pytest

from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Loop
from ferrite_triton.epilogues import EpilogueFunction, epilogue_function


def function_of(body: str, dtype: str = "bf16") -> EpilogueFunction | None:
    graph = parse_graph(f"""
    graph @f(p: f32[20, 30], b: bf16[30], s: bf16[20, 30]{{1, 20}}, c: f32[20], d: f32[], i: i64[20]) -> (y) {{
      y: {dtype}[20, 30] = loop [m < 20, n < 30] {body}
    }}""")
    (loop,) = graph.definitions
    assert isinstance(loop, Loop)
    return epilogue_function("after", loop, "p", {name: value.type for name, value in graph.values.items()})


def test_operands_lie_along_rows_and_columns() -> None:
    found = function_of("cast.bf16(mul(relu(add(add(p[m, n], cast.f32(b[n])), cast.f32(s[m, n]))), mul(c[m], d[])))")
    assert found is not None
    assert found.operands == ("b", "s", "c", "d")
    assert (
        found.text
        == """\
@triton.jit
def after(acc, rows, columns, row_mask, column_mask, operand0, operand1, operand2, operand3):
    load_0 = tl.load(operand0 + columns, column_mask)
    cast_1 = load_0.to(tl.float32)
    add_2 = acc + cast_1
    load_3 = tl.load(operand1 + (rows + columns * 20), row_mask & column_mask)
    cast_4 = load_3.to(tl.float32)
    add_5 = add_2 + cast_4
    relu_6 = fmath.maximum_nan(add_5, 0.0)
    load_7 = tl.load(operand2 + rows, row_mask)
    load_8 = tl.load(operand3)
    mul_9 = load_7 * load_8
    mul_10 = relu_6 * mul_9
    cast_11 = mul_10.to(tl.bfloat16)
    return cast_11"""
    )


def test_half_values_are_computed_in_f32() -> None:
    found = function_of("add(cast.bf16(p[m, n]), b[n])")
    assert found is not None
    assert "cast_0 = acc.to(tl.bfloat16)" in found.text
    assert ".to(tl.float32) + " in found.text


@pytest.mark.parametrize(
    "body",
    [
        "cast.bf16(add(p[m, n], c[at(i[m], 20)]))",
        "cast.bf16(masked(lt(p[m, n], f32(0.0)), p[m, n], f32(1.0)))",
        "cast.bf16(add(p[m, n], cast.f32(index.i64(m))))",
        "cast.bf16(add(p[m, n], p[m, n // 2]))",
        "cast.bf16(add(p[m, n], cast.f32(b[n // 2])))",
    ],
    ids=["a gather", "a condition", "a position", "another point", "uneven steps"],
)
def test_other_forms_are_left_alone(body: str) -> None:
    assert function_of(body) is None
