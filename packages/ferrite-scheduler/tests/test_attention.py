"""Attention: how it lies in its kernel, and what shares that."""

from __future__ import annotations

import pytest

from checks import check, generated_inputs, refusal
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Attend
from ferrite_scheduler import Schedule, schedule
from ferrite_scheduler.model.forms import Attention
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.text.parser import parse_schedule


def text(
    more: str = "",
    outputs: str = "o",
    rows: int | str = 5,
    batch: str = "b < 2, h < 4",
    blocks: str = "",
    where: str = "",
) -> str:
    """Returns the text of attention of four heads of queries to two of keys, and of what reads it."""
    lead = "".join(f"{extent}, " for extent in (2, 4) if batch)
    at = "b, h, " if batch else ""
    keys = "b, h // 2, " if batch else ""
    inner = "d < 3, a < 2" if blocks else "d < 3"
    return f"""
    graph @f(q: bf16[{lead}{rows}, 3], k: bf16[{lead.replace("4", "2")}7, 3], v: bf16[{lead.replace("4", "2")}7, 6],
             r: f32[{lead}{rows}, 6], n: i32[3], p: i32[3, 2]) -> ({outputs}) {where} {{
      o: f32[{lead}{rows}, 6], l: f32[{lead}{rows}] =
        attend softmax (s) [{batch}{", " if batch else ""}i < {rows}, e < 6 | j < 7 | {inner}]
        q[{at}i, d] * k[{keys}j, d] along d weigh mul(s[], f32(0.5)) times v[{keys}j, e]
        if le(index.i32(j), index.i32(i)) {blocks}
      {more}
    }}"""


def sole(graph: str) -> Kernel:
    (kernel,) = check(graph).kernels
    return kernel


def axes_of(kernel: Kernel) -> dict[str, int]:
    return {axis.name: axis.size for axis in kernel.axes}


def test_rows_columns_and_what_is_summed_along_have_axes_of_their_own() -> None:
    kernel = sole(text(outputs="o, l"))
    assert kernel.form == Attention()
    assert axes_of(kernel) == {"z": 8, "y": 5, "x": 6, "r": 7}
    assert [len(home) for home in kernel.homes.values()] == [4, 3]


def test_without_a_batch() -> None:
    assert axes_of(sole(text(batch="").replace("h // 2", "0"))) == {"y": 5, "x": 6, "r": 7}


def test_a_single_row_is_no_axis() -> None:
    assert axes_of(sole(text(rows=1, outputs="o, l"))) == {"z": 8, "x": 6, "r": 7}


ALL = "[b < 2, h < 4, i < 5, e < 6]"


@pytest.mark.parametrize(
    "body",
    ["relu(o[b, h, i, e])", "add(o[b, h, i, e], r[b, h, i, e])", "mul(o[b, h, i, e], l[b, h, i])"],
    ids=["activation", "residual", "of its rows"],
)
def test_what_reads_the_result_at_its_points_is_in_the_kernel(body: str) -> None:
    kernel = sole(text(f"y: f32[2, 4, 5, 6] = loop {ALL} {body}", "y"))
    assert kernel.stored == ("y",)


def test_results_lie_as_their_reader_wants() -> None:
    kernel = sole(text("y: bf16[2, 5, 4, 6] = loop [b < 2, i < 5, h < 4, e < 6] cast.bf16(o[b, h, i, e])", "y"))
    assert kernel.stored == ("y",)


REFUSED = [
    ("y: f32[2, 4, 5] = reduce sum [b < 2, h < 4, i < 5 | e < 6] o[b, h, i, e]", "F03"),
    ("y: f32[2, 4, 6] = reduce sum [b < 2, h < 4, e < 6 | i < 5] o[b, h, i, e]", "F03"),
    ("y: f32[2, 4, 5] = loop [b < 2, h < 4, i < 5] neg(l[b, h, i])", "F03"),
]


@pytest.mark.parametrize(("more", "rule"), REFUSED)
def test_what_has_other_points_is_not(more: str, rule: str) -> None:
    found = check(text(more, "y"))
    assert len(found.kernels) == 2
    assert refusal(found, "o", "y") == rule


def test_two_of_the_same_operands_are_two_kernels() -> None:
    one = "attend softmax (s{0}) [i < 5, e < 6 | j < 7 | d < 3] q[i, d] * k[j, d] along d weigh s{0}[] times v[j, e]"
    found = check(f"""
    graph @f(q: f32[5, 3], k: f32[7, 3], v: f32[7, 6]) -> (o1, o2) {{
      o1: f32[5, 6] = {one.format(1)}
      o2: f32[5, 6] = {one.format(2)}
    }}""")
    assert len(found.kernels) == 2
    assert refusal(found, "o1", "o2") == "F12"


def test_lists_of_blocks_stay_with_their_rows() -> None:
    graph = parse_graph(text(blocks="in blocks 2 by 4 a < n[i // 2] at p[i // 2, a]", outputs="o, l"))
    inputs = [*generated_inputs(graph)[:4], [1, 2, 0], [[0, 1], [1, 0], [0, 0]]]
    (kernel,) = check(graph, inputs=inputs).kernels
    (attend,) = kernel.body
    assert isinstance(attend, Attend)
    assert attend.blocks is not None
    assert str(attend.blocks.masked.count) == "n[y0 // 2]"


def test_symbolic_lengths() -> None:
    found = schedule(parse_graph(text(rows="m", where="where m: size >= 1 ~ 5", outputs="o, l")))
    assert str(found.kernels[0].axes[1].size) == "m"


@pytest.mark.parametrize("outputs", ["o", "o, l"])
def test_schedules_parse_back(outputs: str) -> None:
    found: Schedule = schedule(
        parse_graph(text(outputs=outputs, blocks="in blocks 2 by 4 a < n[i // 2] at p[i // 2, a]"))
    )
    assert parse_schedule(str(found)) == found
