"""Results of extern calls that are only put beside other values: calls write them where they belong."""

from __future__ import annotations

import pytest

from checks import APART, check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Extern, Loop, Update
from ferrite_scheduler import Policy, Schedule, Target, schedule
from ferrite_scheduler.fusion.explanation import explain
from ferrite_scheduler.memory.footprint import footprint
from ferrite_scheduler.model.changes import Change

POLICY = Policy(mixed_combos=False, slice_bytes=0)
FURTHER = "d: f32[4, 12] = loop [i < 4, j < 12] exp(c[i, j])"


def joined(dim: str, limit: int | str, first: str, second: str) -> str:
    """Returns the text of what is one value up to a place along a dim, and another one from there on."""
    place, limit = f"index.i32({dim})", limit if isinstance(limit, str) else f"i32({limit})"
    return f"masked(lt({place}, {limit}), {first}, masked(ge({place}, {limit}), {second}, f32(0.0)))"


def side_by_side(
    first: str = "mm.default(x, a)", value: str = "q[i, j - 8]", more: str = "", results: str = "c", n: int = 8
) -> str:
    """Returns the text of a graph that puts two products side by side."""
    return f"""graph @f(x: f32[4, 8], y: f32[4, 8], a: f32[8, {n}], b: f32[8, 4]) -> ({results}) {{
      p: f32[4, {n}] = extern aten.{first}
      q: f32[4, 4] = extern aten.mm.default(y, b)
      c: f32[4, {n + 4}] = loop [i < 4, j < {n + 4}] {joined("j", n, "p[i, j]", value)}
      {more}
    }}"""


def one_below_the_other() -> str:
    return f"""graph @f(x: f32[4, 8], y: f32[2, 8], a: f32[8, 6], s: f32[4, 6]) -> (c) {{
      p: f32[4, 6] = extern aten.addmm.default(s, x, a)
      q: f32[2, 6] = extern aten.mm.default(y, a)
      c: f32[6, 6] = loop [i < 6, j < 6] {joined("i", 4, "p[i, j]", "q[i - 4, j]")}
    }}"""


def calls(found: Schedule) -> list[str]:
    return [d.target.removeprefix("aten.") for d in found.graph.definitions if isinstance(d, Extern)]


def kernels(found: Schedule) -> list[str]:
    return [type(d).__name__ for d in found.graph.definitions if isinstance(d, (Loop, Update))]


def test_both_products_are_written_where_they_belong() -> None:
    found = check(side_by_side(), policy=POLICY)
    assert calls(found) == ["empty_strided.default", "mm.out", "mm.out"]
    assert not found.kernels
    assert [str(step) for step in found.steps if str(step).startswith("c_home_view")] == [
        "c_home_view = view c_home as f32[4, 8]{12, 1} at 0",
        "c_home_view_2 = view c_home as f32[4, 4]{12, 1} at 8",
    ]
    change = next(change for change in found.changes if isinstance(change, Change) and change.step == "stored_slices")
    assert change.names == ("p", "q", "c")
    assert "the library writes to its slice of a concatenation" in explain(found, "p_stored", "c")


def test_rows_are_written_below_each_other_by_products_that_add() -> None:
    assert calls(check(one_below_the_other(), policy=POLICY)) == ["empty_strided.default", "addmm.out", "mm.out"]


def test_what_is_added_to_a_product_needs_rows_without_gaps() -> None:
    text = side_by_side("addmm.default(s, x, a)").replace("a: f32", "s: f32[4, 8], a: f32")
    assert calls(check(text, policy=POLICY)) == ["addmm.default", "empty_strided.default", "mm.out"]


def test_one_part_more_is_stored_behind_the_calls() -> None:
    found = check(side_by_side(value="exp(y[i, j - 4])").replace("j - 4", "j - 8"), policy=POLICY)
    assert calls(found)[:2] == ["empty_strided.default", "mm.out"]
    assert kernels(found) == ["Update"]
    assert len(found.kernels) == 1


def test_products_of_more_axes() -> None:
    text = f"""graph @f(x: f32[2, 4, 8], a: f32[8, 8], b: f32[8, 4]) -> (c) {{
      p: f32[8, 8] = extern aten.mm.default(x as f32[8, 8], a)
      q: f32[8, 4] = extern aten.mm.default(x as f32[8, 8], b)
      c: f32[2, 4, 12] = loop [h < 2, i < 4, j < 12] {joined("j", 8, "p[h*4 + i, j]", "q[h*4 + i, j - 8]")}
    }}"""
    found = check(text, policy=POLICY)
    assert calls(found) == ["empty_strided.default", "mm.out", "mm.out"]
    assert any("f32[8, 4]{12, 1} at 8" in str(step) for step in found.steps)


def test_halves_that_are_widened_to_be_chosen_from() -> None:
    widened = joined("j", 8, "cast.f32(p[i, j])", "cast.f32(q[i, j - 8])")
    text = f"""graph @f(x: bf16[4, 8], a: bf16[8, 8]) -> (c) {{
      p: bf16[4, 8] = extern aten.mm.default(x, a)
      q: bf16[4, 8] = extern aten.mm.default(x, a as bf16[8, 8]{{1, 8}})
      c: bf16[4, 16] = loop [i < 4, j < 16] cast.bf16({widened})
    }}"""
    assert calls(check(text, policy=POLICY)) == ["empty_strided.default", "mm.out", "mm.out"]


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ({"results": "c, p"}, 1),
        ({"more": "d: f32[4, 8] = loop [i < 4, j < 8] exp(p[i, j])", "results": "c, d"}, 1),
        ({"first": "clone.default(x)"}, 1),
        ({"value": "q[3 - i, j - 8]"}, 1),
        ({"n": 6, "value": "q[i, j - 6]"}, 0),
        ({"value": "exp(q[i, j - 8])", "more": FURTHER, "results": "c, d"}, 0),
        ({"more": FURTHER, "results": "d"}, 0),
        ({"value": "p[i, j - 8]"}, 0),
        ({"value": "add(q[i, j - 8], p[i, j - 4])"}, 0),
    ],
    ids=[
        *("returned", "read again", "other calls", "turned", "rows begin anywhere", "kernels go on", "only kernels"),
        *("twice", "of both"),
    ],
)
def test_what_stays(form: dict, written: int) -> None:
    assert calls(check(side_by_side(**form), policy=POLICY)).count("mm.out") == written


def test_a_whole_that_kernels_read_too_is_made_by_calls_alone() -> None:
    text = side_by_side(more=FURTHER, results="c, d")
    found = check(text, policy=POLICY)
    assert calls(found) == ["empty_strided.default", "mm.out", "mm.out"]
    assert len(found.kernels) == 1


def test_small_results_stay() -> None:
    assert calls(check(side_by_side(), policy=APART)) == ["mm.default", "mm.default"]


@pytest.mark.parametrize(
    ("columns", "wide", "limit", "target"),
    [("8", "16", "i32(8)", "mm.out"), ("m", "m+m", "index.i32(m)", "mm.default")],
)
def test_only_where_slices_begin_has_to_be_known(columns: str, wide: str, limit: str, target: str) -> None:
    whole = joined("j", limit, "p[i, j]", f"x[i, j - {columns}]")
    text = f"""graph @f(
      x: f32[n, {columns}], a: f32[{columns}, {columns}], n: size, m: size
    ) -> (c) where n: size >= 2 ~ 4, m: size >= 2 ~ 8 {{
      p: f32[n, {columns}] = extern aten.mm.default(x, a)
      c: f32[n, {wide}] = loop [i < n, j < {wide}] {whole}
    }}"""
    assert target in calls(schedule(parse_graph(text), Target(), POLICY))


def test_memory_is_needed_once() -> None:
    text = f"""graph @f(x: f32[512, 512], a: f32[512, 512]) -> (c) {{
      p: f32[512, 512] = extern aten.mm.default(x, a)
      q: f32[512, 512] = extern aten.mm.default(a, x)
      c: f32[512, 1024] = loop [i < 512, j < 1024] {joined("j", 512, "p[i, j]", "q[i, j - 512]")}
    }}"""

    def peak(policy: Policy) -> int:
        return footprint(schedule(parse_graph(text), Target(), policy, held=("x", "a"))).peak >> 20

    assert (peak(Policy()), peak(Policy(slice_bytes=1 << 30))) == (4, 6)
