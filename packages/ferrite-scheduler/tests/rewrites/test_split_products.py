"""Split-K: products with few tiles and long sums get two stages, the second with what reads them."""

from __future__ import annotations

import pytest

from checks import EAGER_TO_SPLIT, check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Contract, Loop, Reduction
from ferrite_scheduler import Policy, Schedule, Target, schedule
from ferrite_scheduler.choices.products import choose_products
from ferrite_scheduler.model.choices import Cost
from ferrite_scheduler.model.forms import PersistentReduction, TiledContraction

TILES = Policy(tile_products=True)
SHORT = Policy(tile_products=True, product_part_points=4, product_part_step=2, mixed_combos=False)
"""For products that a test can compute."""

LINEAR = """
graph @f(x: bf16[{rows}, {points}], w: bf16[{columns}, {points}], b: bf16[{columns}]) -> (y) {{
  p: f32[{rows}, {columns}]  = contract stored bf16 [m < {rows}, n < {columns} | k < {points}] x[m, k] * w[n, k]
  y: bf16[{rows}, {columns}] = loop [m < {rows}, n < {columns}] cast.bf16(relu(add(p[m, n], cast.f32(b[n]))))
}}"""


def parts(plan: Schedule) -> list[int]:
    """Returns the extents of the batches of a plan's contractions."""
    contracts = [d for kernel in plan.kernels for d in kernel.body if isinstance(d, Contract)]
    return [int(contract.dims[0].size) if len(contract.dims) > 2 else 1 for contract in contracts]


def linear(
    rows: int | str, points: int | str, columns: int, policy: Policy = TILES, target: Target | None = None
) -> Schedule:
    text = LINEAR.format(rows=rows, points=points, columns=columns)
    return schedule(parse_graph(text), target or Target(), policy)


@pytest.mark.parametrize(
    ("rows", "points", "columns", "wanted"),
    [
        (32, 8192, 512, 16),
        (64, 14336, 4096, 2),
        (128, 14336, 4096, 4),
        (64, 4096, 14336, 1),
        (4096, 14336, 4096, 1),
        (32, 256, 512, 1),
        (32, 8191, 512, 16),
    ],
    ids=["tall", "decode", "more rows", "many tiles", "large", "short sums", "odd sums"],
)
def test_sums_are_cut_where_tiles_are_few(rows: int, points: int, columns: int, wanted: int) -> None:
    assert parts(linear(rows, points, columns)) == [wanted]


IMAGES = """
graph @f(g: bf16[{count}, {side}, {side}, {rows}], x: bf16[{count}, {side}, {side}, {columns}]) -> (p) {{
  p: f32[{rows}, {columns}] = contract [m < {rows}, n < {columns} | i < {count}, h < {side}, w < {side}] g[i, h, w, m] * x[i, h, w, n]
}}"""  # noqa: E501


@pytest.mark.parametrize(
    ("count", "side", "rows", "columns", "wanted"),
    [(1, 56, 64, 576, 7), (8, 56, 64, 576, 14), (1, 28, 128, 576, 1), (8, 16, 512, 4096, 1)],
    ids=["no whole blocks", "no borders", "short", "many tiles"],
)
def test_sums_over_images_are_cut_anywhere(count: int, side: int, rows: int, columns: int, wanted: int) -> None:
    graph = parse_graph(IMAGES.format(count=count, side=side, rows=rows, columns=columns))
    assert parts(schedule(graph, Target(), TILES)) == [wanted]


def test_parts_that_need_no_masks_are_taken_where_they_fill_the_device() -> None:
    """4096 points would have nine parts of 456, and one that is shorter."""
    (first, _) = linear(512, 4096, 512).kernels
    (contract,) = (definition for definition in first.body if isinstance(definition, Contract))
    assert contract.left.op == "load"
    assert 4096 % int(contract.dims[0].size) == 0


def test_what_reads_the_product_is_in_the_second_stage() -> None:
    first, second = linear(32, 8192, 512).kernels
    assert isinstance(first.form, TiledContraction)
    assert isinstance(second.form, PersistentReduction)
    assert first.stored == ("p_part",)
    assert [type(definition) for definition in second.body] == [Reduction, Loop]


def test_parts_are_as_fast_as_the_whole() -> None:
    text = (
        LINEAR.format(rows=32, points=8192, columns=512)
        .replace("contract stored bf16", "contract fast")
        .replace("bf16", "f32")
    )
    plan = schedule(parse_graph(text), Target(), TILES)
    assert parts(plan) == [16]
    assert [d.fast for kernel in plan.kernels for d in kernel.body if isinstance(d, Contract)] == [True]


def test_parts_are_not_rounded() -> None:
    values = linear(32, 8192, 512).graph.values
    assert values["p_part"].type.dtype.name == "f32"
    assert "p_part_rounded" not in values


@pytest.mark.parametrize(
    ("policy", "target"),
    [
        (Policy(tile_products=True, product_parts=1), Target()),
        (TILES, Target(l2_bytes=64 << 10)),
        (TILES, Target(tile_rates=((8, 8, 1.0),))),
    ],
    ids=["a policy", "a small cache", "tiles enough"],
)
def test_sums_stay_whole_by(policy: Policy, target: Target) -> None:
    assert parts(linear(32, 8192, 512, policy, target)) == [1]


@pytest.mark.parametrize(("rows", "points"), [("t", 8192), (32, "t")])
def test_sums_of_symbolic_products_stay_whole(rows: int | str, points: int | str) -> None:
    text = LINEAR.format(rows=rows, points=points, columns=512)
    symbolic = text.replace("-> (y) {", "-> (y) where t: size >= 0 ~ 8192 {")
    assert parts(schedule(parse_graph(symbolic), Target(), TILES)) == [1]


SMALL = {
    "a matrix": LINEAR.format(rows=18, points=16, columns=3),
    "a batch": """
graph @f(x: bf16[2, 18, 16], w: bf16[2, 3, 16]) -> (p) {
  p: f32[2, 18, 3] = contract [b < 2, m < 18, n < 3 | k < 16] x[b, m, k] * w[b, n, k]
}""",
    "sums of two dims": """
graph @f(x: bf16[18, 2, 8], w: bf16[3, 2, 8]) -> (p) {
  p: f32[18, 3] = contract [m < 18, n < 3 | i < 2, k < 8] x[m, i, k] * w[n, i, k]
}""",
    "a part that is shorter": LINEAR.format(rows=18, points=17, columns=3),
    "parts across dims": """
graph @f(x: bf16[18, 1, 3, 7], w: bf16[3, 1, 3, 7]) -> (p) {
  p: f32[18, 3] = contract [m < 18, n < 3 | b < 1, i < 3, k < 7] x[m, b, i, k] * w[n, b, i, k]
}""",
    "guarded factors": """
graph @f(x: bf16[18, 17], w: bf16[3, 17]) -> (p) {
  p: f32[18, 3] = contract [m < 18, n < 3 | k < 17] masked(lt(index.i64(k), i64(9)), x[m, k], bf16(0.0)) * w[n, k]
}""",
    "factors guarded by other numbers": """
graph @f(x: bf16[18, 17], w: bf16[3, 17]) -> (p) {
  p: f32[18, 3] = contract [m < 18, n < 3 | k < 17] masked(lt(index.i64(k), i64(9)), x[m, k], bf16(1.0)) * w[n, k]
}""",
    "a prologue": """
graph @f(x: bf16[18, 16], w: bf16[3, 16], s: f32[16]) -> (p) {
  p: f32[18, 3] = contract [m < 18, n < 3 | k < 16] cast.bf16(mul(cast.f32(x[m, k]), s[k])) * w[n, k]
}""",
    "a gate": """
graph @f(x: bf16[18, 16], w: bf16[3, 16], v: bf16[3, 16]) -> (y) {
  p: f32[18, 3] = contract [m < 18, n < 3 | k < 16] x[m, k] * w[n, k]
  q: f32[18, 3] = contract [m < 18, n < 3 | k < 16] x[m, k] * v[n, k]
  y: f32[18, 3] = loop [m < 18, n < 3] mul(p[m, n], relu(q[m, n]))
}""",
}


@pytest.mark.parametrize("text", SMALL.values(), ids=SMALL.keys())
def test_parts_add_up_to_the_product(text: str) -> None:
    plan = check(text, target=EAGER_TO_SPLIT, policy=SHORT)
    assert min(parts(plan)) > 1
    assert sum(isinstance(d, Reduction) for kernel in plan.kernels for d in kernel.body) == len(parts(plan))


class Asked:
    """An oracle that keeps what it was asked about."""

    def __init__(self) -> None:
        self.schedules: list[Schedule] = []

    def cost(self, schedule: Schedule, kernels: object = None) -> Cost:
        self.schedules.append(schedule)
        return Cost(1.0 if schedule.kernels[0].stored == ("v3_part",) else 2.0, "told")


def test_the_library_is_weighed_against_both_stages() -> None:
    oracle = Asked()
    graph = parse_graph(LINEAR.format(rows=32, points=8192, columns=512))
    found = choose_products(graph, oracle, policy=TILES)
    library, own = oracle.schedules
    assert not parts(library)
    assert parts(own) == [16]
    assert len(own.kernels) == 2
    assert found.graph == graph
