"""What fuses, what does not, and why: each case also runs and is compared with the evaluator."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from checks import APART, check, kernel_of, refusal
from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, schedule
from ferrite_scheduler.model.forms import Combo
from ferrite_scheduler.model.target import Target

LOOPED = Policy(persistent_elements=2, persistent_elements_outer=2, persistent_elements_again=2)

SOFTMAX = """
graph @softmax(x: bf16[6, 8]) -> (y) {
  v: f32[6, 8]  = loop [i < 6, j < 8] cast.f32(x[i, j])
  m: f32[6]     = reduce max [i < 6 | j < 8] v[i, j]
  e: f32[6, 8]  = loop [i < 6, j < 8] exp(sub(v[i, j], m[i]))
  s: f32[6]     = reduce sum [i < 6 | j < 8] e[i, j]
  y: bf16[6, 8] = loop [i < 6, j < 8] cast.bf16(div(e[i, j], s[i]))
}"""

LAYER_NORM = """
graph @layer_norm(x: f32[6, 8], w: f32[8], b: f32[8]) -> (y, mean, rstd) {
  mean: f32[6], m2: f32[6], n: f32[6] = reduce welford [i < 6 | j < 8] x[i, j]
  rstd: f32[6] = loop [i < 6] rsqrt(add(div(m2[i], f32(8.0)), f32(1e-05)))
  y: f32[6, 8] = loop [i < 6, j < 8] add(mul(mul(sub(x[i, j], mean[i]), rstd[i]), w[j]), b[j])
}"""


def test_softmax_is_one_persistent_kernel():
    found = check(SOFTMAX)
    (kernel,) = found.kernels
    assert kernel.form.name == "persistent"
    assert kernel.stored == ("y",)
    assert [param.name for param in kernel.params] == ["x", "y"]


def test_rows_that_both_reductions_read_are_held_once():
    """A tile for the row and one for what is made of it: as many as the longest row for a tile leaves room for."""
    (kernel,) = check(SOFTMAX, policy=Policy(persistent_elements=8, persistent_bytes=2 * 8 * 4)).kernels
    assert kernel.form.name == "persistent"


def test_looped_softmax_is_one_kernel_too():
    (kernel,) = check(SOFTMAX, policy=LOOPED).kernels
    assert kernel.form.name == "looped"


def columns(points: int, *, widened: bool = True) -> str:
    """A sum of columns, divided by which they are stored again, or only the sum."""
    again = f"y: f32[{points}, 6] = loop [i < {points}, j < 6] div(x[i, j], s[j])" if widened else ""
    return f"""
    graph @f(x: f32[{points}, 6]) -> ({"y" if widened else "s"}) {{
      s: f32[6] = reduce sum [j < 6 | i < {points}] x[i, j]
      {again}
    }}"""


@pytest.mark.parametrize(
    ("points", "widened", "form"),
    [(4, False, "persistent"), (5, False, "looped"), (5, True, "persistent"), (16, True, "persistent"),
     (17, True, "looped")],
)  # fmt: skip
def test_columns_that_would_be_read_again_are_held_longer(points: int, *, widened: bool, form: str):
    policy = Policy(persistent_elements_outer=4, persistent_elements_again=16, split_minimum=64)
    (kernel,) = check(columns(points, widened=widened), policy=policy).kernels
    assert kernel.form.name == form


def test_columns_of_many_values_are_not_held():
    """Each of them is alive for all points at once."""
    values = [f"x{number}" for number in range(8)]
    text = "graph @f(" + ", ".join(f"{name}: f32[256, 6]" for name in values) + ") -> (y) {"
    total = functools.reduce(lambda a, b: f"add({a}, {b})", [f"{name}[i, j]" for name in values])
    text += f"""
      s: f32[6] = reduce sum [j < 6 | i < 256] {total}
      y: f32[256, 6] = loop [i < 256, j < 6] div({total}, s[j])
    }}"""
    found = check(text, policy=Policy(split_minimum=512))
    assert all(kernel.form.name != "persistent" for kernel in found.kernels)


def test_layer_norm_is_one_kernel_and_keeps_what_the_backward_needs():
    (kernel,) = check(LAYER_NORM).kernels
    assert set(kernel.stored) == {"y", "mean", "rstd"}
    assert kernel.params[0].name == "x"


def test_bias_activation_and_residual_are_one_kernel():
    found = check("""
    graph @f(x: f32[4, 6], b: f32[6], r: f32[4, 6]) -> (z) {
      a: f32[4, 6] = loop [i < 4, j < 6] add(x[i, j], b[j])
      g: f32[4, 6] = loop [i < 4, j < 6] tanh(a[i, j])
      z: f32[4, 6] = loop [i < 4, j < 6] add(g[i, j], r[i, j])
    }""")
    (kernel,) = found.kernels
    assert kernel.stored == ("z",)


def test_norm_backward_keeps_dx_in_one_kernel_and_dw_with_db_in_another():
    found = check("""
    graph @back(x: f32[6, 8], dy: f32[6, 8], w: f32[8]) -> (dx, dw, db) {
      s: f32[6]     = reduce sum [i < 6 | j < 8] mul(dy[i, j], w[j])
      t: f32[6]     = reduce sum [i < 6 | j < 8] mul(dy[i, j], x[i, j])
      dx: f32[6, 8] = loop [i < 6, j < 8] sub(dy[i, j], add(s[i], mul(x[i, j], t[i])))
      dw: f32[8]    = reduce sum [j < 8 | i < 6] mul(dy[i, j], x[i, j])
      db: f32[8]    = reduce sum [j < 8 | i < 6] dy[i, j]
    }""")
    assert len(found.kernels) == 2
    assert set(kernel_of(found, "dx").stored) == {"dx"}
    assert set(kernel_of(found, "dw").stored) == {"dw", "db"}
    assert refusal(found, "dx", "dw") == "F03"


def test_square_row_and_column_reductions_stay_apart():
    found = check("""
    graph @f(x: f32[6, 6]) -> (a, b) {
      a: f32[6] = reduce sum [i < 6 | j < 6] x[i, j]
      b: f32[6] = reduce sum [j < 6 | i < 6] x[i, j]
    }""")
    assert len(found.kernels) == 2
    assert refusal(found, "a", "b") == "F07"


def test_reshaped_and_permuted_chain_is_one_kernel():
    found = check("""
    graph @heads(x: f32[2, 3, 8], z: f32[2, 4, 3, 2]) -> (o) {
      v: f32[2, 3, 8]    = loop [b < 2, t < 3, c < 8] exp(x[b, t, c])
      p: f32[2, 4, 3, 2] = loop [b < 2, h < 4, t < 3, d < 2] add(v[b, t, h*2 + d], z[b, h, t, d])
      o: f32[6, 8]       = loop [r < 6, c < 8] sin(p[r // 3, c // 2, r % 3, c % 2])
    }""")
    (kernel,) = found.kernels
    assert kernel.stored == ("o",)
    assert all(not index.terms or "//" not in str(index) for index in kernel.homes["v"])


def test_reshape_that_cuts_across_falls_back_to_divisions():
    found = check("""
    graph @cuts(x: f32[4, 6]) -> (b) {
      a: f32[4, 6] = loop [i < 4, j < 6] exp(x[i, j])
      b: f32[3, 8] = loop [i < 3, j < 8] neg(a[(i*8 + j) // 6, (i*8 + j) % 6])
    }""")
    assert len(found.kernels) == 1


def test_grid_level_producer_of_a_reduction_body_joins():
    found = check("""
    graph @f(x: f32[6, 8], g: f32[6]) -> (s, h) {
      h: f32[6] = loop [i < 6] exp(g[i])
      s: f32[6] = reduce sum [i < 6 | j < 8] mul(x[i, j], h[i])
    }""")
    assert len(found.kernels) == 1


def test_reduction_over_two_dims_with_reshaped_epilogue():
    found = check("""
    graph @groups(x: f32[3, 4, 5]) -> (y) {
      s: f32[3]    = reduce sum [a < 3 | b < 4, c < 5] x[a, b, c]
      y: f32[60]   = loop [p < 60] mul(x[p // 20, (p // 5) % 4, p % 5], s[p // 20])
    }""")
    assert len(found.kernels) == 1


def test_batch_statistics_and_running_average_are_one_kernel():
    found = check("""
    graph @stats(x: f32[3, 4, 5], r: f32[4]) -> (m) mutates (r: r1) {
      s: f32[4]  = reduce sum [c < 4 | n < 3, h < 5] x[n, c, h]
      m: f32[4]  = loop [c < 4] div(s[c], f32(15.0))
      r1: f32[4] = update set r [c < 4] at [c] add(mul(r[c], f32(0.9)), mul(m[c], f32(0.1)))
    }""")
    (kernel,) = found.kernels
    assert {param.name: param.access for param in kernel.params}["r1"] == "readwrite"


def test_optimizer_step_is_one_kernel_in_place():
    found = check("""
    graph @step(p: f32[6], g: f32[6], v: f32[6], lr: f32[]) -> () mutates (p: p1, v: v1) {
      v1: f32[6] = update set v [i < 6] at [i] add(mul(v[i], f32(0.9)), g[i])
      p1: f32[6] = update set p [i < 6] at [i] sub(p[i], mul(lr[], v1[i]))
    }""")
    (kernel,) = found.kernels
    assert found.steps[0].args.count("p") == 2
    assert kernel.form.name == "pointwise"


def test_many_equal_updates_share_kernels():
    count = 30
    inputs = ", ".join(f"p{k}: f32[6], g{k}: f32[6]" for k in range(count))
    mutated = ", ".join(f"p{k}: q{k}" for k in range(count))
    body = "\n".join(
        f"q{k}: f32[6] = update set p{k} [i < 6] at [i] sub(p{k}[i], mul(g{k}[i], f32(0.1)))" for k in range(count)
    )
    text = f"graph @foreach({inputs}) -> () mutates ({mutated}) {{\n{body}\n}}"
    for policy in (replace(APART, combo=False), replace(APART, max_combo_params=48)):
        found = check(text, policy=policy)
        assert len(found.kernels) == 2
        assert max(len(kernel.params) for kernel in found.kernels) <= 48
    (kernel,) = check(text).kernels
    assert kernel.form == Combo((1,) * count)


def test_chain_is_cut_at_the_limit_of_operations():
    body = "\n".join(f"v{k + 1}: f32[6] = loop [i < 6] sin(v{k}[i])" for k in range(20))
    found = check(f"graph @chain(v0: f32[6]) -> (v20) {{\n{body}\n}}", policy=Policy(max_kernel_ops=16))
    assert len(found.kernels) > 2
    assert all(len(kernel.body) <= 8 for kernel in found.kernels)
    assert "P02" in {decision.rule for decision in found.decisions}


def test_library_call_between_keeps_producer_and_consumer_apart():
    found = check("""
    graph @diamond(x: f32[4]) -> (z) {
      a: f32[4] = loop [i < 4] exp(x[i])
      b: f32[4] = extern aten.clone.default(a)
      z: f32[4] = loop [i < 4] add(a[i], b[i])
    }""")
    assert len(found.kernels) == 2
    assert refusal(found, "a", "z") == "F09"


def test_gathered_and_shifted_reads_go_through_memory():
    found = check(
        """
    graph @f(x: f32[6], k: i64[6]) -> (b, c) {
      a: f32[6] = loop [i < 6] exp(x[i])
      b: f32[6] = loop [i < 6] neg(a[at(k[i], 6)])
      c: f32[6] = loop [i < 6] neg(a[-i + 5])
    }""",
        inputs=[[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [5, 0, 2, 2, 1, 3]],
    )
    assert kernel_of(found, "a") is not kernel_of(found, "b")
    assert kernel_of(found, "a") is not kernel_of(found, "c")
    assert refusal(found, "a", "b") == "F04"
    assert refusal(found, "a", "c") == "F04"


def test_update_stays_apart_from_a_reader_at_other_points_for_each_version():
    found = check("""
    graph @flips(x: f32[6], y: f32[6]) -> (a, b, c) mutates (x: x3) {
      a: f32[6]  = loop [i < 6] neg(x[-i + 5])
      x1: f32[6] = update set x [i < 6] at [i] y[i]
      b: f32[6]  = loop [i < 6] neg(x1[-i + 5])
      x2: f32[6] = update set x1 [i < 6] at [i] add(x1[i], y[i])
      c: f32[6]  = loop [i < 6] neg(x2[-i + 5])
      x3: f32[6] = update set x2 [i < 6] at [i] add(x2[i], y[i])
    }""")
    for reader, update in (("a", "x1"), ("b", "x2"), ("c", "x3")):
        assert kernel_of(found, reader) is not kernel_of(found, update)


def test_update_joins_a_reader_at_the_same_points():
    found = check("""
    graph @f(x: f32[6], y: f32[6]) -> (a) mutates (x: x1) {
      a: f32[6]  = loop [i < 6] neg(x[i])
      x1: f32[6] = update set x [i < 6] at [i] add(x[i], y[i])
    }""")
    assert len(found.kernels) == 1


def test_scatter_stays_apart_from_what_it_scatters_into():
    found = check(
        """
    graph @f(k: i64[5], v: f32[5]) -> (z1) {
      z: f32[4]  = loop [i < 4] f32(0.0)
      z1: f32[4] = update add z [i < 5] at [at(k[i], 4)] v[i]
    }""",
        inputs=[[0, 3, 3, 1, 0], [1.0, 2.0, 3.0, 4.0, 5.0]],
    )
    assert len(found.kernels) == 2
    assert {p.name: p.access for p in kernel_of(found, "z1").params}["z1"] == "atomic"


def test_in_place_softmax_is_one_kernel_only_while_rows_fit_in_a_tile():
    text = """
    graph @f(x: f32[4, 8]) -> () mutates (x: x1) {
      m: f32[4]     = reduce max [i < 4 | j < 8] x[i, j]
      s: f32[4]     = reduce sum [i < 4 | j < 8] exp(sub(x[i, j], m[i]))
      x1: f32[4, 8] = update set x [i < 4, j < 8] at [i, j] div(exp(sub(x[i, j], m[i])), s[i])
    }"""
    assert len(check(text).kernels) == 1
    looped = check(text, policy=LOOPED)
    assert kernel_of(looped, "x1") is not kernel_of(looped, "m")
    assert "F08" in {decision.rule for decision in looped.decisions}


def test_new_contents_are_read_in_one_pass_of_a_looped_kernel():
    """What an update stores is at hand in the pass in which it does."""
    text = """
    graph @f(t: f32[4, 8], x: f32[4, 8]) -> (y) mutates (t: u) {{
      u: f32[4, 8] = update set t [i < 4, j < 8] at [i, j] neg(x[i, j])
      m: f32[4]    = reduce max [i < 4 | j < 8] {reduced}
      y: f32[4, 8] = loop [i < 4, j < 8] {stored}
    }}"""
    reduced_only = check(text.format(reduced="u[i, j]", stored="sub(x[i, j], m[i])"), policy=LOOPED)
    assert kernel_of(reduced_only, "u") is kernel_of(reduced_only, "m")
    for reduced in ("u[i, j]", "x[i, j]"):
        found = text.format(reduced=reduced, stored="sub(u[i, j], m[i])")
        read_later = check(found, policy=LOOPED)
        assert kernel_of(read_later, "u") is not kernel_of(read_later, "y")
        assert len(check(found).kernels) == 1


def test_update_that_reads_its_neighbours_is_computed_first():
    found = check("""
    graph @shift(x: f32[6]) -> () mutates (x: x1) {
      x1: f32[6] = update set x [i < 5] at [i + 1] x[i]
    }""")
    assert len(found.kernels) == 2


def test_scan_takes_pointwise_company_only():
    found = check("""
    graph @f(x: f32[4, 6]) -> (y, t) {
      a: f32[4, 6] = loop [i < 4, j < 6] exp(x[i, j])
      s: f32[4, 6] = scan sum [i < 4, j < 6] along j a[i, j]
      y: f32[4, 6] = loop [i < 4, j < 6] mul(s[i, j], x[i, j])
      t: f32[4]    = reduce sum [i < 4 | j < 6] s[i, j]
    }""")
    kernel = kernel_of(found, "s")
    assert kernel.form.name == "scan"
    assert {"a", "s", "y"} <= set(kernel.homes)
    assert kernel_of(found, "t") is not kernel
    assert "F06" in {decision.rule for decision in found.decisions}


def test_scan_along_an_outer_dim_joins_its_neighbours():
    found = check("""
    graph @f(x: f32[4, 6]) -> (y) {
      a: f32[4, 6] = loop [i < 4, j < 6] exp(x[i, j])
      s: f32[4, 6] = scan sum [i < 4, j < 6] along i a[i, j]
      y: f32[4, 6] = loop [i < 4, j < 6] mul(s[i, j], x[i, j])
    }""")
    assert len(found.kernels) == 1


def test_sort_and_top_keep_their_results_to_themselves():
    found = check("""
    graph @f(x: f32[4, 6]) -> (n, p) {
      v: f32[4, 6], p: i64[4, 6] = sort descending [i < 4, j < 6] along j neg(x[i, j])
      n: f32[4, 6] = loop [i < 4, j < 6] neg(v[i, j])
    }""")
    assert kernel_of(found, "v").form.name == "sort"


def test_values_on_other_devices_stay_apart():
    found = schedule(_two_devices())
    assert refusal(found, "a", "b") == "F02"


def _two_devices():
    from ferrite_ir.language.dtypes import F32
    from ferrite_ir.language.graph import Graph, Loop, TensorType, Value, whole
    from ferrite_ir.language.index import Dim
    from ferrite_ir.language.scalar import apply, load

    i = Dim("d0", 6)
    x, a = Value("x", TensorType(F32, (6,))), Value("a", TensorType(F32, (6,)))
    b = Value("b", TensorType(F32, (6,), None, "cpu"))
    first = Loop((a,), (i,), (apply("exp", load("x", [i.index], F32)),))
    second = Loop((b,), (i,), (apply("neg", load("a", [i.index], F32)),))
    return Graph("f", (x,), (first, second), (whole(a), whole(b)))


def test_independent_readers_of_a_large_input_fuse_when_near_and_not_when_far():
    def text(between: int) -> str:
        gap = "\n".join(f"c{k}: f32[4] = extern aten.clone.default(y)" for k in range(between))
        outputs = ", ".join(["a", "b", *(f"c{k}" for k in range(between))])
        return f"""
        graph @f(x: f32[1024, 1024], y: f32[4]) -> ({outputs}) {{
          a: f32[1024, 1024] = loop [i < 1024, j < 1024] exp(x[i, j])
          {gap}
          b: f32[1024, 1024] = loop [i < 1024, j < 1024] neg(x[i, j])
        }}"""

    assert len(schedule(parse_graph(text(3))).kernels) == 1
    far = schedule(parse_graph(text(80)), policy=APART)
    assert len(far.kernels) == 2
    assert refusal(far, "a", "b") == "P03"
    assert len(schedule(parse_graph(text(3)), policy=replace(APART, horizontal=False)).kernels) == 2


def test_unrelated_large_kernels_sharing_only_a_number_stay_apart():
    found = schedule(
        parse_graph("""
    graph @f(x: f32[1024, 1024], z: f32[1024, 1024], c: f32[]) -> (a, b) {
      y: f32[1024, 1024] = extern aten.clone.default(z)
      a: f32[1024, 1024] = loop [i < 1024, j < 1024] mul(x[i, j], c[])
      b: f32[1024, 1024] = loop [i < 1024, j < 1024] mul(y[i, j], c[])
    }""")
    )
    assert refusal(found, "a", "b") == "P04"


def test_transposed_store_does_not_join_a_row_reduction():
    found = schedule(
        parse_graph("""
    graph @f(x: f32[1024, 1024]) -> (y, t) {
      m: f32[1024]       = reduce max [i < 1024 | j < 1024] x[i, j]
      y: f32[1024, 1024] = loop [i < 1024, j < 1024] sub(x[i, j], m[i])
      t: f32[1024, 1024] = loop [j < 1024, i < 1024] add(y[i, j], x[i, j])
    }""")
    )
    assert kernel_of(found, "m") is kernel_of(found, "y")
    assert kernel_of(found, "t") is not kernel_of(found, "y")
    assert [axis.name for axis in kernel_of(found, "t").axes] == ["y", "x"]


def test_fusing_into_a_looped_kernel_pays_for_what_it_loads_twice():
    inputs = ", ".join(f"x{k}: f32[64, 65536]" for k in range(8))
    total = "x0[i, j]"
    for k in range(1, 8):
        total = f"add({total}, x{k}[i, j])"
    text = f"""
    graph @f({inputs}) -> (y) {{
      v: f32[64, 65536] = loop [i < 64, j < 65536] {total}
      m: f32[64]        = reduce max [i < 64 | j < 65536] v[i, j]
      s: f32[64]        = reduce sum [i < 64 | j < 65536] exp2(sub(v[i, j], m[i]))
      y: f32[64, 65536] = loop [i < 64, j < 65536] div(exp2(sub(v[i, j], m[i])), s[i])
    }}"""
    found = schedule(parse_graph(text), Target(), Policy(split_minimum=1 << 30))
    assert set(kernel_of(found, "v").homes) == {"v", "m"}
    assert set(kernel_of(found, "y").homes) == {"s", "y"}
    assert "P04" in {decision.rule for decision in found.decisions}


def test_zero_points_and_no_dims():
    found = check("""
    graph @f(x: f32[0, 4], y: f32[]) -> (a, s, b) {
      a: f32[0, 4] = loop [i < 0, j < 4] exp(x[i, j])
      s: f32[4]    = reduce sum [j < 4 | i < 0] x[i, j]
      b: f32[]     = loop [] exp(y[])
    }""")
    assert found.outputs == ("a", "s", "b")


def test_independent_work_between_inputs_and_results_saves_launches() -> None:
    def kernels(*, waits: bool = False, **thresholds: Any) -> int:
        """Returns the kernels of three steps; with ``waits`` the second is of something that an extern call makes."""
        steps = [
            f"m{i}: f32[8] = loop [d0 < 8] mul({'c' if waits and i == 1 else f'x{i}'}[d0], f32(0.5))\n"
            f"p{i}: f32[8] = loop [d0 < 8] sub(y{i}[d0], exp(m{i}[d0]))"
            for i in range(3)
        ]
        inputs = ", ".join(f"{letter}{i}: f32[8]" for i in range(3) for letter in "xy")
        results = ", ".join(f"{letter}{i}" for i in range(3) for letter in "mp")
        call = "c: f32[8] = extern aten.clone.default(x1)" if waits else ""
        body = "\n".join([call, *steps])
        policy = replace(APART, small_kernel_bytes=0, **thresholds)
        return len(check(f"graph @f({inputs}) -> ({results}) {{\n{body}\n}}", policy=policy).kernels)

    assert kernels() == 1
    assert kernels(max_kernel_params=8) == 1
    assert kernels(max_kernel_params=8, max_combo_params=8) == 2
    assert kernels(max_kernel_params=8, combo=False) == 2
    assert kernels(waits=True) == 2
    assert kernels(horizontal=False) == 3
