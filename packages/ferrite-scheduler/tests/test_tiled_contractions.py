"""Contractions of many rows: what is computed tile by tile, how it lies, and what shares the kernel."""

from __future__ import annotations

import pytest

from checks import check, refusal
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Contract, Reduction
from ferrite_scheduler import Policy, Schedule, schedule
from ferrite_scheduler.model.forms import TiledContraction
from ferrite_scheduler.model.schedule import Kernel

TILES = Policy(tile_products=True)


def found(text: str) -> Schedule:
    return check(text, policy=TILES)


def sole(text: str) -> Kernel:
    (kernel,) = found(text).kernels
    return kernel


def product(rows: int | str = 20, dtype: str = "bf16", body: str = "add(p[m, n], b[n])", more: str = "") -> str:
    """Returns the text of a product and of what reads it; one of halves may be stored as such."""
    stored = f"stored {dtype} " if dtype in {"bf16", "f16"} else ""
    return f"""
    graph @f(x: {dtype}[{rows}, 6], w: {dtype}[5, 6], b: f32[5], s: f32[{rows}, 5]) -> (y) {{
      p: f32[{rows}, 5] = contract {stored}[m < {rows}, n < 5 | k < 6] x[m, k] * w[n, k]
      {more}
      y: f32[{rows}, 5] = loop [m < {rows}, n < 5] {body}
    }}"""


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("body", ["add(p[m, n], b[n])", "mul(p[m, n], s[m, n])", "relu(p[m, n])"])
def test_what_reads_a_product_at_its_points_is_in_its_kernel(body: str, dtype: str) -> None:
    kernel = sole(product(dtype=dtype, body=body))
    assert kernel.form == TiledContraction()
    assert [axis.name for axis in kernel.axes] == ["y", "x", "r"]
    assert kernel.stored == ("y",)


@pytest.mark.parametrize("head", ["contract", "contract fast"])
@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2"])
def test_eight_bit_floats_have_tiles(dtype: str, head: str) -> None:
    kernel = sole(product(dtype=dtype, body="mul(p[m, n], b[n])").replace("contract", head))
    assert kernel.form == TiledContraction()
    (contract,) = (definition for definition in kernel.body if isinstance(definition, Contract))
    assert contract.fast == (head == "contract fast")


def test_f32_has_tiles_where_it_may_be_rounded() -> None:
    assert sole(product(dtype="f32").replace("contract", "contract fast")).form == TiledContraction()


def test_axes_end_with_what_factors_walk_along() -> None:
    """Channels lie side by side in the images, and images in the gradients; in the result it is steps of a window."""
    kernel = sole("""
    graph @f(g: bf16[64, 20], x: bf16[66, 8]) -> (y) {
      p: f32[20, 3, 8] = contract [f < 20, s < 3, c < 8 | r < 64] g[r, f] * x[r + s, c]
      y: f32[20, 8, 3] = loop [f < 20, c < 8, s < 3] p[f, s, c]
    }""")
    assert [[dim.size for dim in axis.dims] for axis in kernel.axes] == [[20], [3, 8], [64]]


def test_sums_end_with_what_a_factor_walks_along() -> None:
    """Each filter is the larger factor, and goes through its channels last; images have theirs side by side."""
    kernel = sole("""
    graph @f(x: bf16[8, 16], w: bf16[16, 3, 40]) -> (y) {
      p: f32[6, 40] = contract [o < 6, f < 40 | s < 3, c < 16] x[o + s, c] * w[c, s, f]
      y: f32[6, 40] = loop [o < 6, f < 40] relu(p[o, f])
    }""")
    assert [[dim.size for dim in axis.dims] for axis in kernel.axes] == [[6], [40], [3, 16]]


def test_policy_leaves_them_reductions() -> None:
    (kernel,) = check(product()).kernels
    assert isinstance(kernel.body[0], Reduction)


@pytest.mark.parametrize("text", [product(dtype="f32"), product(rows=1)], ids=["wide factors", "one row"])
def test_others_are_reductions_of_products(text: str) -> None:
    assert isinstance(sole(text).body[0], Reduction)


def test_a_factor_of_all_dims_makes_a_reduction() -> None:
    kernel = sole("""
    graph @f(x: bf16[20, 5, 6], w: bf16[5, 6]) -> (p) {
      p: f32[20, 5] = contract [m < 20, n < 5 | k < 6] x[m, n, k] * w[n, k]
    }""")
    assert isinstance(kernel.body[0], Reduction)


BATCH = """
graph @f(x: bf16[3, 20, 6], w: bf16[{batch}, 5, 6]) -> (y) {{
  p: f32[3, 20, 5] = contract [b < 3, m < 20, n < 5 | k < 6] x[b, m, k] * w[{at}, n, k]
  y: f32[3, 20, 5] = loop [b < 3, m < 20, n < 5] relu(p[b, m, n])
}}"""


def test_a_batch_lies_on_an_axis_of_its_own() -> None:
    kernel = sole(BATCH.format(batch=3, at="b"))
    assert {axis.name: axis.size for axis in kernel.axes} == {"z": 3, "y": 20, "x": 5, "r": 6}


def test_a_batch_with_one_right_factor_is_more_rows() -> None:
    kernel = sole(BATCH.format(batch=1, at="0"))
    assert {axis.name: axis.size for axis in kernel.axes} == {"y": 60, "x": 5, "r": 6}


def test_heads_that_share_a_factor_are_no_rows_of_their_neighbours() -> None:
    """Along the heads of a group the one factor lies as more rows, and the other one stays where it is."""
    kernel = sole("""
    graph @f(x: bf16[2, 4, 20, 6], w: bf16[2, 2, 5, 6]) -> (p) {
      p: f32[8, 20, 5] = contract [z < 8, m < 20, n < 5 | k < 6] x[z // 4, z % 4, m, k] * w[z // 4, z % 4 // 2, n, k]
    }""")
    assert {axis.name: axis.size for axis in kernel.axes} == {"z": 8, "y": 20, "x": 5, "r": 6}


SECOND = "q: f32[20, 5] = contract [m < 20, n < 5 | k < 6] x[m, k] * neg(w[n, k])"


def test_both_products_of_a_gate_are_in_one_kernel() -> None:
    kernel = sole(product(body="mul(p[m, n], q[m, n])", more=SECOND))
    assert sum(isinstance(definition, Contract) for definition in kernel.body) == 2


def test_products_that_nothing_reads_together_are_apart() -> None:
    text = product(more=SECOND).replace("-> (y)", "-> (y, q)")
    both = found(text)
    assert len(both.kernels) == 2
    assert refusal(both, "p", "q") == "F12"


def test_a_third_product_does_not_fit() -> None:
    third = SECOND.replace("q:", "t:").replace("neg(w[n, k])", "abs(w[n, k])")
    text = product(body="mul(mul(p[m, n], q[m, n]), t[m, n])", more=f"{SECOND}\n{third}")
    assert len(schedule(parse_graph(text), policy=TILES).kernels) == 2  # what goes through memory is rounded


def test_what_a_product_needs_whole_is_a_kernel_before_it() -> None:
    kernels = found("""
    graph @f(x: bf16[20, 6], w: bf16[5, 6], v: bf16[7, 5]) -> (q) {
      p: f32[20, 5] = contract [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]
      h: bf16[20, 5] = loop [m < 20, n < 5] cast.bf16(relu(p[m, n]))
      q: f32[20, 7] = contract [m < 20, n < 7 | k < 5] h[m, k] * v[n, k]
    }""").kernels
    assert [kernel.form for kernel in kernels] == [TiledContraction(), TiledContraction()]
    assert kernels[0].stored == ("h",)


IN_PLACE = """
graph @f(x: bf16[20, 20], w: bf16[20, 20], s: bf16[20, 20]) -> (y) {{
  h: bf16[20, 20] = extern aten.clone.default({source})
  p: f32[20, 20]  = contract [m < 20, n < 20 | k < 20] {left}[m, k] * w[n, k]
  y: bf16[20, 20] = loop [m < 20, n < 20] cast.bf16(add(p[m, n], cast.f32({residual}[m, n])))
}}"""


@pytest.mark.parametrize(
    ("source", "left", "residual", "is_reused"),
    [("s", "x", "h", True), ("x", "h", "s", False), ("x", "h", "h", False)],
    ids=["a residual", "a factor", "both"],
)
def test_a_result_takes_the_storage_of_what_is_read_at_its_points_alone(
    source: str, left: str, residual: str, *, is_reused: bool
) -> None:
    plan = schedule(parse_graph(IN_PLACE.format(source=source, left=left, residual=residual)), policy=TILES)
    assert ("y = reuse h" in str(plan)) == is_reused


OTHERS_READ = """
    graph @f(x: bf16[20, 6], w: bf16[5, 6], b: f32[5]) -> (y, s) {
      p: f32[20, 5] = contract stored bf16 [m < 20, n < 5 | k < 6] x[m, k] * w[n, k]
      y: f32[20, 5] = loop [m < 20, n < 5] add(p[m, n], b[n])
      s: f32[20]    = reduce max [m < 20 | n < 5] p[m, n]
    }"""


def test_what_other_kernels_read_of_a_product_is_of_the_type_that_it_is_stored_in() -> None:
    plan = schedule(parse_graph(OTHERS_READ), policy=TILES)
    product, reduction = plan.kernels
    assert product.stored == ("p_rounded",)
    assert [param.name for param in reduction.params if param.access == "read"] == ["p_rounded", "b"]
    assert refusal(plan, "p_rounded", "y") == "F14"


def test_sums_that_are_not_to_be_rounded_are_read_as_they_are() -> None:
    plan = schedule(parse_graph(OTHERS_READ.replace("stored bf16 ", "")), policy=TILES)
    product, reduction = plan.kernels
    assert product.stored == ("p",)
    assert [param.name for param in reduction.params if param.access == "read"] == ["p", "b"]


@pytest.mark.parametrize(("head", "dtype"), [("contract", "f8e4m3fn"), ("contract fast", "f32")])
def test_products_of_other_types_are_never_rounded_to_them(head: str, dtype: str) -> None:
    text = product(dtype=dtype, more="t: f32[20]    = reduce max [m < 20 | n < 5] p[m, n]").replace("contract", head)
    assert "p_rounded" not in str(found(text.replace("-> (y)", "-> (y, t)")))


def test_a_product_that_nobody_else_reads_is_not_rounded() -> None:
    assert "rounded" not in str(found(product()))
