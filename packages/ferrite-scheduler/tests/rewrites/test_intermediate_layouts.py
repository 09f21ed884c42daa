"""What only reductions or windows read lies as what it is computed from, and is part of its rows' kernel then."""

from __future__ import annotations

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_scheduler import Schedule
from ferrite_scheduler.rewrites.intermediate_layouts import lay_out_intermediates

GRAPH = """graph @f(x: f32[2, 8, 5, 3]{layout}, w: f32[8]{more}) -> (s{results}) {{
  m: f32[2, 5, 3] = reduce max [n < 2, p < 5, q < 3 | r < 8] x[n, r, p, q]
  v: f32[2, 8, 5, 3] = loop [n < 2, c < 8, p < 5, q < 3] {body}
  s: f32[2, 5, 3] = reduce sum [n < 2, p < 5, q < 3 | r < 8] exp(v[{place}])
{readers}}}"""
LAST = "{120, 1, 24, 8}"
BODY = "mul(exp(sub(x[n, c, p, q], m[n, p, q])), w[c])"


def written(layout: str = LAST, **parts: str) -> str:
    given = {"body": BODY, "more": "", "results": "", "readers": "", "place": "n, r, p, q"}
    return GRAPH.format(layout=layout, **given | parts)


def kernels_of(text: str) -> list[list[str]]:
    """Returns what each kernel of a schedule computes, after checking it."""
    found: Schedule = check(text)
    return [[value.name for d in kernel.body for value in d.results if value] for kernel in found.kernels]


READER = "  z: f32[2, 8, 5, 3] = loop [n < 2, c < 8, p < 5, q < 3] add(v[n, c, p, q], f32(1.0))\n"
PICKED = "  z: f32[2, 8, 5, 3] = loop [n < 2, c < 8, p < 5, q < 3] v[n, c, p, at(cast.i64(floor(w[c])), 3)]\n"
MIRROR = "  z: f32[2, 8, 5, 3] = loop [n < 2, c < 8, p < 5, q < 3] add(v[n, c, 4 - p, q], f32(1.0))\n"


@pytest.mark.parametrize(
    ("parts", "kernels"),
    [
        ({}, [["m", "v", "s"]]),
        ({"results": ", z", "readers": MIRROR}, [["m", "v", "s"], ["z"]]),
        ({"place": "n, 7 - r, p, q"}, [["m", "v"], ["s"]]),
    ],
    ids=["a reduction reads it", "and windows, which transpose it", "in the opposite order"],
)
def test_an_intermediate_lies_as_its_operand(parts: dict[str, str], kernels: list[list[str]]) -> None:
    graph = lay_out_intermediates(parse_graph(written(**parts)))
    assert graph.values["v"].type.strides == (120, 1, 24, 8)
    assert kernels_of(written(**parts)) == kernels


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (written(layout=""), "it lies so already"),
        (written(results=", v"), "users see it"),
        (written(results=", z", readers=READER), "a loop reads it point by point, too"),
        (written(results=", z", readers=PICKED), "positions that are computed do not cross it at little cost"),
        (written(results=", z", readers=MIRROR, place="n, 0, p, q"), "a reduction reads some elements of it often"),
        (
            written(more=", y: f32[2, 8, 5, 3]", body="mul(exp(sub(x[n, c, p, q], m[n, p, q])), y[n, c, p, q])"),
            "its operands do not agree",
        ),
        (written(body="mul(m[n, p, q], w[c])"), "no operand is of its size"),
    ],
)
def test_others_stay_row_major(text: str, why: str) -> None:
    graph = parse_graph(text)
    assert lay_out_intermediates(graph) is graph, why


WINDOWS = """graph @f(x: f32[2, 8, 5, 4]{layout}) -> (z) {{
  m: f32[{few}] = reduce sum [{kept} | {reduced}] x[{point}]
  e: f32[2, 8, 5, 4] = loop [n < 2, c < 8, p < 5, q < 4] exp(sub(x[n, c, p, q], m[{at}]))
  v: f32[2, 8, 5, 4] = loop [n < 2, c < 8, p < 5, q < 4] neg(e[n, c, p, q])
  z: f32[2, 8, 5, {wide}] = loop [n < 2, c < 8, p < 5, q < {wide}] {body}
}}"""
ROWS = {"few": "2, 5, 4", "kept": "n < 2, p < 5, q < 4", "reduced": "r < 8", "point": "n, r, p, q", "at": "n, p, q"}
IMAGES = {"few": "8", "kept": "c < 8", "reduced": "n < 2, p < 5, q < 4", "point": "n, c, p, q", "at": "c"}
POOLED = {"wide": "2", "body": "maximum(v[n, c, p, q*2], v[n, c, p, q*2 + 1])"}
PLAIN = {"wide": "4", "body": "neg(v[n, c, p, q])"}


@pytest.mark.parametrize(
    ("parts", "layout", "why"),
    [
        ({**ROWS, **POOLED}, "{160, 1, 32, 8}", "they are made of rows of channels"),
        ({**ROWS, **PLAIN}, None, "who reads it at its own points writes a row-major result"),
        ({**IMAGES, **POOLED}, None, "no row of theirs is reduced"),
    ],
)
def test_windows_of_rows(parts: dict[str, str], layout: str | None, why: str) -> None:
    graph = parse_graph(WINDOWS.format(layout="{160, 1, 32, 8}", **parts))
    changed = lay_out_intermediates(graph)
    if layout is None:
        assert changed is graph, why
    else:
        assert [changed.values[name].type.strides for name in "evz"] == [(160, 1, 32, 8)] * 2 + [(80, 10, 2, 1)], why


def test_dims_of_one_point_tell_no_order() -> None:
    text = written().replace("8", "1").replace("{120, 1, 24, 1}", "{15, 1, 3, 1}")
    graph = parse_graph(text)
    assert lay_out_intermediates(graph) is graph
