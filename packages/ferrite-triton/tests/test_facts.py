"""Facts of the spec, on kernels small enough to count by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler import schedule
from ferrite_triton import KernelSpec, emit_program
from hand_written import schedule_text


def emit(text: str, form: str = "pointwise", **placed: str) -> KernelSpec:
    return emit_program(schedule_text(text, form, placed)).kernels[0]


def facts_of(text: str, form: str = "pointwise") -> dict[str, Any]:
    return emit(text, form).facts.to_mapping()


def test_pointwise() -> None:
    facts = facts_of(
        "graph @f(x: bf16[64, 100], b: f32[100]) -> (y) {\n"
        "  y: f32[64, 100] = loop [d0 < 64, d1 < 100] add(cast.f32(x[d0, d1]), b[d1])\n}"
    )
    assert facts["loads"] == 2
    assert facts["stores"] == 1
    assert facts["ops"] == 1
    assert facts["bytes"] == 6400 * 2 + 100 * 4 + 6400 * 4
    assert facts["element_bytes"] == 4
    assert facts["contiguous_axis"] == "x"
    assert facts["numel"] == 6400
    assert not facts["atomics"]
    assert not facts["random"]


def test_reduction() -> None:
    facts = facts_of(
        "graph @f(x: f32[8, 100]) -> (y) {\n  y: f32[8] = reduce sum [d0 < 8 | r0 < 100] x[d0, r0]\n}", "persistent"
    )
    assert facts["reductions"] == 1
    assert facts["reduction_size"] == 100
    assert facts["numel"] == 8
    assert facts["contiguous_axis"] == "r"
    assert facts["bytes"] == 800 * 4 + 8 * 4


def test_what_is_read_says_which_axis_of_a_reduction_is_contiguous() -> None:
    """Rows of three have more in their results, which lie along another axis."""
    text = "graph @f(x: bf16[64, 3]) -> (y) {\n  y: f32[64] = reduce sum [d0 < 64 | r0 < 3] cast.f32(x[d0, r0])\n}"
    assert facts_of(text, "persistent")["contiguous_axis"] == "r"


@pytest.mark.parametrize(("apart", "axis"), [(2, "r"), (8, "r"), (16, "x")])
def test_elements_a_few_apart_lie_along_an_axis(apart: int, axis: str) -> None:
    """As those of windows that do not overlap do: each line is read by threads beside each other."""
    text = f"""
    graph @pooled(x: f32[128, 512, {apart}]) -> (y) {{
      y: f32[128] = reduce sum [a < 128 | r < 512] maximum(x[a, r, 0], x[a, r, {apart - 1}])
    }}"""
    assert facts_of(text, "persistent")["contiguous_axis"] == axis


def test_what_little_is_read_along_an_axis_does_not_say_that_it_is_contiguous() -> None:
    """Halves of rows take turns in what is written; of what is read the shift of channels alone has neighbours."""
    text = """
    graph @f(x: f32[64, 2, 16, 128], b: f32[16]) -> (m, y) {
      m: f32[64, 128, 2] = reduce max [a < 64, p < 128, e < 2 | r < 16] add(x[a, e, r, p], b[r])
      y: f32[64, 16, 128, 2] = loop [a < 64, r < 16, p < 128, e < 2] sub(add(x[a, e, r, p], b[r]), m[a, p, e])
    }"""
    (kernel,) = emit_program(schedule(parse_graph(text))).kernels
    assert kernel.facts.to_mapping()["contiguous_axis"] == "x"
    assert "r = tl.arange(0, RBLOCK)[:, None]" in kernel.source


ROWS_OF_SEVEN = (
    "graph @f(x: f32[64, 16, 7]) -> (y) {{\n  y: f32[64, 7] = reduce {} [d0 < 64, d1 < 7 | r0 < 16] x[{}]\n}}"
)


def test_columns_of_which_few_lie_beside_each_other() -> None:
    """They share tiles with the next ones; a warp takes all rows of some of them, and of more, rows one by one."""
    (few,) = emit_program(schedule(parse_graph(ROWS_OF_SEVEN.format("sum", "d0, r0, d1")))).kernels
    assert few.facts.to_mapping()["neighbours"] == 7
    assert "r = tl.arange(0, RBLOCK)[None, :]" in few.source
    (many,) = emit_program(schedule(parse_graph(ROWS_OF_SEVEN.replace("7", "24").format("sum", "d0, r0, d1")))).kernels
    assert many.facts.to_mapping()["neighbours"] == 24
    assert "r = tl.arange(0, RBLOCK)[:, None]" in many.source


@pytest.mark.parametrize(
    ("columns", "place", "percent"),
    [
        (100, "d1", None),
        (200, "2*d1", 50),
        (50, "d1 // 2", 33),
        (100, "99 - d1", 50),
        (1, "0", 0),
        (100, "d1 // 2 * 2", 0),
    ],
)
def test_part_of_the_bytes_that_is_read_apart(columns: int, place: str, percent: int | None) -> None:
    body = f"loop [d0 < 64, d1 < 100] exp(x[d0, {place}])"
    facts = facts_of(f"graph @f(x: f32[64, {columns}]) -> (y) {{\n  y: f32[64, 100] = {body}\n}}")
    assert facts.get("percent_apart") == (percent or None)


@pytest.mark.parametrize(
    ("places", "loads"),
    [
        (("d0, d1", "d0, d1 + 2"), None),
        (("d0, d1", "d0, d1 + 1", "d0, d1 + 3"), 2),
        (("d0, 2*d1", "d0, 2*d1 + 1"), 2),
        (("d0, d1 // 2 * 2", "d0, d1 // 2 * 2 + 1"), None),
    ],
)
def test_loads_of_a_window_begin_anywhere(places: tuple[str, ...], loads: int | None) -> None:
    total = f"x[{places[0]}]"
    for place in places[1:]:
        total = f"add({total}, x[{place}])"
    body = f"loop [d0 < 200, d1 < 96] {total}"
    facts = facts_of(f"graph @f(x: f32[200, 200]) -> (y) {{\n  y: f32[200, 96] = {body}\n}}")
    assert facts.get("window") == loads


@pytest.mark.parametrize(("place", "run"), [("d0, d1", None), ("d0, (d1 + 3) % 100", 100)])
def test_neighbours_before_places_go_on_elsewhere(place: str, run: int | None) -> None:
    text = "graph @f(x: f32[64, 100]) -> (y) {\n  y: f32[64, 100] = loop [d0 < 64, d1 < 100] exp(x[" + place + "])\n}"
    assert facts_of(text).get("neighbours") == run


def test_what_varies_along_rows_alone_is_computed_once_for_each() -> None:
    reduced = "  s: f32[8] = reduce sum [d0 < 8 | r0 < 100] mul(x[d0, r0], x[d0, r0])\n"
    text = "graph @f(x: f32[8, 100]) -> (y) {\n" + reduced + "  y: f32[8] = loop [d0 < 8] mul(s[d0], s[d0])\n}"
    assert facts_of(text, "persistent")["flops"] == 800 + 8


def test_four_random_numbers_of_one_draw_cost_less() -> None:
    """A draw gives four numbers to neighbours, unless an axis may be shorter than a few of them."""
    flops = []
    for size in (40, 1024):
        body = "mul(x[d0], rand(s[0], index.i64(d0)))"
        text = f"graph @f(x: f32[{size}], s: i64[1]) -> (y) {{\n  y: f32[{size}] = loop [d0 < {size}] {body}\n}}"
        flops.append(facts_of(text)["flops"] / size)
    assert flops == [41, 21]


def test_places_of_one_tensor_add_up_to_all_of_it() -> None:
    halves = "add(x[d0, d1], x[d0, d1 + 64])"
    text = "graph @f(x: f32[8, 128]) -> (y) {{\n  y: f32[8, 64] = loop [d0 < 8, d1 < 64] {}\n}}"
    assert facts_of(text.format(halves))["bytes"] == (1024 + 512) * 4
    neighbours = "add(add(x[d0, d1], x[d0, d1 + 1]), add(x[d0, d1 + 2], x[d0, d1 + 3]))"
    assert facts_of(text.format(neighbours))["bytes"] == (1024 + 512) * 4


def test_vectors_that_rows_are_reduced_with() -> None:
    reduced = "  s: f32[8] = reduce sum [d0 < 8 | r0 < 100] mul(a[d0, r0], mul(b[r0], c[r0]))\n"
    given = "graph @f(a: f32[8, 100], b: f32[100], c: f32[100]) -> "
    assert facts_of(f"{given}(s) {{\n{reduced}}}", "persistent")["vectors"] == 2
    scaled = "  y: f32[8, 100] = loop [d0 < 8, r0 < 100] mul(a[d0, r0], s[d0])\n"
    assert "vectors" not in facts_of(f"{given}(s, y) {{\n{reduced}{scaled}}}", "persistent")
    summed = "  s: f32[8] = reduce sum [d0 < 8 | r0 < 100] a[d0, r0]\n"
    assert "vectors" not in facts_of(f"{given}(s) {{\n{summed}}}", "persistent")


@pytest.mark.parametrize(("value", "vectors"), [("cast.f32(b[d1])", 1), ("mul(cast.f32(b[d1]), c[d0])", 1)])
def test_vectors_that_rows_are_combined_with(value: str, vectors: int) -> None:
    text = f"""graph @f(a: bf16[32768, 4096], b: bf16[4096], c: f32[32768]) -> (y) {{
  y: bf16[32768, 4096] = loop [d0 < 32768, d1 < 4096] cast.bf16(erf(add(cast.f32(a[d0, d1]), {value})))
}}"""
    (kernel,) = emit_program(schedule(parse_graph(text))).to_mapping()["kernels"]
    assert len(kernel["axes"]) == 2
    assert kernel["facts"]["vectors"] == vectors
    flat = "graph @f(a: f32[800], b: f32[800]) -> (y) {\n  y: f32[800] = loop [d0 < 800] add(a[d0], b[d0])\n}"
    assert "vectors" not in facts_of(flat)


def test_values_held_at_once() -> None:
    text = """graph @f(a: f32[8, 100], b: f32[8, 100]) -> (y) {
  s: f32[8] = reduce sum [d0 < 8 | r0 < 100] mul(a[d0, r0], b[d0, r0])
  y: f32[8, 100] = loop [d0 < 8, r0 < 100] add(mul(a[d0, r0], s[d0]), b[d0, r0])
}"""
    assert facts_of(text, "persistent")["live_values"] == 3


SCATTER = (
    "graph @f(t: f32[10], i: i64[9], x: f32[9]) -> () mutates (t: u) {{\n"
    "  u: f32[10] = update {} t [d0 < 9] at [{}] x[d0]\n}}"
)


@pytest.mark.parametrize(
    ("mode", "index", "access", "mutated"),
    [
        ("add", "wrap(i[d0], 10)", "atomic", True),
        ("add", "d0", "readwrite", True),
        ("set", "wrap(i[d0], 10)", "readwrite", True),
    ],
)
def test_access_of_an_updated_param(mode: str, index: str, access: str, *, mutated: bool) -> None:
    spec = emit(SCATTER.format(mode, index))
    (param,) = (param for param in spec.params if param["name"].startswith("inout"))
    assert param["access"] == access
    assert (param["name"] in spec.mutated) == mutated
    assert spec.facts.to_mapping()["atomics"] == (access == "atomic")


def test_params_axes_and_grid() -> None:
    spec = emit(
        (
            "graph @f(x: f32[300, 500], k: f16[] @cpu) -> (y) {\n"
            "  y: f32[500, 300] = loop [d0 < 500, d1 < 300] mul(x[d1, d0], cast.f32(k[]))\n}"
        ),
        d0="y",
    )
    assert spec.params == (
        {"name": "in0", "role": "tensor", "dtype": "f32", "access": "read", "align": 16},
        {"name": "in1", "role": "scalar", "dtype": "f16"},
        {"name": "out0", "role": "tensor", "dtype": "f32", "access": "write", "align": 16},
    )
    assert spec.axes == (
        {"name": "y", "kind": "grid", "size": 500, "hint": 500, "block": "YBLOCK"},
        {"name": "x", "kind": "grid", "size": 300, "hint": 300, "block": "XBLOCK"},
    )
    assert spec.grid == ["mul", ["ceildiv", "y", "YBLOCK"], ["ceildiv", "x", "XBLOCK"]]
