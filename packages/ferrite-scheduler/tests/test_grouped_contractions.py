"""Contractions whose points are in groups: what is computed tile by tile, how it lies, and what shares the kernel."""

from __future__ import annotations

from typing import Any

import pytest

from checks import check, generated_inputs, refusal
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Contract, Reduction
from ferrite_scheduler import Policy, Schedule, Target, schedule
from ferrite_scheduler.model.forms import TiledContraction

TILES = Policy(tile_products=True)


ENDS: dict[str, Any] = {"ends": [3, 3, 11], "others": [0, 5, 12]}


def found(text: str, policy: Policy = TILES) -> Schedule:
    graph = parse_graph(text)
    if "where" in text:  # of a size that no input has yet
        return schedule(graph, Target(), policy)
    inputs = [ENDS.get(v.name, made) for v, made in zip(graph.inputs, generated_inputs(graph), strict=True)]
    return check(graph, policy=policy, inputs=inputs)


def rows(body: str = "relu(p[m, n])", more: str = "", dtype: str = "bf16", given: str = "", size: str = "12") -> str:
    where = "" if size == "12" else f" where {size}: size >= 1 ~ 12"
    return f"""
    graph @f(x: {dtype}[{size}, 6], w: {dtype}[3, 5, 6], ends: i32[3], s: f32[{size}, 5]{given}) -> (y){where} {{
      p: f32[{size}, 5] = contract [m < {size}, n < 5 | k < 6 | g < 3]
        x[m, k] * w[g, n, k] segments m as g until ends[g]
      {more}
      y: f32[{size}, 5] = loop [m < {size}, n < 5] {body}
    }}"""


@pytest.mark.parametrize("size", ["12", "t"])
@pytest.mark.parametrize("body", ["relu(p[m, n])", "add(p[m, n], s[m, n])"])
def test_rows_in_groups_have_tiles_and_what_reads_them(body: str, size: str) -> None:
    (kernel,) = found(rows(body, size=size)).kernels
    assert kernel.form == TiledContraction(row_groups=3)
    assert [axis.name for axis in kernel.axes] == ["y", "x", "r"]
    assert kernel.stored == ("y",)
    (contract,) = (definition for definition in kernel.body if isinstance(definition, Contract))
    assert contract.segments is not None
    assert contract.segments.of in kernel.axes[0].dims


def test_sums_over_groups_have_tiles_on_an_axis_of_their_own() -> None:
    (kernel,) = found("""
    graph @f(x: bf16[12, 6], v: bf16[12, 5], ends: i32[3], s: f32[3, 6, 5]) -> (y) {
      p: f32[3, 6, 5] = contract [g < 3, i < 6, j < 5 | m < 12] x[m, i] * v[m, j] segments m as g until ends[g]
      y: f32[3, 6, 5] = loop [g < 3, i < 6, j < 5] add(p[g, i, j], s[g, i, j])
    }""").kernels
    assert kernel.form == TiledContraction()
    assert {axis.name: axis.size for axis in kernel.axes} == {"z": 3, "y": 6, "x": 5, "r": 12}


def gate(ends: str) -> str:
    more = (
        f"q: f32[12, 5] = contract [m < 12, n < 5 | k < 6 | h < 3] x[m, k] * v[h, n, k] segments m as h until {ends}[h]"
    )
    return rows("mul(p[m, n], q[m, n])", more, given=", v: bf16[3, 5, 6], others: i32[3]")


def test_a_gate_of_the_same_groups_is_one_kernel() -> None:
    (kernel,) = found(gate("ends")).kernels
    assert sum(isinstance(definition, Contract) for definition in kernel.body) == 2


def test_products_of_other_groups_are_kernels_of_their_own() -> None:
    plan = schedule(parse_graph(gate("others")), Target(), TILES)  # one of them is rounded in between
    assert len(plan.kernels) == 2
    assert refusal(plan, "p", "q") == "F12"


@pytest.mark.parametrize("text", [rows(dtype="f32"), rows().replace("bf16[12", "f16[12").replace("bf16[3", "f16[3")])
def test_others_are_sums_over_all_groups(text: str) -> None:
    policy = TILES if "f32[12, 6]" in text else Policy()
    assert isinstance(found(text, policy).kernels[0].body[0], Reduction)


def test_rows_that_are_cut_are_computed_by_themselves() -> None:
    """What reads rows as two dims that no memory joins leaves the product alone, and is right."""
    text = rows("relu(p[m, n])").replace(
        "y: f32[12, 5] = loop [m < 12, n < 5] relu(p[m, n])",
        "y: f32[4, 3, 5] = loop [a < 4, m < 3, n < 5] relu(p[m*4 + a, n])",
    )
    assert len(found(text).kernels) == 2


def test_what_is_of_a_group_lies_where_only_data_knows() -> None:
    """The weights of one group are read where those of another are written: the update is no part of the kernel."""
    schedule_ = found(
        rows()
        .replace("-> (y)", "-> (y) mutates (w: u)")
        .replace("y: f32", "u: bf16[3, 5, 6] = update set w [n < 5, k < 6] at [0, n, k] bf16(0.0)\n      y: f32")
    )
    assert len(schedule_.kernels) == 2


def test_groups_are_not_split() -> None:
    text = rows().replace("6]", "6400]").replace("k < 6 ", "k < 6400 ")
    plan = schedule(parse_graph(text), Target(), Policy(tile_products=True, product_parts=16))
    assert len(plan.kernels) == 1
