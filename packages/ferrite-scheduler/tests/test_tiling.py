"""How iteration spaces become axes."""

from __future__ import annotations

import pytest

from checks import check, kernel_of
from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, schedule
from ferrite_scheduler.model.policy import DEFAULT_POLICY


def axes(kernel):
    return {axis.name: tuple(dim.size for dim in axis.dims) for axis in kernel.axes}


def only_kernel(text, policy=DEFAULT_POLICY):
    (kernel,) = schedule(parse_graph(text), policy=policy).kernels
    return kernel


def test_contiguous_pointwise_is_one_flat_dim():
    kernel = only_kernel("""
    graph @f(x: f32[8, 32, 64], y: f32[256, 64]) -> (z) {
      z: f32[8, 32, 64] = loop [a < 8, b < 32, c < 64] add(x[a, b, c], y[a*32 + b, c])
    }""")
    assert axes(kernel) == {"x": (8 * 32 * 64,)}


def test_broadcast_keeps_the_dims_it_needs():
    kernel = only_kernel("""
    graph @f(x: f32[8, 32, 64], b: f32[64]) -> (z) {
      z: f32[8, 32, 64] = loop [a < 8, b < 32, c < 64] add(x[a, b, c], b[c])
    }""")
    assert axes(kernel) == {"y": (256,), "x": (64,)}


def test_short_odd_and_few_rows_stay_flat():
    def found(rows, width):
        return axes(
            only_kernel(f"""
            graph @f(x: f32[{rows}, {width}], b: f32[{width}]) -> (z) {{
              z: f32[{rows}, {width}] = loop [a < {rows}, c < {width}] add(x[a, c], b[c])
            }}""")
        )

    assert found(256, 32) == {"x": (256, 32)}
    assert found(8, 64) == {"x": (8, 64)}
    assert found(256, 100) == {"x": (256, 100)}
    assert found(256, 768) == {"y": (256,), "x": (768,)}
    assert found(256, 72) == {"x": (256, 72)}  # every block for it would leave many lanes idle


GROUPED = """
graph @f(x: f32[{n}, {p}, {c}], s: f32[{n}, {g}], w: f32[{c}]) -> (z) {{
  z: f32[{n}, {p}, {c}] = loop [n < {n}, p < {p}, c < {c}] mul(mul(x[n, p, c], s[n, c // {each}]), w[c])
}}"""


@pytest.mark.parametrize(
    ("groups", "each", "rows"), [(32, 10, True), (8, 8, True), (4, 48, True), (2, 40, False), (3, 10, False)]
)
def test_only_what_is_the_same_for_a_group_tells_where_it_begins(groups, each, rows):
    text = GROUPED.format(n=2, p=64, c=groups * each, g=groups, each=each)
    kernel = only_kernel(text, Policy(small_kernel_bytes=1 << 30))  # else what is read of groups is a loop of its own
    assert (axes(kernel) == {"y": (2, 64), "x": (groups * each,)}) == rows
    loads = {load.source: str(load.indices[-1]) for load in kernel.body[0].bodies[0].loads}
    assert not rows or loads == {"x": "x0", "s": f"x0 // {each}", "w": "x0"}


@pytest.mark.parametrize(
    ("place", "is_tiled"), [("at(cast.i32(mul(cast.f32(index.i32(w)), f32(0.5))), 64), c", True), ("c, w // 2", False)]
)
def test_positions_that_are_computed_are_crossed_like_others(place, is_tiled):
    """Channels lie beside each other in what is read, and are rows of what is written, however columns are found."""
    kernel = only_kernel(f"""
    graph @f(x: f32[4, 64, 64]) -> (z) {{
      z: f32[4, 64, 128] = loop [n < 4, c < 64, w < 128] exp(x[n, {place}])
    }}""")
    assert (axes(kernel) == {"y": (4, 64), "x": (128,)}) == is_tiled
    assert ("y" in axes(kernel)) == is_tiled


INTERLEAVED = """
graph @f(x: f32[64, {e}, 16, 128]) -> (m, y) {{
  m: f32[64, 128, {e}] = reduce max [a < 64, b < 128, e < {e} | r < 16] x[a, e, r, b]
  y: f32[64, 16, 128, {e}] = loop [a < 64, r < 16, b < 128, e < {e}] sub(x[a, e, r, b], m[a, b, e])
}}"""


@pytest.mark.parametrize(("extent", "innermost"), [(2, 2), (4, 4), (8, 128)])
def test_stores_leave_no_gaps_of_a_few_elements(extent, innermost):
    """Of what is read in pieces that take turns, a warp finds all elements of a sector; of many pieces it does not."""
    kernel = only_kernel(INTERLEAVED.format(e=extent))
    assert axes(kernel)["x"][-1] == innermost


def test_a_heavy_access_decides_where_rows_end():
    text = GROUPED.format(n=2, p=64, c=320, g=32, each=10).replace("s: f32[2, 32]", "s: f32[2, 64, 32]")
    kernel = only_kernel(text.replace("s[n, ", "s[n, p, "), Policy(small_kernel_bytes=1 << 30))
    assert max(size for dims in axes(kernel).values() for size in dims) < 320


def test_columns_of_groups_are_reduced_side_by_side():
    kernel = only_kernel("""
    graph @f(x: f32[16, 512, 320], s: f32[16, 32]) -> (z) {
      z: f32[16, 32, 10] = reduce sum [n < 16, g < 32, m < 10 | p < 512] mul(x[n, p, g*10 + m], s[n, g])
    }""")
    assert axes(kernel) == {"y": (16,), "x": (320,), "r": (512,)}


def test_channels_last_pointwise_is_flat_too():
    kernel = only_kernel("""
    graph @f(x: f32[2, 4, 3, 3]{36, 1, 12, 4}) -> (z) {
      z: f32[2, 4, 3, 3]{36, 1, 12, 4} = loop [n < 2, c < 4, h < 3, w < 3] exp(x[n, c, h, w])
    }""")
    assert axes(kernel) == {"x": (72,)}


def test_transposed_operand_gets_a_second_axis():
    text = """
    graph @f(x: f32[64, 128], y: f32[128, 64]) -> (z) {
      z: f32[128, 64] = loop [i < 128, j < 64] add(x[j, i], y[i, j])
    }"""
    assert axes(only_kernel(text)) == {"y": (128,), "x": (64,)}
    assert axes(only_kernel(text, Policy(max_tiled_axes=1))) == {"x": (128, 64)}


def test_batched_transpose_tiles_the_two_dims_that_matter():
    kernel = only_kernel("""
    graph @f(x: f32[8, 64, 128]) -> (z) {
      z: f32[8, 128, 64] = loop [b < 8, i < 128, j < 64] exp(x[b, j, i])
    }""")
    assert axes(kernel) in ({"y": (8, 128), "x": (64,)}, {"y": (8, 64), "x": (128,)})


def test_what_is_written_decides_between_dims_that_carry_about_as_much():
    """Channels-last images in, others out, with a factor of each group: tiles of places and neighbouring channels."""
    kernel = only_kernel("""
    graph @f(x: f32[4, 64, 16, 10], s: f32[4, 16], w: f32[160]) -> (z) {
      z: f32[4, 16, 10, 64] = loop [n < 4, g < 16, c < 10, p < 64]
        mul(x[n, p, g, c], add(s[n, g], w[g*10 + c]))
    }""")
    assert axes(kernel) == {"y": (4, 16, 10), "x": (64,)}


def test_points_of_a_window_count_once_where_the_result_is_transposed():
    """Each element of the twelve reads is read from memory once: the store across them is half of the traffic."""
    reads = "x[i, j]"
    for step in range(1, 12):
        reads = f"add({reads}, x[i + {step}, j])"
    text = f"""
    graph @f(x: f32[139, 16]) -> (z) {{
      z: f32[16, 128] = loop [j < 16, i < 128] {reads}
    }}"""
    assert axes(only_kernel(text)) == {"y": (128,), "x": (16,)}


def test_narrow_transposes_stay_flat():
    kernel = only_kernel("""
    graph @f(x: f32[3, 1024], y: f32[1024, 3]) -> (z) {
      z: f32[1024, 3] = loop [i < 1024, j < 3] add(x[j, i], y[i, j])
    }""")
    assert set(axes(kernel)) == {"x"}


@pytest.mark.parametrize(("long", "expected"), [(4095, {"x": (7, 4095)}), (4096, {"y": (7,), "x": (4096,)})])
def test_what_lies_beside_the_columns_of_long_rows_is_read_at_once(long, expected):
    """It would be gone from the cache when its turn comes."""
    kernel = only_kernel(f"""
    graph @f(x: f32[{long}, 7]) -> (z) {{
      z: f32[7, {long}] = loop [i < 7, j < {long}] exp(x[j, i])
    }}""")
    assert axes(kernel) == expected


def test_middle_reduction_puts_the_contiguous_dim_on_x():
    kernel = only_kernel("""
    graph @f(x: f32[64, 512, 256]) -> (m, v) {
      m: f32[64, 256], v: f32[64, 256], n: f32[64, 256] = reduce welford [a < 64, c < 256 | b < 512] x[a, b, c]
    }""")
    assert axes(kernel) == {"y": (64,), "x": (256,), "r": (512,)}
    assert kernel.form.name == "looped"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(63, {"x": (1024, 63), "r": (16,)}), (64, {"y": (1024,), "x": (64,), "r": (16,)})],
)
def test_few_columns_share_a_tile_with_those_of_the_next_rows(columns, expected):
    kernel = only_kernel(f"""
    graph @f(x: f32[1024, 16, {columns}]) -> (s) {{
      s: f32[1024, {columns}] = reduce sum [a < 1024, c < {columns} | b < 16] x[a, b, c]
    }}""")
    assert axes(kernel) == expected


def test_row_reduction_over_two_dims_joins_them():
    kernel = only_kernel("""
    graph @f(x: f32[1024, 8, 64]) -> (s) {
      s: f32[1024] = reduce sum [i < 1024 | a < 8, b < 64] x[i, a, b]
    }""")
    assert axes(kernel) == {"x": (1024,), "r": (512,)}
    assert kernel.form.name == "persistent"


def test_column_softmax_is_one_kernel_over_the_outer_dim():
    found = check("""
    graph @f(x: f32[8, 12]) -> (y) {
      m: f32[12]    = reduce max [j < 12 | i < 8] x[i, j]
      s: f32[12]    = reduce sum [j < 12 | i < 8] exp(sub(x[i, j], m[j]))
      y: f32[8, 12] = loop [i < 8, j < 12] div(exp(sub(x[i, j], m[j])), s[j])
    }""")
    assert axes(kernel_of(found, "y")) == {"x": (12,), "r": (8,)}


def test_long_rows_are_looped_and_so_are_rows_with_much_alive():
    def form(width, inputs):
        given = ", ".join(f"x{k}: f32[512, {width}]" for k in range(inputs))
        total = "x0[i, j]"
        for k in range(1, inputs):
            total = f"add({total}, x{k}[i, j])"
        return only_kernel(
            f"graph @f({given}) -> (s) {{\ns: f32[512] = reduce sum [i < 512 | j < {width}] {total}\n}}"
        ).form.name

    assert form(1024, 1) == "persistent"
    assert form(8192, 1) == "persistent"
    assert form(8193, 1) == "looped"
    assert form(8192, 6) == "looped"


def test_unit_dims_disappear():
    kernel = only_kernel("""
    graph @f(x: f32[1, 6, 1]) -> (z) {
      z: f32[1, 6, 1] = loop [a < 1, b < 6, c < 1] exp(x[a, b, c])
    }""")
    assert axes(kernel) == {"x": (6,)}
    assert [str(index) for index in kernel.homes["z"]] == ["0", "x0", "0"]


def test_numbers_of_points_keep_their_meaning_when_dims_are_joined():
    found = check("""
    graph @f(x: f32[4, 6]) -> (z) {
      z: f32[4, 6] = loop [i < 4, j < 6] add(x[i, j], cast.f32(index.i64(i*6 + j)))
    }""")
    assert axes(found.kernels[0]) == {"x": (24,)}


def test_masked_concatenation_keeps_its_dims():
    found = check("""
    graph @cat(a: f32[4, 3], b: f32[4, 5]) -> (c) {
      c: f32[4, 8] = loop [i < 4, j < 8] masked(lt(index.i64(j), i64(3)), a[i, j],
        masked(ge(index.i64(j), i64(3)), b[i, j - 3], f32(0.0)))
    }""")
    assert len(found.kernels) == 1
