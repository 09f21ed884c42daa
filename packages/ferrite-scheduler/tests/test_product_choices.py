"""Products of matrices as kernels of ours or extern calls, by what an oracle says that each costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest

from ferrite_ir import evaluate, parse_graph, verify, whole
from ferrite_ir.language.graph import Contract, Extern, Graph
from ferrite_scheduler import Policy, Schedule, parse_schedule, schedule
from ferrite_scheduler.choices.library_products import as_extern_calls
from ferrite_scheduler.choices.oracle import Unknown
from ferrite_scheduler.choices.products import Chosen, ProviderFailed, choose_products
from ferrite_scheduler.choices.providers import LIBRARY, OWN, SHIPPED, Emitted, Part
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
  p: f32[20, 5]  = contract stored bf16 [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]
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
        "p: f32[20, 5] = contract stored bf16 [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]",
        "add(p[m, n], cast.f32(b[n]))",
        "aten.addmm.default(b, x, w as bf16[6, 5]{1, 6})",
    ),
    "a matrix that is added is not": (
        "p: f32[20, 5] = contract stored bf16 [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]",
        "add(p[m, n], cast.f32(s[m, n]))",
        "aten.mm.default(x, w",
    ),
    "a scaled product has no bias": (
        "p: f32[20, 5] = contract stored bf16 [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]",
        "add(neg(p[m, n]), cast.f32(b[n]))",
        "aten.mm.default(x, w",
    ),
    "a factor that is computed comes first": (
        "p: f32[20, 5] = contract stored bf16 [m < 20, n < 5 | k < 6] cast.bf16(neg(cast.f32(x[m, k]))) * w[n, k]",
        "p[m, n]",
        "aten.mm.default(p_left, w",
    ),
    "a gathered factor, too": (
        "p: f32[20, 5] = contract stored bf16 [m < 20, n < 5 | k < 6] x[m // 2, k] * w[n, k]",
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
      p: f32[3, 20, 5] = contract stored bf16 [b < 3, m < 20, n < 5 | k < 6] x[b, m, k] * w[0, n, k]
      y: bf16[3, 20, 5] = loop [b < 3, m < 20, n < 5] cast.bf16(p[b, m, n])
    }""")
    found = as_extern_calls(graph, ["p"])
    assert calls(found) == ["aten.bmm.default"]
    assert "bf16[3, 6, 5]{0, 1, 6}" in str(found)


def test_the_result_of_a_plain_product_is_the_calls_own() -> None:
    graph = parse_graph("""
    graph @f(x: bf16[20, 6], w: bf16[5, 6]) -> (y, z) {
      p: f32[20, 5]  = contract stored bf16 [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]
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
      p: f32[20, 5]           = contract stored bf16 [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]
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
  p: f32[20, 24]  = contract stored bf16 [m < 20, n < 24 | k < {k} | g < 3]
    x[m, k] * w[g, k, n] segments m as g until ends[g]
  y: bf16[20, 24] = loop [m < 20, n < 24] cast.bf16(relu(p[m, n]))
}}"""
SUMS = """
graph @f(x: bf16[20, 16], v: bf16[20, 24], ends: i32[3]) -> (y) {
  p: f32[3, 16, 24]  = contract stored bf16 [g < 3, i < 16, j < 24 | m < 20]
    x[m, i] * v[m, j] segments m as g until ends[g]
  y: bf16[3, 16, 24] = loop [g < 3, i < 16, j < 24] cast.bf16(p[g, i, j])
}"""


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        (ROWS.format(k=16), "x, w, ends"),
        (
            SUMS.replace("bf16[20, 16]", "bf16[24, 20]")
            .replace("< 20", "< 24")
            .replace("20, 24", "24, 24")
            .replace("x[m, i]", "x[m, i + 1]"),
            "p_left as bf16[16, 24]{1, 16}, v, ends",
        ),
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


@dataclass
class Theirs:
    """A provider of calls of its own, for products of vectors of an even length."""

    name: str = "theirs"
    version: str = "1"
    candidates_: tuple[str, ...] = ("theirs small", "theirs large")
    emitted: list[str] = field(default_factory=list)

    def applicable(self, part: Part) -> bool:
        return part.graph.definer[part.products[0]].reduction_dims[0].size % 2 == 0

    def candidates(self, part: Part) -> tuple[str, ...]:
        return self.candidates_

    def emit(self, graph: Graph, products: Collection[str], candidate: str) -> Emitted:
        self.emitted.append(candidate)
        called = as_extern_calls(graph, products)
        target = f"kernel.{candidate.replace(' ', '_')}.k0"
        definitions = tuple(
            replace(d, target=target) if isinstance(d, Extern) and d.target.startswith("aten") else d
            for d in called.definitions
        )
        return Emitted(replace(called, definitions=definitions), {target: {"name": candidate}})


@dataclass
class Asked:
    """An oracle that was told what each way costs, by what calls it has."""

    seconds: dict[str, float]

    def cost(self, schedule: Schedule, kernels: Mapping[str, Any] = MappingProxyType({})) -> Cost:
        called = [key for key in self.seconds if key in str(schedule.graph)]
        assert (called[:1] == ["kernel.theirs"]) <= bool(kernels)
        return Cost(self.seconds[called[0]] if called else self.seconds[OWN], "told")


@pytest.mark.parametrize(
    ("seconds", "wanted", "kernels"),
    [
        ({"theirs_small": 3.0, "theirs_large": 1.0, "aten": 2.0, OWN: 2.5}, "theirs large", 1),
        ({"theirs_small": 1.99, "theirs_large": 1.99, "aten": 2.0, OWN: 1.99}, LIBRARY, 0),
        ({"theirs_small": 1.0, "theirs_large": 0.99, "aten": 2.0, OWN: 1.5}, "theirs small", 1),
        ({"theirs_small": math.inf, "theirs_large": math.inf, "aten": math.inf, OWN: 1.0}, OWN, 0),
    ],
    ids=["theirs", "hardly any difference", "hardly cheaper than another of theirs", "nobody else's runs"],
)
def test_candidates_of_all_providers_are_weighed(seconds: dict[str, float], wanted: str, kernels: int) -> None:
    found = choose_products(parse_graph(LINEAR), Asked(seconds), policy=TILES, providers=(*SHIPPED, Theirs()))
    (choice,) = found.choices
    assert choice.chosen == wanted
    assert [name for name, _ in choice.ways] == [LIBRARY, OWN, "theirs small", "theirs large"]
    assert len(found.kernels) == kernels
    assert bool(found.calls) == (wanted == LIBRARY)


def test_a_provider_that_is_not_applicable_is_not_asked_for_candidates() -> None:
    theirs, seconds = Theirs(), {"aten": 1.0, OWN: 2.0}
    odd = LINEAR.replace("6]", "7]").replace("k < 6", "k < 7")
    found = choose_products(parse_graph(odd), Asked(seconds), policy=TILES, providers=(*SHIPPED, theirs))
    assert [name for name, _ in found.choices[0].ways] == [LIBRARY, OWN]
    assert not theirs.emitted


class Wrong(Theirs):
    def emit(self, graph: Graph, products: Collection[str], candidate: str) -> Emitted:
        return Emitted(replace(graph, definitions=graph.definitions[1:]))


def test_a_graph_that_is_not_well_formed_is_an_error() -> None:
    with pytest.raises(ProviderFailed, match=r"'theirs' failed to compute v\d as 'theirs small': (?s:.*)V02"):
        choose_products(
            parse_graph(LINEAR), Asked({"aten": 1.0, OWN: 2.0}), policy=TILES, providers=(*SHIPPED, Wrong())
        )
