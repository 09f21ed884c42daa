"""Axes in the text: positions of dims, masks only where tiles can reach past the end, address widths."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_ir.language import index as ix
from ferrite_ir.language.index import Dim
from ferrite_ir.language.sizes import evaluate
from ferrite_scheduler.model.axes import Axis
from ferrite_scheduler.model.forms import LoopedReduction, Pointwise
from ferrite_scheduler.model.schedule import Kernel
from ferrite_triton import KernelSpec, emit_program
from ferrite_triton.analysis.space import build_space
from ferrite_triton.kernels import Emitted, emit_alternatives
from hand_written import schedule_text


def emit(text: str, form: str = "pointwise", **placed: str) -> KernelSpec:
    return emit_program(schedule_text(text, form, placed)).kernels[0]


def copy_text(size: int) -> str:
    return f"graph @f(x: f32[{size}]) -> (y) {{\n  y: f32[{size}] = loop [d0 < {size}] exp(x[d0])\n}}"


@pytest.mark.parametrize(
    ("size", "masked", "max_block"),
    [(1, False, 1), (2, False, 2), (64, False, 64), (100, True, None), (3 * 1024, False, 1024), (3 * 512, True, None)],
)
def test_masks_of_a_flat_axis(size: int, max_block: int | None, *, masked: bool) -> None:
    spec = emit(copy_text(size))
    assert ("xmask" in spec.source) == masked
    assert spec.axes[0].get("max_block") == max_block


@pytest.mark.parametrize(("size", "masked"), [(64, False), (65, True), (1024, False), (1000, True)])
def test_masks_of_a_persistent_reduction(size: int, *, masked: bool) -> None:
    spec = emit(
        f"graph @f(x: f32[7, {size}]) -> (y) {{\n  y: f32[7] = reduce sum [d0 < 7 | r0 < {size}] x[d0, r0]\n}}",
        "persistent",
    )
    assert ("rmask" in spec.source) == masked
    assert spec.blocks == {"RBLOCK": 1 << (size - 1).bit_length()}


def test_outer_grid_axes_of_a_reduction_have_one_position_per_program() -> None:
    text = (
        "graph @f(x: f32[4, 50, 6]) -> (y) {\n  y: f32[4, 6] = reduce sum [d0 < 4, d1 < 6 | r0 < 50] x[d0, r0, d1]\n}"
    )
    spec = emit(text, "persistent", d0="y")
    assert spec.blocks == {"YBLOCK": 1, "RBLOCK": 64}
    assert "y = program // xblocks\n" in spec.source


def test_the_contiguous_axis_is_the_fast_one_of_the_tile() -> None:
    text = "graph @f(x: f32[90, 70]) -> (y) {{\n  y: f32[70] = reduce sum [d0 < 70 | r0 < 90] x[{}]\n}}"
    columns, rows = (
        emit(text.format("r0, d0"), "persistent"),
        emit(text.replace("90, 70", "70, 90").format("d0, r0"), "persistent"),
    )
    assert columns.facts.to_mapping()["contiguous_axis"] == "x"
    assert "tl.sum(tl.where(rmask, load_2, 0.0), 0, keep_dims=True)" in columns.source
    assert rows.facts.to_mapping()["contiguous_axis"] == "r"
    assert "tl.sum(tl.where(rmask, load_2, 0.0), 1, keep_dims=True)" in rows.source


@pytest.mark.parametrize(("columns", "hinted"), [(51, True), (52, False)])
def test_neighbours_an_odd_number_at_a_time_still_lie_side_by_side(columns: int, *, hinted: bool) -> None:
    """The compiler knows of four neighbours among 52 columns, and of none among 51."""
    body = f"y: f32[40, {columns}] = reduce sum [i < 40, c < {columns} | r < 300] x[i, r, c]"
    source = emit(f"graph @f(x: f32[40, 300, {columns}]) -> (y) {{\n  {body}\n}}", "looped").source
    assert ("tl.load(in0 + tl.max_contiguous(" in source) == hinted
    assert "[1, 2])" in source or not hinted


@pytest.mark.parametrize(("channels", "hint"), [(64, "16"), (24, "8"), (51, "")])
def test_the_compiler_is_told_that_neighbours_share_a_row_that_floats_give(channels: int, hint: str) -> None:
    place = "at(cast.i32(mul(cast.f32(index.i32(h)), f32(0.5))), 32), c"
    body = f"y: f32[64, {channels}] = loop [h < 64, c < {channels}] exp(x[{place}])"
    source = emit(f"graph @f(x: f32[32, {channels}]) -> (y) {{\n  {body}\n}}", "pointwise").source
    told = f"fmath.equal_neighbours(cast_4, 0, {hint}) * {channels}"
    assert (told in source) if hint else "equal_neighbours" not in source


def test_nothing_is_told_of_rows_along_which_nothing_is_contiguous() -> None:
    body = "y: f32[64, 64] = loop [c < 64, h < 64] exp(x[at(cast.i32(mul(cast.f32(index.i32(h)), f32(0.5))), 32), c])"
    source = emit(f"graph @f(x: f32[32, 64]{{1, 32}}) -> (y) {{\n  {body}\n}}", "pointwise").source
    assert "equal_neighbours" not in source


@pytest.mark.parametrize(("rows", "width"), [(1 << 14, 32), (1 << 16, 64)])
def test_address_width(rows: int, width: int) -> None:
    spec = emit(
        (
            f"graph @f(x: f32[{rows}, 40000]) -> (y) {{\n"
            f"  y: f32[{rows}] = reduce sum [d0 < {rows} | r0 < 40000] x[d0, r0]\n}}"
        ),
        "looped",
    )
    assert spec.index_width == width
    assert ("tl.program_id(0).to(tl.int64)" in spec.source) == (width == 64)
    assert ("(rstart + tl.arange(0, RBLOCK)).to(tl.int64)[None, :]" in spec.source) == (width == 64)


def test_address_width_of_a_far_element() -> None:
    text = "graph @f(x: f32[3, 1073741824]) -> (y) {\n  y: f32[100] = loop [d0 < 100] x[2, d0]\n}"
    assert emit(text).index_width == 64


def test_symbolic_sizes_are_params() -> None:
    body = "y: f32[n, 24] = loop [d0 < n, d1 < 24] exp(x[d0, d1])"
    text = f"graph @f(x: f32[n, 24]) -> (y) where n: size >= 1 {{\n  {body}\n}}"
    spec = emit(text)
    assert spec.params[-1] == {"name": "n0", "role": "size", "dtype": f"i{spec.index_width}", "hint": 8192}
    assert spec.axes[0]["size"] == ["mul", "n0", 24]
    assert "xmask = x < n0 * 24" in spec.source


SOFTMAX = """graph @softmax(x: {dtype}[n, {row}]) -> (y) where n: size >= 1 ~ 512, m: size >= 1 ~ 2 {{
  peak: f32[n], mass: f32[n] = reduce online_softmax [d0 < n | r0 < {row}] cast.f32(x[d0, r0])
  y: {dtype}[n, {row}] = loop [d0 < n, r0 < {row}] cast.{dtype}(div(exp(sub(cast.f32(x[d0, r0]), peak[d0])), mass[d0]))
}}"""


def softmax_forms(dtype: str, row: str) -> Emitted:
    (kernel,) = schedule_text(SOFTMAX.format(dtype=dtype, row=row), "looped").kernels
    return emit_alternatives(replace(kernel, form=LoopedReduction(8192)))


@pytest.mark.parametrize(("dtype", "vector"), [("bf16", 8), ("f32", 4)])
def test_long_rows_of_whole_vectors_have_a_text_of_their_own(dtype: str, vector: int) -> None:
    emitted = softmax_forms(dtype, "m")
    held, whole, other = emitted.alternatives
    assert str(held[0][0][0]) == "m"
    assert whole[0][1:] == other[0]
    rest, most = whole[0][0]
    assert most == 0
    assert [evaluate(rest, {"m": length}) for length in (2 * vector, 2 * vector + 1)] == [0, 1]
    assert f"[XBLOCK, RBLOCK // {vector}, {vector}]" in whole[1].source
    assert "[XBLOCK, 8, RBLOCK // 8]" in other[1].source
    # In 64 bits a row may be shorter than a block that can be divided.
    assert "tl.reshape" not in emitted.spec.source
    assert len({spec.id for _, spec in (*emitted.alternatives, ((), emitted.spec))}) == 4


def test_texts_for_long_rows_expect_long_rows() -> None:
    """What is compiled before a call tells the sizes is compiled for some that the text is launched for."""
    (_, held), (_, whole), (_, other) = softmax_forms("bf16", "m").alternatives
    lengths = [axis["hint"] for spec in (held, whole, other) for axis in spec.axes if axis["kind"] == "reduction"]
    assert lengths == [2, 8193, 8193]
    assert whole.facts.to_mapping()["bytes"] > 8192 * held.facts.to_mapping()["bytes"] // 4


def test_rows_of_known_vectors_need_no_other_text() -> None:
    emitted = softmax_forms("bf16", "8 * m")
    assert len(emitted.alternatives) == 2
    assert "[XBLOCK, RBLOCK // 8, 8]" in emitted.alternatives[1][1].source


@pytest.mark.parametrize(
    ("rows", "words", "mask"), [("n", 2008, "r < 2008"), ("4", 2008, "r < 2008"), ("n", 2003, "rmask")]
)
def test_rows_are_read_past_their_end_where_memory_goes_on(rows: str, words: int, mask: str) -> None:
    """However many rows there are: what lies behind the last one is known to be there."""
    text = f"""graph @f(x: bf16[{rows}, {words}]) -> (s) where n: size >= 1 ~ 4 {{
      s: f32[{rows}] = reduce sum [d0 < {rows} | r0 < 2001] cast.f32(x[d0, r0])
    }}"""
    (load,) = [line for line in emit(text, "looped").source.splitlines() if "tl.load" in line]
    assert mask in load


@pytest.mark.parametrize(
    ("steps", "body", "is_held"),
    [
        ("m", "cast.f32(x[r0, d0])", True),
        ("m", "mul(cast.f32(x[r0, d0]), cast.f32(y[r0, d0]))", False),
        ("1000", "cast.f32(x[r0, d0])", False),
    ],
)
def test_columns_in_steps_of_a_symbolic_length_have_an_address_of_their_own(
    steps: str, body: str, *, is_held: bool
) -> None:
    """Of a single operand: several share their offsets."""
    sizes = "n: size >= 1 ~ 999, m: size >= 1 ~ 1000"
    text = f"""graph @f(x: bf16[n, {steps}], y: bf16[n, {steps}]) -> (s) where {sizes} {{
      s: f32[{steps}] = reduce sum [d0 < {steps} | r0 < n] {body}
    }}"""
    source = emit(text, "looped").source
    assert ("= in0 + x\n" in source) is is_held
    before, _, loop = source.partition("for rstart")
    assert ("= in0 + x\n" in before) is is_held
    assert "tl.load(column" in loop if is_held else "tl.load(in0 + i" in loop


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_dims_of_an_axis_are_laid_out_row_major(extents: list[int]) -> None:
    dims = tuple(Dim(f"d{i}", extent) for i, extent in enumerate(extents))
    space = build_space(Kernel("k", Pointwise(), (Axis("x", dims),), (), {}, (), ()))
    size = space.axes[0].size
    flat = ix.constant(0)
    for dim in dims:
        flat = flat * dim.size + space.mapping[dim]
    assert flat is (Dim("x", size).index if size > 1 else ix.constant(0))
