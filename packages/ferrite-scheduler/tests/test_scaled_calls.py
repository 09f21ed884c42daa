"""Products of 8-bit floats as calls of the library: what it scales and adds, and what it leaves."""

from __future__ import annotations

import pytest

from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Contract, Extern, Graph
from ferrite_scheduler import Policy
from ferrite_scheduler.choices.library_products import as_extern_calls
from ferrite_scheduler.choices.oracle import Unknown
from ferrite_scheduler.choices.products import choose_products
from ferrite_scheduler.choices.providers import OWN

SCALED = "mul(mul(p[m, n], a[m, 0]), c[0, n])"
WHOLE = "mul(mul(p[m, n], s[]), t[0])"


def called(body: str, result: str = "bf16", right: str = "w[n, k]", head: str = "contract") -> Graph:
    graph = parse_graph(f"""
    graph @f(x: f8e4m3fn[20, 6], w: f8e4m3fn[5, 6], v: bf16[5, 6], a: f32[20, 1], c: f32[1, 5], s: f32[], t: f32[1],
             b: bf16[5], r: bf16[20, 5]) -> (y) {{
      p: f32[20, 5] = {head} [m < 20, n < 5 | k < 6] x[m, k] * {right}
      y: {result}[20, 5] = loop [m < 20, n < 5] {body}
    }}""")
    return as_extern_calls(graph, ["p"])


RIGHT = "w as f8e4m3fn[6, 5]{1, 6}"
CALLS = {
    "scales of rows and columns": (f"cast.bf16({SCALED})", f"(x, {RIGHT}, a, c, none"),
    "the other way round": ("cast.bf16(mul(mul(p[m, n], c[0, n]), a[m, 0]))", f"(x, {RIGHT}, a, c, none"),
    "one number for all": (f"cast.bf16({WHOLE})", f"(x, {RIGHT}, s, t, none"),
    "a bias": (f"cast.bf16(relu(add({SCALED}, cast.f32(b[n]))))", f"(x, {RIGHT}, a, c, b"),
    "a matrix is no bias": (f"cast.bf16(add({SCALED}, cast.f32(r[m, n])))", f"(x, {RIGHT}, a, c, none"),
    "scales that are computed": ("cast.bf16(mul(mul(p[m, n], exp(a[m, 0])), c[0, n]))", f"(x, {RIGHT}, p_scale_a, c"),
    "one of a row alone": ("cast.bf16(mul(mul(p[m, n], a[m, 0]), s[]))", f"(x, {RIGHT}, a, p_scale_b"),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls(case: str) -> None:
    body, wanted = CALLS[case]
    found = called(body)
    assert not any(isinstance(definition, Contract) for definition in found.definitions)
    assert f"extern aten._scaled_mm.default{wanted}" in str(found)


def test_columns_that_are_computed_lie_next_to_each_other() -> None:
    found = called(f"cast.bf16({SCALED})", right="cast.f8e4m3fn(cast.f32(v[n, k]))")
    assert "p_right: f8e4m3fn[5, 6] = loop" in str(found)
    assert "p_right as f8e4m3fn[6, 5]{1, 6}" in str(found)


@pytest.mark.parametrize("head", ["contract", "contract fast"])
def test_the_call_is_as_fast_as_the_product(head: str) -> None:
    (call,) = (d for d in called(f"cast.bf16({SCALED})", head=head).definitions if isinstance(d, Extern))
    assert dict(call.kwargs)["use_fast_accum"] == (head == "contract fast")


@pytest.mark.parametrize(
    ("body", "result", "wanted"),
    [
        (f"cast.bf16({WHOLE})", "bf16", "bf16"),
        (f"cast.f16({WHOLE})", "f16", "f16"),
        (WHOLE, "f32", "f32"),
        (f"cast.f8e4m3fn({SCALED})", "f8e4m3fn", "bf16"),
    ],
)
def test_the_library_rounds_to_what_is_stored(body: str, result: str, wanted: str) -> None:
    (call,) = (definition for definition in called(body, result).definitions if isinstance(definition, Extern))
    assert [value.type.dtype.name for value in call.results if value] == [wanted]
    assert dict(call.kwargs)["out_dtype"].value == wanted


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (SCALED, "f32"),
        (f"cast.f16({SCALED})", "f16"),
        ("cast.bf16(p[m, n])", "bf16"),
        ("cast.bf16(mul(p[m, n], a[m, 0]))", "bf16"),
        ("cast.bf16(mul(mul(p[m, n], a[m, 0]), p[m, n]))", "bf16"),
        ("cast.bf16(mul(mul(p[m, n], cast.f32(r[m, n])), c[0, n]))", "bf16"),
    ],
    ids=["wide results", "f16", "no scales", "one scale", "the product itself", "a scale of each element"],
)
def test_what_no_call_computes_stays_a_contraction(body: str, result: str) -> None:
    assert any(isinstance(definition, Contract) for definition in called(body, result).definitions)


def test_what_no_call_computes_is_not_weighed() -> None:
    text = """
    graph @f(x: f8e4m3fn[20, 6], w: f8e4m3fn[5, 6]) -> (p) {
      p: f32[20, 5] = contract [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]
    }"""
    found = choose_products(parse_graph(text), Unknown("no GPU"), policy=Policy(tile_products=True))
    (choice,) = found.choices
    assert choice.chosen == OWN
    assert "nobody else computes it" in str(choice)
