"""Sums of products that are computed far apart: added up product by product, where that lowers the peak of memory."""

from __future__ import annotations

import pytest

from checks import agrees, check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Extern, Graph
from ferrite_ir.reference.tensors import filled
from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.memory.footprint import footprint
from ferrite_scheduler.simulation.simulator import simulate

POLICY = Policy(accumulated_bytes=0)
NEVER = Policy(accumulated_bytes=1 << 40, ordered_bytes=1 << 40)


def tensors(graph: Graph, given: list) -> list:
    types = [value.type for value in graph.inputs]
    return [filled(item, t.dtype, t.shape, t.strides) for item, t in zip(given, types, strict=True)]


def wide(load: str, dtype: str) -> str:
    return load if dtype == "f32" else f"cast.f32({load})"


def narrow(body: str, dtype: str) -> str:
    return body if dtype == "f32" else f"cast.{dtype}({body})"


def applied(
    uses: int, *, size: int = 4, dtype: str = "f32", at: str = "i, j", more: str = "", kept: str = "", last: str = ""
) -> str:
    """Returns the text of a graph that uses a weight several times, one after the other, and adds what comes of it.

    Args:
        uses: how often.
        size: rows and columns.
        dtype: of all values.
        at: where the sum reads each product.
        more: what is added to the products besides.
        kept: further results.
        last: what is done to the sum.
    """
    kind, grid = f"{dtype}[{size}, {size}]", f"[i < {size}, j < {size}]"
    lines, total = [], more
    for use in range(uses):
        given = "x" if use == 0 else f"y{use - 1}"
        half = narrow(f"mul({wide(f'h{use}[i, j]', dtype)}, f32(0.5))", dtype)
        lines += [
            f"h{use}: {kind} = extern aten.mm.default({given}, w)",
            f"y{use}: {kind} = loop {grid} {half}",
            f"p{use}: {kind} = extern aten.mm.default({given}, h{use})",
        ]
        product = wide(f"p{use}[{at}]", dtype)
        total = f"add({total}, {product})" if total else product
    lines.append(f"g: {kind} = loop {grid} {narrow(f'{last}({total})' if last else total, dtype)}")
    body = "\n  ".join(lines)
    return f"graph @f(x: {kind}, w: {kind}, b: {kind}) -> (g, y{uses - 1}{kept}) {{\n  {body}\n}}"


def calls(text: str, policy: Policy = POLICY, *, is_exact: bool = True) -> list[str]:
    """Returns the extern calls of a schedule that computes what its graph means, up to roundings to half types."""
    found = check(text, policy=policy) if is_exact else schedule(parse_graph(text), Target(), policy)
    return [d.target.split(".")[1] for d in found.graph.definitions if isinstance(d, Extern)]


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("uses", [4, 6])
def test_a_sum_is_added_up_product_by_product(uses: int, dtype: str) -> None:
    text = applied(uses, dtype=dtype) if dtype != "f64" else applied(uses).replace("f32", "f64")
    assert calls(text, is_exact=dtype != "bf16") == ["mm", "mm", *["mm", "addmm"] * (uses - 1)]
    assert calls(text, NEVER) == ["mm", "mm"] * uses


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_sum_that_is_nothing_else_needs_no_kernel(dtype: str) -> None:
    found = schedule(parse_graph(applied(5, dtype=dtype)), Target(), POLICY).graph
    last = next(d for d in found.definitions if any(value is not None and value.name == "g" for value in d.results))
    assert isinstance(last, Extern)
    assert last.target == "aten.addmm.default"


def test_rounded_sums_agree_up_to_roundings() -> None:
    graph = parse_graph(applied(6, dtype="bf16"))
    given = [[[round(0.1 * (row - column), 2) for column in range(4)] for row in range(4)] for _ in range(3)]
    found, expected = (simulate(schedule(graph, Target(), policy), tensors(graph, given)) for policy in (POLICY, NEVER))
    assert agrees(found, expected, 2**-6)


@pytest.mark.parametrize(
    "form",
    [{"more": "b[i, j]"}, {"at": "j, i"}, {"last": "exp"}, {"more": "mul(b[i, j], f32(3.0))", "at": "j, i"}],
    ids=" ".join,
)
def test_what_surrounds_a_sum_is_kept(form: dict[str, str]) -> None:
    assert calls(applied(5, **form)).count("addmm") == 4


def test_a_product_that_others_read_is_left_alone() -> None:
    assert calls(applied(5, kept=", p2")).count("addmm") == 3  # the others are still added up


def test_two_products_are_left_alone() -> None:
    assert "addmm" not in calls(applied(2))


def test_products_that_do_not_wait_are_left_alone() -> None:
    """They are computed one after the other, as those of three projections of one input are: nothing is gained."""
    large = "\n".join(f"a{n}: f32[64, 64] = extern aten.mm.default(v, v)" for n in range(3))
    text = f"""graph @f(x: f32[4, 4], w: f32[4, 4], v: f32[64, 64]) -> (g, s) {{
      {large}
      s: f32[64, 64] = loop [i < 64, j < 64] mul(a0[i, j], mul(a1[i, j], a2[i, j]))
      p0: f32[4, 4] = extern aten.mm.default(x, w)
      p1: f32[4, 4] = extern aten.mm.default(w, x)
      p2: f32[4, 4] = extern aten.mm.default(x, x)
      g: f32[4, 4] = loop [i < 4, j < 4] add(add(p0[i, j], p1[i, j]), p2[i, j])
    }}"""
    assert "addmm" not in calls(text)


def test_small_products_are_left_alone() -> None:
    found = schedule(parse_graph(applied(6)), Target(), Policy())
    assert not [d for d in found.graph.definitions if isinstance(d, Extern) and "addmm" in d.target]


def test_the_peak_does_not_grow_with_the_uses() -> None:
    def peak(uses: int, policy: Policy) -> int:
        return footprint(schedule(parse_graph(applied(uses, size=512)), Target(), policy)).peak >> 20

    matrices = {uses: (peak(uses, Policy()), peak(uses, NEVER)) for uses in (4, 8, 16)}
    assert matrices[4][0] == matrices[8][0] == matrices[16][0]
    assert matrices[16][1] - matrices[4][1] == 12  # one matrix of 1 MiB for each use


def test_a_sum_with_sizes_that_a_call_tells() -> None:
    text = applied(5).replace("4, 4]", "n, n]").replace("i < 4, j < 4", "i < n, j < n")
    text = text.replace(") -> (g, y4) {", ") -> (g, y4) where n: size >= 1 ~ 512 {")
    found = schedule(parse_graph(text), Target(), Policy())
    assert [d.target for d in found.graph.definitions if isinstance(d, Extern)].count("aten.addmm.default") == 4
