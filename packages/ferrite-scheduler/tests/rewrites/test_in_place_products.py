"""Products that are added to a matrix which dies there: the sum takes its place, and the library copies nothing."""

from __future__ import annotations

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Extern
from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.memory.footprint import footprint

POLICY = Policy(product_in_place_bytes=0)


def chain(size: int = 4, *, first: str = "mm", more: str = "", kept: str = "") -> str:
    """Returns the text of a graph that adds products to one another: to a product, to an input, or to a kernel's."""
    kind = f"f32[{size}, {size}]"
    begin = {
        "mm": f"p0: {kind} = extern aten.mm.default(x, w)",
        "input": f"p0: {kind} = extern aten.addmm.default(x, x, w)",
    }[first]
    return f"""graph @f(x: {kind}, w: {kind}) -> (p2{kept}) {{
      {begin}
      p1: {kind} = extern aten.addmm.default(p0, w, x)
      {more}
      p2: {kind} = extern aten.addmm.default(p1, w, w)
    }}"""


def targets(text: str, policy: Policy = POLICY) -> list[str]:
    """Returns the extern calls of a schedule that computes what its graph means."""
    found = check(text, policy=policy)
    return [d.target.removeprefix("aten.") for d in found.graph.definitions if isinstance(d, Extern)]


def test_sums_take_the_place_of_what_is_added_to() -> None:
    assert targets(chain()) == ["mm.default", "addmm.out", "addmm.out"]


def test_an_input_is_the_callers() -> None:
    assert targets(chain(first="input")) == ["addmm.default", "addmm.out", "addmm.out"]


@pytest.mark.parametrize(
    ("form", "last"),
    [
        ({"kept": ", p1"}, "addmm.default"),
        ({"more": "y: f32[4, 4] = loop [i < 4, j < 4] exp(p1[i, j])", "kept": ", y"}, "addmm.default"),
        ({"more": "y: f32[4, 4] = extern aten.mm.default(p1, w)", "kept": ", y"}, "addmm.default"),
    ],
    ids=["returned", "read by a kernel", "read by a product"],
)
def test_what_others_read_stays(form: dict[str, str], last: str) -> None:
    assert targets(chain(**form))[-1] == last


def test_a_product_with_itself_stays() -> None:
    text = chain().replace("default(p1, w, w)", "default(p1, p1, w)")
    assert targets(text)[-1] == "addmm.default"


def test_a_row_is_not_large_enough_to_hold_the_sum() -> None:
    text = """graph @f(x: f32[4, 4], b: f32[4]) -> (p) {
      p: f32[4, 4] = extern aten.addmm.default(b[:4], x, x)
    }"""
    found = schedule(parse_graph(text.replace("b[:4]", "b")), Target(), POLICY).graph
    assert [d.target for d in found.definitions if isinstance(d, Extern)] == ["aten.addmm.default"]


def test_small_matrices_stay() -> None:
    assert targets(chain(), Policy()) == ["mm.default", "addmm.default", "addmm.default"]


def test_one_matrix_is_alive_instead_of_two() -> None:
    def peak(policy: Policy) -> int:
        return footprint(schedule(parse_graph(chain(512)), Target(), policy)).peak >> 20

    assert (peak(POLICY), peak(Policy())) == (3, 4)
