"""Kernels of attention as tile programs, run in plain Python beside the evaluator of the language."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from ferrite_ir import Graph, evaluate, parse_graph
from ferrite_scheduler import schedule
from ferrite_triton import UnsupportedDefinition, emit_kernel, tile_programs
from ferrite_triton.tile import verify
from tile_kernels import draw, flat, run_kernel

CAUSAL = " if ge(index.i32(i), index.i32(j))"
LISTS = " in blocks 16 by 16 a < n[i // 16] at p[i // 16, a]"
SCALED = " scaled by where(gt(index.i32(j), index.i32(h + 3)), c[h], f32(0.0))"
WHOLE = f"{LISTS} whole b < w[i // 16] at u[i // 16, b]"


def attention(
    rest: str = "",
    rows: int = 20,
    keys: int = 37,
    depth: int = 3,
    width: int = 5,
    heads: int = 2,
    dtype: str = "f32",
    weigh: str = "mul(s[], f32(0.5))",
    outputs: str = "o, l, m",
    more: str = "",
) -> Graph:
    """Returns a softmax of attention, with what may read its result."""
    inner = "".join(f", {name} < 3" for name, word in (("a", " a <"), ("b", " b <")) if word in rest)
    return parse_graph(f"""
    graph @f(q: {dtype}[{heads}, {rows}, {depth}], k: {dtype}[{keys}, {depth}], v: {dtype}[{heads}, {keys}, {width}],
             n: i32[2], p: i32[2, 3], w: i32[2], u: i32[2, 3], c: f32[{heads}]) -> ({outputs}) {{
      o: f32[{heads}, {rows}, {width}], l: f32[{heads}, {rows}], m: f32[{heads}, {rows}] =
        attend softmax (s) [h < {heads}, i < {rows}, e < {width} | j < {keys} | d < {depth}{inner}]
        q[h, i, d] * k[j, d] along d weigh {weigh} times v[h, j, e]{rest}
      {more}
    }}""")


GRADIENTS = """
graph @f(q: {0}[2, 20, 3], k: {0}[2, 37, 3], v: {0}[2, 37, 5], g: {0}[2, 20, 5], c: f32[2, 20]) -> (a, b) {{
  a: f32[2, 37, 4], b: f32[2, 37, 4] = attend sum (s, t) [h < 2, j < 37, e < 4 | i < 20 | d < 3, x < 5]
    let w = sub(t[], c[h, i])
    k[h, j, d] * q[h, i, d] along d, v[h, j, x] * g[h, i, x] along x weigh mul(s[], w), s[] times g[h, i, e], g[h, i, e]
    if ge(index.i32(i), index.i32(j))
}}"""

TWICE = """
graph @f(q: {0}[2, 20, 5], k: {0}[2, 37, 5], v: {0}[2, 37, 5], g: {0}[2, 20, 5], c: f32[2, 20]) -> (a, b) {{
  a: f32[2, 37, 5], b: f32[2, 37, 5] = attend sum (s, t) [h < 2, j < 37, e < 5 | i < 20 | d < 5, x < 5]
    let w = sub(t[], c[h, i])
    k[h, j, d] * q[h, i, d] along d, v[h, j, x] * g[h, i, x] along x weigh mul(s[], w), s[] times {1}
    if ge(index.i32(i), index.i32(j))
}}"""
"""Gradients of heads of one length: what is multiplied with weights has been multiplied before."""

FIXED = {"n": [[1, 2]], "p": [[[1, 0, 0], [2, 0, 0]]], "w": [[1, 0]], "u": [[[0, 0, 0], [0, 0, 0]]]}
"""Lists of blocks: of the first sixteen rows one with a mask and one whole, of the others two with a mask."""


def run(graph: Graph, blocks: int) -> tuple[list[Any], list[Any]]:
    """Returns what the kernel of a graph leaves in memory, and what the evaluator gives."""
    plan, generator = schedule(graph), random.Random(0)
    (kernel,) = plan.kernels
    memory: dict[str, list[Any]] = {}
    inputs = []
    for value in graph.inputs:
        count = int(value.type.storage_size)
        given = list(flat(FIXED[value.name][0])) if value.name in FIXED else draw(generator, count, value.type.dtype)
        memory[value.name] = given
        inputs.append(_nested(iter(given), value.type.shape))
    params = {p.name: memory.get(p.name, [None] * int(p.type.storage_size)) for p in kernel.params}
    run_kernel(plan, params, blocks)
    expected = evaluate(graph, inputs)
    return [params[output.name] for output in graph.outputs], [list(flat(part)) for part in expected]  # type: ignore[union-attr]


def _nested(numbers: Any, shape: tuple[Any, ...]) -> Any:
    return [_nested(numbers, shape[1:]) for _ in range(shape[0])] if shape else next(numbers)


def check(graph: Graph, tolerance: float = 1e-5, blocks: int = 16) -> None:
    for got, expected in zip(*run(graph, blocks), strict=True):
        assert got == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize(
    "rest",
    ["", CAUSAL, CAUSAL + LISTS, CAUSAL + WHOLE, WHOLE, SCALED, SCALED + CAUSAL + WHOLE],
    ids=["all", "mask", "lists", "whole", "no mask", "scaled", "scaled in lists"],
)
def test_values(rest: str) -> None:
    check(attention(rest))


@pytest.mark.parametrize("blocks", [16, 32])
def test_values_of_larger_blocks(blocks: int) -> None:
    check(attention(CAUSAL), blocks=blocks)


@pytest.mark.parametrize(
    "sizes",
    [
        {"rows": 1},
        {"keys": 1},
        {"depth": 1},
        {"width": 1},
        {"heads": 1},
        {"rows": 16, "keys": 32, "depth": 16, "width": 16},
    ],
    ids=str,
)
def test_values_at_the_edges_of_sizes(sizes: dict[str, int]) -> None:
    check(attention(**sizes))


@pytest.mark.parametrize(
    "weigh",
    [
        "s[]",
        "neg(s[])",
        "mul(s[], f32(-0.5))",
        "mul(f32(0.25), s[])",
        "add(mul(s[], f32(0.5)), c[h])",
        "f32(0.0)",
        "cast.f32(index.i32(j))",
        "mul(f32(4.0), tanh(div(mul(s[], f32(0.5)), f32(-8.0))))",
        "add(s[], mul(c[h], cast.f32(index.i32(j - 2*i + 3))))",
        "add(s[], mul(f32(0.01), cast.f32(index.i32((i + j) // 3))))",
    ],
)
def test_any_weight(weigh: str) -> None:
    check(attention(weigh=weigh))


def source_of(graph: Graph) -> str:
    return str(emit_kernel(schedule(graph).kernels[0]).source)


def test_constants_of_a_weight_become_one() -> None:
    source = source_of(attention(weigh="mul(f32(4.0), tanh(div(mul(s[], f32(0.5)), f32(8.0))))"))
    assert "div" not in source.split("for ")[1].split("safe")[0]
    assert " * 0.0625" in source
    assert "* 4.0" not in source  # it is part of what powers are made with


@pytest.mark.parametrize(("dtype", "taken"), [("bf16", True), ("f32", True), ("f16", False)])
def test_what_sums_are_multiplied_with_stands_outside_where_weights_stay_finite(dtype: str, *, taken: bool) -> None:
    text = TWICE.format(dtype, "q[h, i, e], g[h, i, e]").replace("mul(s[], w)", "mul(mul(s[], w), f32(0.125))")
    graph = parse_graph(text)
    check(graph, 1e-5 if dtype == "f32" else 0.3 if dtype == "bf16" else 3e-2)
    loop = source_of(graph).split("for ")[1].split("\n    ")
    assert (" * 0.125" not in "".join(line for line in loop if line.startswith("    "))) is taken


def test_numbers_are_made_of_positions_of_rows_once() -> None:
    source = source_of(attention(weigh="add(s[], cast.f32(index.i32(j - i)))"))
    before, inside = source.split("for ")
    assert before.count(".to(tl.float32)") == 1
    assert inside.count(".to(tl.float32)") == 1


@pytest.mark.parametrize(
    ("mask", "is_reversed"),
    [
        (CAUSAL, True),
        (" if lt(index.i32(i), index.i32(j))", False),
        (" if ge(index.i32(i - j), i32(3))", True),
        (" if bitand(ge(index.i32(i), index.i32(j)), le(index.i32(i - j), i32(7)))", False),
        (" if lt(index.i32(j), i32(7))", False),
        ("", False),
    ],
    ids=["causal", "later ones", "difference", "window", "columns", "all"],
)
def test_programs_of_longer_rows_begin_first(mask: str, *, is_reversed: bool) -> None:
    graph = attention(mask)
    check(graph)
    assert ("yblocks - 1 - " in source_of(graph)) is is_reversed


def test_a_row_that_is_masked_gives_nothing() -> None:
    got, _ = run(attention(" if lt(index.i32(i), index.i32(3))"), 16)
    assert got[0][3 * 5 : 20 * 5] == [0.0] * 85
    assert got[1][3:20] == got[2][3:20] == [float("-inf")] * 17


@pytest.mark.parametrize("weigh", ["add(s[], c[h])", "add(s[], f32(-3e38))"])
def test_weights_near_the_least_number_are_weighed_alike(weigh: str) -> None:
    """Times ``log2(e)`` they would be infinite."""
    plan, generator = schedule(attention(weigh=weigh, outputs="o")), random.Random(0)
    params = {p.name: draw(generator, int(p.type.storage_size), p.type.dtype) for p in plan.kernels[0].params}
    if "c" in params:
        params["c"] = [-3e38] * 2
    run_kernel(plan, params, 16)
    values = [params["v"][h * 185 + e : (h + 1) * 185 : 5] for h in range(2) for _ in range(20) for e in range(5)]
    assert params["o"] == pytest.approx([sum(each) / 37 for each in values], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("weigh", "taken"),
    [("mul(s[], f32(0.5))", True), ("add(s[], cast.f32(index.i32(j)))", True), ("add(s[], c[h])", False)],
)
def test_a_power_is_one_multiply_add_where_nothing_is_near_the_ends(weigh: str, *, taken: bool) -> None:
    source = source_of(attention(weigh=weigh))
    assert bool(re.search(r"power\w* = .*exp2\(\(?\w+ \* [\d.]+\)? - ", source)) is taken, source


def test_what_reads_the_result_is_computed_with_it() -> None:
    more = "y: f32[2, 20, 5] = loop [h < 2, i < 20, e < 5] add(mul(o[h, i, e], l[h, i]), c[h])"
    check(attention(more=more, outputs="y"))


def test_values_of_halves() -> None:
    check(attention(CAUSAL, dtype="bf16"), 1e-2)


@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 1e-5), ("f16", 3e-2)])
def test_sums_of_two_products(dtype: str, tolerance: float) -> None:
    check(parse_graph(GRADIENTS.format(dtype)), tolerance)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(
    ("factors", "loaded", "transposed"),
    [("q[h, i, e], g[h, i, e]", 0, 2), ("g[h, i, e], g[h, i, e]", 0, 1), ("q[h, i, e], g[h, i, 4 - e]", 2, 0)],
    ids=["both", "one", "another"],
)
def test_factors_of_products_are_loaded_once(factors: str, loaded: int, transposed: int, dtype: str) -> None:
    graph = parse_graph(TWICE.format(dtype, factors))
    check(graph, 1e-5 if dtype == "f32" else 3e-2)
    spec = emit_kernel(schedule(graph).kernels[0])
    facts = spec.facts.to_mapping()
    assert (facts["factors"], facts["depth"]) == (loaded, 32)
    assert spec.source.count("tl.trans(") == transposed
    assert spec.source.count("tl.load(") == 5 + loaded


@pytest.mark.parametrize(
    "graph", [attention(CAUSAL + WHOLE), parse_graph(GRADIENTS.format("bf16"))], ids=["softmax", "sums"]
)
def test_programs_keep_the_rules(graph: Graph) -> None:
    for kernel in schedule(graph).kernels:
        for program in tile_programs(kernel):
            assert not verify(program)


def test_blocks_of_programs_divide_those_of_the_mask() -> None:
    spec = emit_kernel(
        schedule(attention(CAUSAL + " in blocks 48 by 96 a < n[i // 48] at p[i // 48, a]", rows=90)).kernels[0]
    )
    limits = {axis["name"]: axis.get("max_block") for axis in spec.axes}
    assert (limits["y"], limits["r"]) == (16, 32)


def test_facts() -> None:
    spec = emit_kernel(schedule(attention(CAUSAL, dtype="bf16")).kernels[0])
    wanted = {"sums": 1, "products": 1, "depth": 16, "factors": 1, "factor_bytes": 2, "softmax": True}
    assert {name: spec.facts.to_mapping()[name] for name in wanted} == wanted
    assert spec.blocks == {"ZBLOCK": 1, "XBLOCK": 16, "DBLOCK": 16}
    both = emit_kernel(schedule(parse_graph(GRADIENTS.format("f32"))).kernels[0])
    assert {name: both.facts.to_mapping()[name] for name in wanted} == {
        "sums": 2,
        "products": 2,
        "depth": 32,
        "factors": 2,
        "factor_bytes": 4,
        "softmax": False,
    }


def test_where_a_block_lies_is_read_a_round_before() -> None:
    """What a round loads at once can be loaded ahead of what it computes."""
    source = emit_kernel(schedule(attention(CAUSAL + LISTS)).kernels[0]).source
    head, *rest = source[source.index("for round in") :].splitlines()[1:]
    assert head.strip().startswith("rstart")
    assert "block_" in head
    loads = [number for number, line in enumerate(rest) if "tl.load(" in line]
    first = next(number for number, line in enumerate(rest) if "tl.dot(" in line)
    assert len(loads) == 3
    assert loads[0] < first < loads[-1]


def test_wide_factors_are_multiplied_without_rounding() -> None:
    assert emit_kernel(schedule(attention()).kernels[0]).source.count('input_precision="ieee"') == 2
    assert "input_precision" not in emit_kernel(schedule(attention(dtype="f16")).kernels[0]).source


def test_layers_that_differ_in_names_share_a_kernel() -> None:
    one = (
        "attend softmax (s{0}) [i < 20, e < 6 | j < 7 | d < 6] q{0}[i, d] * k[j, d] along d weigh s{0}[] times k[j, e]"
    )
    graph = parse_graph(f"""
    graph @f(q1: f32[20, 6], k: f32[7, 6]) -> (o) {{
      q2: f32[20, 6] = {one.format(1)}
      o: f32[20, 6] = {one.format(2)}
    }}""")
    from ferrite_triton import emit_program

    assert len(emit_program(schedule(graph)).kernels) == 1


def test_what_no_program_holds_is_refused() -> None:
    graph = attention(CAUSAL + " in blocks 24 by 16 a < n[i // 24] at p[i // 24, a]", rows=90)
    with pytest.raises(UnsupportedDefinition, match="sparse blocks of 24; they have to be multiples of 16"):
        emit_kernel(schedule(graph).kernels[0])
