"""Attention: how it lies in its kernel, and what shares that."""

from __future__ import annotations

import pytest

from checks import check, generated_inputs, refusal
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Attend
from ferrite_scheduler import Policy, Schedule, schedule
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


EACH_HEAD = Policy(mixed_combos=False, attention_rows=1)
"""Heads that share keys have programs of their own."""


def sole(graph: str) -> Kernel:
    (kernel,) = check(graph, policy=EACH_HEAD).kernels
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
    found = check(text(more, "y"), policy=EACH_HEAD)
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


# --- heads that share keys, and parts of the keys ---------------------------------------------------------------------


def decoding(
    rows: int = 1, group: int = 2, keys: int | str = 70, rest: str = "", outputs: str = "o", where: str = ""
) -> str:
    """Returns the text of attention of four heads of queries; ``group`` of them have the same keys and values."""
    inner = "".join(f", {name} < 3" for name in "ac" if f"{name} <" in rest)
    shared = f"[2, {4 // group}, {keys}"
    return f"""
    graph @f(q: bf16[2, 4, {rows}, 3], k: bf16{shared}, 3], v: bf16{shared}, 6],
             n: i32[4, 1], p: i32[4, 1, 3], w: i32[1], u: i32[1, 3]) -> ({outputs}) {where} {{
      o: f32[2, 4, {rows}, 6], l: f32[2, 4, {rows}], m: f32[2, 4, {rows}] =
        attend softmax (s) [b < 2, h < 4, i < {rows}, e < 6 | j < {keys} | d < 3{inner}]
        q[b, h, i, d] * k[b, h // {group}, j, d] along d weigh mul(s[], cast.f32(index.i32(h)))
        times v[b, h // {group}, j, e]{rest}
    }}"""


WHOLE_DEVICE = Policy(mixed_combos=False, attention_programs=0)
"""Keys stay together."""
SPLIT = Policy(mixed_combos=False, attention_keys=8, attention_parts=4)
MASK = " if le(index.i32(j), add(index.i32(i), i32(40)))"
SCALED = f" scaled by where(lt(index.i32(j), index.i32(i + h + 30)), f32(2.0), f32(0.0)){MASK}"
LISTS = f"{MASK} in blocks 32 by 16 a < n[0, i // 32] at p[0, i // 32, a] whole c < w[i // 32] at u[i // 32, c]"
OF_HEADS = f"{MASK} in blocks 32 by 16 a < n[h, i // 32] at p[h, i // 32, a]"


def numbers(graph: str) -> list:
    """Returns inputs whose lists of blocks are of blocks 1 and 3, and of 0, 2 and 4."""
    given = generated_inputs(parse_graph(graph))[:3]
    return [*given, [[2], [0], [1], [2]], [[[1, 3, 0]]] * 4, [3], [[0, 2, 4]]]


@pytest.mark.parametrize(("rows", "group", "outputs"), [(1, 2, "o"), (3, 2, "o, l"), (2, 4, "o, l, m")])
@pytest.mark.parametrize("rest", ["", MASK, LISTS, SCALED], ids=["all", "mask", "lists", "scaled"])
def test_heads_that_share_keys_are_rows(rest: str, rows: int, group: int, outputs: str) -> None:
    graph = decoding(rows, group, rest=rest, outputs=outputs)
    kernel = check(graph, policy=WHOLE_DEVICE, inputs=numbers(graph)).kernels[0]
    assert axes_of(kernel) == {"z": 8 // group, "y": rows * group, "x": 6, "r": 70}


@pytest.mark.parametrize(
    ("rows", "group", "rest"), [(1, 1, ""), (1, 2, OF_HEADS), (64, 2, ""), (40, 2, LISTS)], ids=str
)
def test_heads_that_share_nothing_or_have_rows_enough_are_not(rows: int, group: int, rest: str) -> None:
    found = schedule(parse_graph(decoding(rows, group, rest=rest)), policy=WHOLE_DEVICE)
    assert axes_of(found.kernels[0])["z"] == 8
    assert not [change for change in found.changes if change.step == "split_attention"]


@pytest.mark.parametrize(("rows", "group", "outputs"), [(1, 2, "o"), (3, 1, "o, l"), (2, 4, "o, l, m")])
@pytest.mark.parametrize(
    "rest", ["", MASK, LISTS, OF_HEADS, SCALED], ids=["all", "mask", "lists", "of heads", "scaled"]
)
@pytest.mark.parametrize("keys", [70, 140])
def test_keys_are_split_over_programs(keys: int, rest: str, rows: int, group: int, outputs: str) -> None:
    graph = decoding(rows, group, keys, rest, outputs)
    kernel = check(graph, policy=SPLIT, inputs=numbers(graph)).kernels[0]
    assert axes_of(kernel)["z"] == 4 * (8 if rest == OF_HEADS else 8 // group)


def test_what_combines_the_parts_is_one_kernel_with_what_reads_it() -> None:
    graph = decoding().replace("-> (o)", "-> (y)").replace(
        "}", "  y: bf16[2, 1, 4, 6] = loop [b < 2, i < 1, h < 4, e < 6] cast.bf16(o[b, h, i, e])\n    }"
    )  # fmt: skip
    assert [kernel.stored for kernel in check(graph, policy=SPLIT).kernels] == [("o_part", "o_log"), ("y",)]


def test_rows_that_are_masked_in_all_parts_give_nothing() -> None:
    check(decoding(3, rest=" if lt(index.i32(i), i32(2))", outputs="o, l, m"), policy=SPLIT)


def test_keys_of_a_symbolic_number_are_split() -> None:
    graph = decoding(keys="m", where="where m: size >= 1 ~ 4096", rest=MASK)
    found = schedule(parse_graph(graph), policy=SPLIT)
    assert axes_of(found.kernels[0])["z"] == 16
    check(decoding(keys=5, rest=MASK), policy=Policy(mixed_combos=False, attention_keys=1, attention_parts=4))


@pytest.mark.parametrize(
    ("keys", "policy", "parts"),
    [
        (4096, Policy(), 16),
        (4096, Policy(attention_keys=1024), 4),
        (1 << 20, Policy(), 64),
        (1 << 20, Policy(attention_parts=20), 16),
        (1 << 20, Policy(attention_programs=1), 32),
        (511, Policy(), 1),
    ],
)
def test_there_are_as_many_parts_as_the_device_has_room_for(keys: int, policy: Policy, parts: int) -> None:
    kernel = schedule(parse_graph(decoding(keys=keys)), policy=policy).kernels[0]
    assert axes_of(kernel)["z"] == 4 * parts


def test_gradients_stay_whole() -> None:
    graph = decoding(keys=4096).replace("attend softmax", "attend sum")
    graph = graph.replace(", l: f32[2, 4, 1], m: f32[2, 4, 1]", "")
    assert axes_of(schedule(parse_graph(graph)).kernels[0])["z"] == 8
