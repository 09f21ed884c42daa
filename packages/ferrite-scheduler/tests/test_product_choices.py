"""Products of matrices as kernels of ours or extern calls, by what an oracle says that each costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest

from ferrite_ir import evaluate, parse_graph, verify, whole
from ferrite_ir.language.graph import Contract, Extern, Graph
from ferrite_scheduler import Policy, Schedule, parse_schedule, schedule
from ferrite_scheduler.choices.library_products import as_extern_calls
from ferrite_scheduler.choices.oracle import Unknown
from ferrite_scheduler.choices.products import Chosen, choose_products
from ferrite_scheduler.choices.providers import LIBRARY, OWN
from ferrite_scheduler.model.choices import Cost
from ferrite_scheduler.model.forms import Pointwise, TiledContraction

TILES = Policy(tile_products=True)


@dataclass
class Told:
    """An oracle that was told what a kernel of ours costs, and an extern call with the kernels beside it."""

    own: float
    library: float
    asked: list[Schedule] = field(default_factory=list)

    def cost(self, schedule: Schedule, kernels: object = None) -> Cost:
        self.asked.append(schedule)
        is_own = any(isinstance(kernel.form, TiledContraction) for kernel in schedule.kernels)
        return Cost(self.own if is_own else self.library, "told")


def calls(graph: Graph) -> list[str]:
    return [definition.target for definition in graph.definitions if isinstance(definition, Extern)]


def chosen(text: str, own: float, library: float) -> tuple[Chosen, Told]:
    oracle = Told(own, library)
    return choose_products(parse_graph(text), oracle, policy=TILES), oracle


LINEAR = """
graph @f(x: bf16[20, 6], w: bf16[5, 6], b: bf16[5]) -> (y) {
  p: f32[20, 5]  = contract [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]
  y: bf16[20, 5] = loop [m < 20, n < 5] cast.bf16(relu(add(p[m, n], cast.f32(b[n]))))
}"""


@pytest.mark.parametrize(
    ("own", "library", "wanted"),
    [(1.0, 2.0, OWN), (2.0, 1.0, LIBRARY), (0.99, 1.0, LIBRARY), (math.inf, 1.0, LIBRARY), (1.0, math.inf, OWN)],
    ids=["cheaper", "dearer", "hardly cheaper", "ours fails", "the library fails"],
)
def test_the_cheaper_way_is_taken(own: float, library: float, wanted: str) -> None:
    found, oracle = chosen(LINEAR, own, library)
    (choice,) = found.choices
    assert choice.chosen == wanted
    assert choice.values == ("y",)
    assert dict(choice.ways) == {OWN: Cost(own, "told"), LIBRARY: Cost(library, "told")}
    assert calls(found.graph) == list(found.calls) == (["aten.addmm.default"] if wanted == LIBRARY else [])
    assert len(oracle.asked) == 2


def test_each_way_is_asked_about_with_what_it_fuses() -> None:
    _, oracle = chosen(LINEAR, 1.0, 2.0)
    library, own = oracle.asked
    assert [kernel.form for kernel in own.kernels] == [TiledContraction()]
    assert [kernel.form for kernel in library.kernels] == [Pointwise()]


def test_parts_that_are_alike_are_asked_about_once() -> None:
    product, reader = LINEAR.splitlines()[2:4]
    for old, new in (("p:", "q:"), ("x[", "v["), ("y:", "z:"), ("p[", "q[")):
        product, reader = product.replace(old, new), reader.replace(old, new)
    second = LINEAR.replace("-> (y)", "-> (y, z)").replace("\n}", f"\n{product}\n{reader}\n}}")
    second = second.replace("x: bf16[20, 6],", "x: bf16[20, 6], v: bf16[20, 6],")
    found, oracle = chosen(second, 2.0, 1.0)
    assert len(found.choices) == 2
    assert len(oracle.asked) == 2
    assert calls(found.graph) == ["aten.addmm.default"] * 2


def test_without_a_machine_the_library_computes_them() -> None:
    found = choose_products(parse_graph(LINEAR), Unknown("no GPU"), policy=TILES)
    (choice,) = found.choices
    assert choice.chosen == LIBRARY
    assert "no GPU" in str(choice)


def test_nothing_is_asked_where_nothing_is_to_choose() -> None:
    oracle = Told(1.0, 1.0)
    graph = parse_graph("graph @f(x: f32[4]) -> (y) { y: f32[4] = loop [i < 4] exp(x[i]) }")
    assert choose_products(graph, oracle, policy=TILES) == Chosen(graph)
    assert not oracle.asked


CALLS = {
    "a bias is the call's": (
        "p: f32[20, 5] = contract [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]",
        "add(p[m, n], cast.f32(b[n]))",
        "aten.addmm.default(b, x, w as bf16[6, 5]{1, 6})",
    ),
    "a matrix that is added is not": (
        "p: f32[20, 5] = contract [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]",
        "add(p[m, n], cast.f32(s[m, n]))",
        "aten.mm.default(x, w",
    ),
    "a scaled product has no bias": (
        "p: f32[20, 5] = contract [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]",
        "add(neg(p[m, n]), cast.f32(b[n]))",
        "aten.mm.default(x, w",
    ),
    "a factor that is computed comes first": (
        "p: f32[20, 5] = contract [m < 20, n < 5 | k < 6] cast.bf16(neg(cast.f32(x[m, k]))) * w[n, k]",
        "p[m, n]",
        "aten.mm.default(p_left, w",
    ),
    "a gathered factor, too": (
        "p: f32[20, 5] = contract [m < 20, n < 5 | k < 6] x[m // 2, k] * w[n, k]",
        "p[m, n]",
        "aten.mm.default(p_left, w",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls(case: str) -> None:
    product, body, wanted = CALLS[case]
    graph = parse_graph(f"""
    graph @f(x: bf16[20, 6], w: bf16[5, 6], b: bf16[5], s: bf16[20, 5]) -> (y) {{
      {product}
      y: bf16[20, 5] = loop [m < 20, n < 5] cast.bf16({body})
    }}""")
    found = as_extern_calls(graph, ["p"])
    assert not any(isinstance(definition, Contract) for definition in found.definitions)
    assert wanted in str(found)


def test_a_batch_is_one_call() -> None:
    graph = parse_graph("""
    graph @f(x: bf16[3, 20, 6], w: bf16[1, 5, 6]) -> (y) {
      p: f32[3, 20, 5] = contract [b < 3, m < 20, n < 5 | k < 6] x[b, m, k] * w[0, n, k]
      y: bf16[3, 20, 5] = loop [b < 3, m < 20, n < 5] cast.bf16(p[b, m, n])
    }""")
    found = as_extern_calls(graph, ["p"])
    assert calls(found) == ["aten.bmm.default"]
    assert "bf16[3, 6, 5]{0, 1, 6}" in str(found)


def test_the_result_of_a_plain_product_is_the_calls_own() -> None:
    graph = parse_graph("""
    graph @f(x: bf16[20, 6], w: bf16[5, 6]) -> (y, z) {
      p: f32[20, 5]  = contract [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]
      y: bf16[20, 5] = loop [m < 20, n < 5] cast.bf16(p[m, n])
      z: bf16[20, 5] = loop [m < 20, n < 5] cast.bf16(neg(cast.f32(y[m, n])))
    }""")
    call, negated = as_extern_calls(graph, ["p"]).definitions
    assert isinstance(call, Extern)
    assert call.results[0] == graph.values["y"]
    assert "y[m, n]" in str(negated)


def test_a_result_that_lies_otherwise_is_copied() -> None:
    graph = parse_graph("""
    graph @f(x: bf16[20, 6], w: bf16[5, 6]) -> (y) {
      p: f32[20, 5]           = contract [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]
      y: bf16[20, 5]{1, 20}   = loop [m < 20, n < 5] cast.bf16(p[m, n])
    }""")
    assert len(as_extern_calls(graph, ["p"]).definitions) == 2


@pytest.mark.parametrize(("own", "library"), [(1e-05, 2.5e-05), (math.inf, 1e-05)])
def test_choices_and_kernels_of_tiles_parse_back(own: float, library: float) -> None:
    found, _ = chosen(LINEAR, own, library)
    plan = replace(schedule(found.graph, policy=TILES), choices=found.choices)
    again = parse_schedule(str(plan))
    assert str(again) == str(plan)
    assert again.choices == plan.choices
    assert [kernel.form for kernel in again.kernels] == [kernel.form for kernel in plan.kernels]


ROWS = """
graph @f(x: bf16[20, 16], w: bf16[3, {k}, 24], ends: i32[3]) -> (y) {{
  p: f32[20, 24]  = contract [m < 20, n < 24 | k < {k} | g < 3] x[m, k] * w[g, k, n] segments m as g until ends[g]
  y: bf16[20, 24] = loop [m < 20, n < 24] cast.bf16(relu(p[m, n]))
}}"""
SUMS = """
graph @f(x: bf16[20, 16], v: bf16[20, 24], ends: i32[3]) -> (y) {
  p: f32[3, 16, 24]  = contract [g < 3, i < 16, j < 24 | m < 20] x[m, i] * v[m, j] segments m as g until ends[g]
  y: bf16[3, 16, 24] = loop [g < 3, i < 16, j < 24] cast.bf16(p[g, i, j])
}"""


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        (ROWS.format(k=16), "x, w, ends"),
        (SUMS.replace("bf16[20, 16]", "bf16[24, 20]").replace("< 20", "< 24").replace("20, 24", "24, 24")
         .replace("x[m, i]", "x[m, i + 1]"), "p_left as bf16[16, 24]{1, 16}, v, ends"),
        (ROWS.format(k=16).replace("until ends[g]", "until add(ends[g], i32(1))"), "x, w, p_ends"),
    ],
    ids=["rows", "a factor that lies otherwise", "ends that are computed"],
)
def test_products_in_groups_are_one_call(text: str, operands: str) -> None:
    found = as_extern_calls(parse_graph(text), ["p"])
    assert calls(found) == ["aten._grouped_mm.default"]
    assert f"aten._grouped_mm.default({operands}" in str(found)
    assert not any(isinstance(definition, Contract) for definition in found.definitions)
    assert not verify(found)


def test_rows_that_the_library_cannot_take_have_no_call() -> None:
    graph = parse_graph(ROWS.format(k=15))
    assert not calls(as_extern_calls(graph, ["p"]))
    found, oracle = chosen(ROWS.format(k=15), 2.0, 1.0)
    assert [choice.chosen for choice in found.choices] == [OWN]
    assert not oracle.asked


@pytest.mark.parametrize("text", [ROWS.format(k=16), SUMS], ids=["rows", "sums"])
def test_products_are_measured_with_groups_of_equal_length(text: str) -> None:
    found, oracle = chosen(text, 2.0, 1.0)
    assert calls(found.graph) == ["aten._grouped_mm.default"]
    assert [value.name for value in found.graph.inputs][-1] == "ends"
    for asked in oracle.asked:
        assert [value.type.dtype.name for value in asked.graph.inputs] == ["bf16", "bf16"]
        made = next(definition for definition in asked.graph.definitions if definition.dims[0].size == 3)
        ends = Graph("ends", (), (made,), (whole(made.results[0]),))
        assert evaluate(ends, []) == [[6, 13, 20]]
