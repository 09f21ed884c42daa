"""Loops over the reduction axis: what each does, and what stays in the cache for the next."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ferrite_triton import emit_program
from hand_written import schedule_text


def source_of(text: str, form: str = "looped") -> str:
    return emit_program(schedule_text(text, form)).kernels[0].source


def loops_of(source: str) -> list[str]:
    """Returns the bodies of the loops."""
    parts = re.split(r"^    for rstart in .*:\n", source, flags=re.MULTILINE)[1:]
    return ["".join(line for line in part.splitlines(keepends=True) if line.startswith("        ")) for part in parts]


SOFTMAX = """graph @softmax(x: f32[8, 500]) -> (y) {
  m: f32[8] = reduce max [d0 < 8 | r0 < 500] x[d0, r0]
  e: f32[8, 500] = loop [d0 < 8, r0 < 500] exp(sub(x[d0, r0], m[d0]))
  s: f32[8] = reduce sum [d0 < 8 | r0 < 500] e[d0, r0]
  y: f32[8, 500] = loop [d0 < 8, r0 < 500] div(e[d0, r0], s[d0])
}"""


def test_dependent_reductions_take_a_loop_each() -> None:
    loops = loops_of(source_of(SOFTMAX))
    assert len(loops) == 3
    assert "fmath.maximum_nan" in loops[0]
    assert "fmath.exp" not in loops[0]
    assert "fmath.exp" in loops[1]
    assert "fmath.exp" in loops[2]
    assert "tl.store" in loops[2]


def test_persistent_reductions_take_none_and_read_once() -> None:
    source = source_of(SOFTMAX, "persistent")
    assert loops_of(source) == []
    assert source.count("tl.load(") == 1


def test_data_that_is_read_again_stays() -> None:
    loops = loops_of(source_of(SOFTMAX))
    policies = [re.findall(r'eviction_policy="(\w+)"', loop) for loop in loops]
    assert policies == [["evict_last"], ["evict_last"], ["evict_first"]]
    once = "graph @f(x: f32[8, 500]) -> (y) {\n  y: f32[8] = reduce sum [d0 < 8 | r0 < 500] x[d0, r0]\n}"
    assert "eviction_policy" not in source_of(once)


COLUMNS = """graph @columns(x: bf16[500, 24]) -> (m, s, y) {
  m: f32[24], s: f32[24] = reduce online_softmax [d0 < 24 | r0 < 500] cast.f32(x[r0, d0])
  y: f32[500, 24] = loop [r0 < 500, d0 < 24] sub(cast.f32(x[r0, d0]), m[d0])
}"""


def test_the_next_block_of_columns_that_are_read_again_is_asked_for() -> None:
    source = source_of(COLUMNS)
    first, second = loops_of(source)
    (sector,) = re.findall(r"(\w+) = fmath.sectors\(x, 2\)\n", source)
    (offset,) = re.findall(r"(\w+) = r \* 24\n", first)
    ahead = "(tl.minimum(r + tl.where(rstart + RBLOCK < 500, RBLOCK, -rstart), 499) - r)"
    rows, column = f"{offset} + {ahead} * 24", f"tl.minimum({sector}, 23)"
    asked = f"fmath.prefetch(in0 + {rows} + {column})"
    assert asked in first
    assert first.index("tl.load(") < first.index(asked)
    assert "prefetch" not in second  # what is read for the last time is there
    assert "prefetch" not in source_of(SOFTMAX)  # rows
    assert "prefetch" not in source_of(COLUMNS.replace("cast.f32(x[r0, d0])", "x[r0, d0]").replace("x: bf16", "x: f32"))
    once = "graph @f(x: f32[500, 24]) -> (y) {\n  y: f32[24] = reduce sum [d0 < 24 | r0 < 500] x[r0, d0]\n}"
    assert "prefetch" not in source_of(once)


@pytest.mark.parametrize(("dtype", "pieces"), [("f32", 4), ("bf16", 8), ("i8", None)])
@pytest.mark.parametrize("form", ["persistent", "looped"])
def test_bytes_beside_wider_elements_are_read_in_pieces_as_long_as_theirs(
    form: str, dtype: str, pieces: int | None
) -> None:
    factor = "v[r0]" if dtype == "f32" else "cast.f32(v[r0])"
    text = f"""graph @f(w: i8[40, 4096], v: {dtype}[4096]) -> (y) {{
  y: f32[40] = reduce sum [d0 < 40 | r0 < 4096] mul(cast.f32(w[d0, r0]), {factor})
}}"""
    source = source_of(text, form)
    asked = re.findall(r"tl.load\(tl.max_contiguous\(in(\d) \+ [^,]*, \[1, (\d)\]\)", source)
    assert asked == ([("0", str(pieces))] if pieces else [])
    short = source_of(text.replace("4096", "12"), form)
    assert "max_contiguous" not in short


def test_what_is_written_in_passing_says_so() -> None:
    found = schedule_text(SOFTMAX, "looped")
    (kernel,) = found.kernels
    passing = tuple(replace(param, is_streaming=param.access == "write") for param in kernel.params)
    found = replace(found, kernels=(replace(kernel, params=passing),))
    source = emit_program(found).kernels[0].source
    assert re.findall(r"tl.store\(.*?(, cache_modifier.*)?\)\n", source) == [', cache_modifier=".cs"']
    assert "cache_modifier" not in source_of(SOFTMAX)


def test_independent_reductions_share_a_loop_even_with_an_epilogue_between() -> None:
    text = """graph @f(x: f32[8, 500]) -> (a, q, b) {
  a: f32[8] = reduce sum [d0 < 8 | r0 < 500] x[d0, r0]
  q: f32[8] = loop [d0 < 8] exp(a[d0])
  b: f32[8] = reduce max [d0 < 8 | r0 < 500] x[d0, r0]
}"""
    source = source_of(text)
    assert len(loops_of(source)) == 1
    assert source.count("tl.load(") == 1
    assert source.index("fmath.exp") > source.index("tl.sum(")


def test_what_does_not_vary_along_the_reduction_axis_is_computed_before_the_loop() -> None:
    text = """graph @f(x: f32[8, 500], k: f32[8]) -> (y) {
  y: f32[8] = reduce sum [d0 < 8 | r0 < 500] mul(x[d0, r0], exp(k[d0]))
}"""
    (loop,) = loops_of(source_of(text))
    assert "fmath.exp" not in loop
    assert loop.count("tl.load(") == 1


def test_a_value_is_stored_in_the_first_loop_that_knows_it() -> None:
    text = """graph @f(x: f32[8, 500]) -> (t, y) {
  t: f32[8, 500] = loop [d0 < 8, r0 < 500] exp(x[d0, r0])
  m: f32[8] = reduce max [d0 < 8 | r0 < 500] t[d0, r0]
  y: f32[8, 500] = loop [d0 < 8, r0 < 500] sub(t[d0, r0], m[d0])
}"""
    loops = loops_of(source_of(text))
    assert [loop.count("tl.store(") for loop in loops] == [1, 1]
    assert "out0" in loops[0]
    assert "out1" in loops[1]


def test_the_last_pass_over_a_row_that_no_cache_holds_begins_at_its_end() -> None:
    text = """graph @f(x: bf16[8, {width}]) -> (y) {{
  m: f32[8] = reduce max [d0 < 8 | r0 < {width}] cast.f32(x[d0, r0])
  s: f32[8] = reduce sum [d0 < 8 | r0 < {width}] exp(sub(cast.f32(x[d0, r0]), m[d0]))
  y: bf16[8, {width}] = loop [d0 < 8, r0 < {width}] cast.bf16(div(exp(sub(cast.f32(x[d0, r0]), m[d0])), s[d0]))
}}"""
    loops = loops_of(source_of(text.format(width=131072)))
    assert ["rback = 131071 // RBLOCK * RBLOCK - rstart" in loop for loop in loops] == [False, True, False]
    assert "rback" not in source_of(text.format(width=50304))


def test_neighbours_of_one_thread_share_a_running_maximum_where_rows_are_aligned() -> None:
    text = """graph @f(x: {dtype}[8, {width}]) -> (m, s) {{
  m: f32[8], s: f32[8] = reduce online_softmax [d0 < 8 | r0 < {width}] {body}
}}"""

    def loop_of(dtype: str, width: int) -> str:
        body = "x[d0, r0]" if dtype == "f32" else "cast.f32(x[d0, r0])"
        (loop,) = loops_of(source_of(text.format(dtype=dtype, width=width, body=body)))
        return loop

    assert "RBLOCK // 8, 8]" in loop_of("bf16", 50304)
    assert "RBLOCK // 4, 4]" in loop_of("f32", 50304)
    assert "RBLOCK // 8, 8]" in loop_of("bf16", 50257), "rows begin anywhere, and are read from a multiple before them"
    text = text.replace("[8, {width}]", "[9, {width}]")
    assert "[XBLOCK, 8, RBLOCK // 8])" in loop_of("bf16", 50257), "but not behind the end: it reads one at a time"
    assert "[XBLOCK, 4, RBLOCK // 8, 2])" in loop_of("bf16", 50258), "and here two"
    assert "tl.reshape" not in loop_of("f32", 512), "the block of a short row may be too narrow"


@pytest.mark.parametrize(("rows", "vector"), [(8, 8), (12, 4), (10, None)])
def test_rows_at_the_same_place_in_two_tensors_are_read_in_vectors(rows: int, vector: int | None) -> None:
    """Of eight bytes, where the tensors end in the middle of sixteen."""
    text = f"""graph @f(x: bf16[{rows}, 50257], y: bf16[{rows}, 50257]) -> (s) {{
  s: f32[{rows}] = reduce sum [d0 < {rows} | r0 < 50257] mul(cast.f32(x[d0, r0]), cast.f32(y[d0, r0]))
}}"""
    (loop,) = loops_of(source_of(text))
    assert loop.count("tl.multiple_of") == (2 if vector else 0)
    assert vector is None or f"[1, {vector}]" in loop
    (loop,) = loops_of(source_of(text.replace("y[d0, r0]", f"y[{rows - 1} - d0, r0]")))
    assert "tl.multiple_of" not in loop, "rows that begin at different places"


def test_rows_of_one_thread_share_a_running_maximum_of_columns_that_are_read_twice() -> None:
    text = """graph @f(x: f32[512, 64]) -> ({results}) {{
  m: f32[64], s: f32[64] = reduce online_softmax [d0 < 64 | r0 < 512] x[r0, d0]
  y: f32[512, 64] = loop [r0 < 512, d0 < 64] sub(x[r0, d0], m[d0])
}}"""
    assert "[8, RBLOCK // 8, XBLOCK])" in loops_of(source_of(text.format(results="y, s")))[0]
    once = text.format(results="m, s").replace("  y:", "  # y:")
    assert "tl.reshape" not in loops_of(source_of(once))[0], "a tile of columns that are read once is a row to a thread"


def test_a_maximum_with_its_position_moves_only_to_larger_values() -> None:
    text = """graph @f(x: f32[8, 500], k: i64[8, 500]) -> (i, j) {
  v: f32[8], i: i64[8] = reduce argmax [d0 < 8 | r0 < 500] (x[d0, r0], index.i64({index}))
}"""
    (loop,) = loops_of(source_of(text.replace("{index}", "r0").replace(" -> (i, j)", " -> (i)")))
    assert "argmax_nan" not in loop
    assert "tl.where" in loop
    (loop,) = loops_of(source_of(text.replace("{index}", "499 - r0").replace(" -> (i, j)", " -> (i)")))
    assert "argmax_nan" in loop, "later positions are smaller ones"
