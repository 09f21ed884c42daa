"""The table of operations as text; what the texts compute is tested where Triton is installed."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from ferrite_ir.language.dtypes import BF16, BOOL, DTYPES, F16, F32, F64, I8, I64, U8, DType
from ferrite_ir.language.ops import OPS
from ferrite_triton import emit_program
from ferrite_triton.printing.casts import cast_text
from ferrite_triton.printing.literals import full_text, highest_text, lowest_text, number_text
from ferrite_triton.printing.spellings import ROWS
from ferrite_triton.tile.operations import ELEMENTWISE
from hand_written import schedule_text


def body(text: str) -> list[str]:
    source = emit_program(schedule_text(text, "pointwise")).kernels[0].source
    return [
        line.strip()
        for line in source.splitlines()
        if (line.startswith("    ") and " = " in line) or "tl.store" in line
    ]


def expression(scalar: str, result: str = "f32", inputs: str = "a: f32[8], b: f32[8], c: bool[8]") -> str:
    """Returns the last line before the store of a one-line kernel."""
    return body(f"graph @f({inputs}) -> (y) {{\n  y: {result}[8] = loop [d0 < 8] {scalar}\n}}")[-2]


def test_the_table_is_the_vocabulary() -> None:
    assert set(ROWS) == set(ELEMENTWISE)


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.kind != "opaque" and not d.is_narrow_float], ids=str)
def test_every_operation_has_text_for_every_type_it_takes(dtype: DType) -> None:
    for name, row in OPS.items():
        result = row.result((dtype,) * row.arity)
        if isinstance(result, str):
            continue
        operands = ", ".join(f"{letter}[d0]" for letter in "abcd"[: row.arity])
        inputs = ", ".join(f"{letter}: {dtype}[8]" for letter in "abcd")
        for line in body(f"graph @f({inputs}) -> (y) {{\n  y: {result}[8] = loop [d0 < 8] {name}({operands})\n}}"):
            ast.parse(line)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (True, BOOL, "True"),
        (3, I64, "3"),
        (1.0, F32, "1.0"),
        (0.1, F64, "0.1"),
        (float("inf"), F32, 'float("inf")'),
        (float("-inf"), F32, 'float("-inf")'),
        (float("nan"), F32, 'float("nan")'),
    ],
)
def test_numbers(value: Any, dtype: DType, text: str) -> None:
    assert number_text(value, dtype) == text


def test_negative_zero_keeps_its_sign() -> None:
    assert full_text(-0.0, F32) == "tl.full([], -2147483648, tl.int32).to(tl.float32, bitcast=True)"
    assert full_text(-0.0, F16) == "tl.full([], -32768, tl.int16).to(tl.float16, bitcast=True)"
    assert full_text(0.0, F32) == "tl.full([], 0.0, tl.float32)"


def test_ends_of_the_number_line() -> None:
    assert (lowest_text(I8), highest_text(I8)) == ("-128", "127")
    assert (lowest_text(U8), highest_text(U8)) == ("0", "255")
    assert (lowest_text(F32), highest_text(F32)) == ('float("-inf")', 'float("inf")')
    assert (lowest_text(BOOL), highest_text(BOOL)) == ("False", "True")


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (F32, F32, "v"),
        (F32, BF16, "v.to(tl.bfloat16)"),
        (F32, DTYPES["f8e5m2"], "fmath.to_float8e5(v)"),
        (F64, DTYPES["f8e4m3fn"], "v.to(tl.float32).to(tl.float8e4nv)"),
        (F64, BF16, "v.to(tl.float32).to(tl.bfloat16)"),
        (I64, BF16, "v.to(tl.float32).to(tl.bfloat16)"),
        (BF16, I64, "v.to(tl.float32).to(tl.int64)"),
        (F32, U8, "v.to(tl.int64).to(tl.uint8)"),
        (F32, BOOL, "v != 0"),
        (BF16, BOOL, "v.to(tl.float32) != 0"),
        (BOOL, F32, "v.to(tl.float32)"),
    ],
)
def test_casts(source: DType, target: DType, text: str) -> None:
    assert cast_text("v", source, target) == text


def test_literals_take_the_type_of_their_peer_or_are_written_with_their_own() -> None:
    assert expression("mul(a[d0], f32(0.5))") == "mul_2 = load_1 * 0.5"
    assert expression("sub(f32(1.0), a[d0])") == "sub_2 = 1.0 - load_1"
    assert expression("where(c[d0], a[d0], f32(0.0))") == "where_3 = tl.where(load_1, load_2, 0.0)"
    assert expression("where(c[d0], f32(1.0), f32(0.0))") == (
        "where_2 = tl.where(load_1, tl.full([], 1.0, tl.float32), tl.full([], 0.0, tl.float32))"
    )
    assert expression("pow(a[d0], f32(2.5))") == "pow_2 = fmath.pow(load_1, tl.full([], 2.5, tl.float32))"


def test_doubles_that_a_float32_cannot_hold_are_never_bare() -> None:
    doubles = {"result": "f64", "inputs": "a: f64[8], b: f64[8], c: bool[8]"}
    assert expression("mul(a[d0], f64(0.1))", **doubles) == "mul_2 = load_1 * tl.full([], 0.1, tl.float64)"
    assert expression("mul(a[d0], f64(0.5))", **doubles) == "mul_2 = load_1 * 0.5"
    assert (
        expression("gt(a[d0], f64(0.1))", "bool", doubles["inputs"]) == "gt_2 = load_1 > tl.full([], 0.1, tl.float64)"
    )
    assert expression("where(c[d0], a[d0], f64(1e+300))", **doubles) == (
        "where_3 = tl.where(load_1, load_2, tl.full([], 1e+300, tl.float64))"
    )


def test_floats_beside_the_normal_range_are_never_bare() -> None:
    # Triton 3.6 would compare as doubles.
    assert expression("gt(a[d0], f32(0.1))", "bool") == "gt_2 = load_1 > 0.1"
    assert expression("gt(a[d0], f32(1e-40))", "bool") == "gt_2 = load_1 > tl.full([], 1e-40, tl.float32)"


@pytest.mark.parametrize(
    ("operand", "function"),
    [
        ("cast.f32(h[d0])", "erf_narrow"),
        ("mul(cast.f32(h[d0]), f32(0.5))", "erf_narrow"),
        ("add(cast.f32(h[d0]), cast.f32(g[d0]))", "erf_narrow"),
        ("where(c[d0], cast.f32(h[d0]), f32(2.0))", "erf_narrow"),
        ("a[d0]", "erf"),
        ("mul(cast.f32(h[d0]), a[d0])", "erf"),
        ("cast.f32(i[d0])", "erf"),
    ],
)
def test_erf_of_narrow_floats_is_the_fast_one(operand: str, function: str) -> None:
    inputs = "a: f32[8], c: bool[8], h: bf16[8], g: f16[8], i: i64[8]"
    assert f"= fmath.{function}(" in expression(f"erf({operand})", inputs=inputs)


@pytest.mark.parametrize("op", ["cast", "rounded"])
@pytest.mark.parametrize(
    ("operand", "function"),
    [
        ("cast.f32(i[d0])", "fmath.whole_to_half("),
        ("cast.f32(mul(cast.f64(index.i64(d0)), f64(65536.0)))", "fmath.whole_to_half("),
        ("mul(a[d0], cast.f32(i[d0]))", "fmath.whole_to_half("),
        ("a[d0]", ".to(tl.float16)"),
    ],
)
def test_integers_become_half_numbers_behind_the_back_of_the_compiler(op: str, operand: str, function: str) -> None:
    # It would take the float16 for finite, and widened again for the integer.
    inputs = "a: f32[8], i: i64[8]"
    assert function in expression(f"{op}.f16({operand})", "f16", inputs=inputs)


def test_erf_sees_through_values_in_registers() -> None:
    def text(dtype: str) -> str:
        cast = "cast.f32(a[d0])" if dtype != "f32" else "a[d0]"
        return f"""graph @f(a: {dtype}[8]) -> (t, y) {{
  t: f32[8] = loop [d0 < 8] exp({cast})
  y: f32[8] = loop [d0 < 8] erf(t[d0])
}}"""

    assert any("fmath.erf_narrow(" in line for line in body(text("bf16")))
    assert any("fmath.erf(" in line for line in body(text("f32")))


def test_division_is_exact_unless_it_is_rounded_at_once() -> None:
    assert expression("div(a[d0], b[d0])") == "div_3 = fmath.quotient(load_1, load_2)"
    assert expression("cast.bf16(div(a[d0], b[d0]))", "bf16") == "div_3 = (load_1 / load_2).to(tl.bfloat16)"


CLAMPED = "minimum(maximum(div(a[d0], b[d0]), f32(-448.0)), f32(448.0))"


def test_one_number_is_divided_by_another() -> None:
    lines = body("graph @f(a: f32[], b: f32[]) -> (y) {\n  y: f32[] = loop [] div(a[], b[])\n}")
    assert lines[-2] == "div_3 = fmath.quotient(load_1, load_2)"


def test_division_of_what_is_clamped_and_rounded_is_fast_unless_it_has_other_uses() -> None:
    def text(*results: tuple[str, str, str]) -> str:
        values = "".join(f"  {n}: {dtype}[8] = loop [d0 < 8] {value}\n" for n, dtype, value in results)
        return f"graph @f(a: f32[8], b: f32[8]) -> ({', '.join(n for n, _, _ in results)}) {{\n{values}}}"

    rounded = ("y", "f8e4m3fn", f"cast.f8e4m3fn({CLAMPED})")
    assert "div_3 = load_1 / load_2" in body(text(rounded))
    for other in (f"add({CLAMPED}, f32(1.0))", CLAMPED, "div(a[d0], b[d0])", "exp(div(a[d0], b[d0]))"):
        lines = body(text(rounded, ("z", "f32", other)))
        assert "div_3 = fmath.quotient(load_1, load_2)" in lines, other
        assert not any(" / " in line for line in lines), other


@pytest.mark.parametrize(
    ("value", "is_fast"),
    [
        ("cast.bf16(add(cast.f32(c[d0]), mul(div(a[d0], b[d0]), f32(-0.001))))", True),
        ("cast.bf16(abs(sub(div(a[d0], b[d0]), a[d0])))", True),
        ("cast.bf16(masked(lt(a[d0], b[d0]), div(a[d0], b[d0]), f32(0.0)))", True),
        ("cast.bf16(where(lt(a[d0], b[d0]), div(a[d0], b[d0]), a[d0]))", True),
        ("cast.bf16(floor(mul(div(a[d0], b[d0]), f32(2.0))))", False),
        ("cast.bf16(where(lt(mul(div(a[d0], b[d0]), f32(2.0)), b[d0]), a[d0], b[d0]))", False),
        ("cast.bf16(exp(mul(div(a[d0], b[d0]), f32(2.0))))", False),
        ("cast.f32(cast.i32(mul(div(a[d0], b[d0]), f32(2.0))))", False),
    ],
)
def test_division_is_fast_under_sums_that_are_rounded_but_not_under_jumps(value: str, is_fast: bool) -> None:  # noqa: FBT001
    dtype = "bf16" if value.startswith("cast.bf16") else "f32"
    graph = f"graph @f(a: f32[8], b: f32[8], c: bf16[8]) -> (y) {{\n  y: {dtype}[8] = loop [d0 < 8] {value}\n}}"
    assert any(" / " in line for line in body(graph)) is is_fast
    assert any("fmath.quotient(" in line for line in body(graph)) is not is_fast


SOFTMAX = """graph @f(a: bf16[8, 4000], s: f32[8]) -> (y) {{
  m: f32[8], t: f32[8] = reduce online_softmax [d0 < 8 | r0 < 4000] cast.f32(a[d0, r0])
  y: {dtype}[8, 4000] = loop [d0 < 8, r0 < 4000] {value}
}}"""
TERM = "exp(sub(cast.f32(a[d0, r0]), m[d0]))"


def softmax_lines(value: str, dtype: str = "bf16") -> list[str]:
    """Returns the lines of the second loop of a kernel."""
    source = emit_program(schedule_text(SOFTMAX.format(dtype=dtype, value=value), "looped")).kernels[0].source
    return [line.strip() for line in source.split("for rstart")[2].splitlines() if " = " in line]


def test_what_softmax_rounds_is_multiplied_by_the_reciprocal_of_its_sum() -> None:
    for divisor in ("t[d0]", "where(isinf(m[d0]), f32(nan), t[d0])"):
        lines = softmax_lines(f"cast.bf16(div({TERM}, {divisor}))")
        assert any("fmath.fast_exp(" in line for line in lines)
        assert any(re.search(r"\(exp_\d+ \* \(1\.0 / \w+\)\)\.to\(tl\.bfloat16\)", line) for line in lines)


@pytest.mark.parametrize(
    ("value", "dtype", "why"),
    [
        (f"div({TERM}, t[d0])", "f32", "the result is not rounded"),
        (f"cast.bf16(div({TERM}, s[d0]))", "bf16", "the divisor may be small"),
        (f"cast.bf16(div({TERM}, where(isinf(m[d0]), f32(1.0), t[d0])))", "bf16", "it is no sum where it is a number"),
        (f"cast.bf16(div({TERM}, m[d0]))", "bf16", "a maximum may be small"),
    ],
)
def test_other_quotients_are_divided(value: str, dtype: str, why: str) -> None:
    lines = softmax_lines(value, dtype)
    assert any("fmath.exp(" in line for line in lines), why
    assert not any("1.0 /" in line for line in lines), why


def test_an_exponential_with_other_uses_is_exact() -> None:
    lines = softmax_lines(f"add(cast.bf16(div({TERM}, t[d0])), cast.bf16(sin({TERM})))")
    assert any("fmath.exp(" in line for line in lines)


def test_values_in_registers_are_not_rounded_in_between() -> None:
    text = """graph @f(a: f32[8]) -> (y) {
  t: bf16[8] = loop [d0 < 8] cast.bf16(exp(a[d0]))
  y: f32[8] = loop [d0 < 8] sin(cast.f32(t[d0]))
}"""
    assert body(text)[-2] == "sin_3 = fmath.sin(exp_2)"
    assert not any("bfloat16" in line for line in body(text))


def test_equal_values_are_computed_once() -> None:
    text = """graph @f(a: f32[8]) -> (x, y) {
  x: f32[8] = loop [d0 < 8] exp(mul(a[d0], f32(2.0)))
  y: f32[8] = loop [d0 < 8] sin(mul(a[d0], f32(2.0)))
}"""
    assert sum(" * 2.0" in line for line in body(text)) == 1
    assert sum("tl.load" in line for line in body(text)) == 1


def test_a_guarded_load_is_one_masked_load() -> None:
    lines = body(
        "graph @f(a: f32[8]) -> (y) {\n"
        "  y: f32[12] = loop [d0 < 12] masked(lt(index.i64(d0), i64(8)), a[d0], f32(1.5))\n}"
    )
    assert lines[-3:-1] == ["lt_1 = x < 8", "load_2 = tl.load(in0 + x, xmask & lt_1, other=1.5)"]


def test_equal_reductions_are_done_once() -> None:
    text = """graph @f(x: f32[8, 64]) -> (s, m2) {
  s: f32[8] = reduce sum [d0 < 8 | r0 < 64] x[d0, r0]
  m: f32[8], m2: f32[8], w: f32[8] = reduce welford [d0 < 8 | r0 < 64] x[d0, r0]
}"""
    source = emit_program(schedule_text(text, "persistent")).kernels[0].source
    assert source.count("tl.sum(") == 2


SIXTIETH = "tl.full([], 60.0, tl.float32), tl.full([], 0.01666666753590107, tl.float32)"


@pytest.mark.parametrize(
    ("points", "expected"), [(64, "sum_3 * 0.015625"), (60, f"fmath.divide_by(sum_3, {SIXTIETH})")]
)
def test_means_are_products_where_that_rounds_the_same_number(points: int, expected: str) -> None:
    text = f"""graph @f(x: f32[8, {points}]) -> (m) {{
  m: f32[8], m2: f32[8], w: f32[8] = reduce welford [d0 < 8 | r0 < {points}] x[d0, r0]
}}"""
    source = emit_program(schedule_text(text, "persistent")).kernels[0].source
    assert f" = {expected}\n" in source


def full(number: str) -> str:
    return f"tl.full([], {number}, tl.float32)"


@pytest.mark.parametrize(
    ("divisor", "expected"),
    [
        ("60.0", f"fmath.divide_by(load_1, {SIXTIETH})"),
        ("8.0", "load_1 * 0.125"),
        ("-3.0", f"fmath.divide_by(load_1, {full('-3.0')}, {full('-0.3333333432674408')})"),
        ("0.7", f"fmath.divide_by(load_1, {full('0.699999988079071')}, {full('1.4285714626312256')})"),
        ("1e31", "fmath.quotient(load_1, tl.full([], 1e+31, tl.float32))"),
    ],
)
def test_quotients_by_what_counts_something(divisor: str, expected: str) -> None:
    assert expression(f"div(a[d0], f32({divisor}))") == f"div_2 = {expected}"


def assertions(scalar: str, result: str = "f32") -> list[str]:
    text = f"graph @f(a: f32[9], c: bool[9]) -> (y) {{\n  y: {result}[9] = loop [d0 < 9] {scalar}\n}}"
    source = emit_program(schedule_text(text, "pointwise")).kernels[0].source
    return [line.strip() for line in source.splitlines() if "fmath.require(" in line]


def test_requirements_are_assertions_where_the_value_counts() -> None:
    (line,) = assertions("require_weight(c[d0], a[d0])")
    assert re.fullmatch(r'fmath.require\(\w+, "refused: a probability tensor .*", ORIGIN, xmask\)', line)
    (line,) = assertions("masked(gt(a[d0], f32(2.0)), require_divisor(c[d0], a[d0]), f32(0.0))")
    assert re.fullmatch(r'fmath.require\(\w+, "refused: ZeroDivisionError.*", ORIGIN, xmask & \w+\)', line)
    (line,) = assertions("require_index(c[d0], a[d0])")
    assert '"index out of bounds of its axis"' in line


def test_what_is_required_twice_is_asserted_once() -> None:
    required = "require_weight(c[d0], a[d0])"
    assert len(assertions(f"add({required}, exp({required}))")) == 1
