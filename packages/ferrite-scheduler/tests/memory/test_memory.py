"""Buffers: when they are allocated, reused, overwritten in place and dropped."""

from __future__ import annotations

from checks import CHAIN, LIBRARY, check
from ferrite_ir import evaluate, parse_graph
from ferrite_ir.language import sizes
from ferrite_scheduler import Policy, schedule
from ferrite_scheduler.model.schedule import Allocate, CallExtern, Free, Item, Launch, MakeView, Reuse
from ferrite_scheduler.simulation.simulator import simulate


def steps(found, kind):
    return [step for step in found.steps if isinstance(step, kind)]


def test_a_dying_operand_is_overwritten_in_place():
    found = check(CHAIN)
    (reuse,) = steps(found, Reuse)
    assert (reuse.name, reuse.source) == ("c", "b")
    kernel = found.kernels[1]
    assert {p.name: p.access for p in kernel.params} == {"b": "read", "c": "readwrite"}
    (_, launch) = steps(found, Launch)
    assert launch.args == ("c", "c")


def test_in_place_and_reuse_can_be_switched_off():
    found = check(CHAIN, policy=Policy(inplace=False, reuse=False))
    assert not steps(found, Reuse)
    assert len(steps(found, Allocate)) == 2


def test_inputs_are_never_overwritten_but_dropped_after_their_last_use():
    found = check(CHAIN)
    assert steps(found, Free)[0] == Free(("x",))
    assert all(step.source != "x" for step in steps(found, Reuse))


def test_operand_read_at_other_points_is_not_overwritten():
    found = check("""
    graph @f(x: f32[6]) -> (d) {
      b: f32[6] = extern aten.clone.default(x)
      c: f32[6] = loop [i < 6] add(b[i], b[-i + 5])
      d: f32[6] = extern aten.clone.default(c)
    }""")
    assert not [step for step in steps(found, Reuse) if step.source == "b"]


def test_operand_needed_later_is_not_overwritten():
    found = check("""
    graph @f(x: f32[6]) -> (d, b) {
      b: f32[6] = extern aten.clone.default(x)
      c: f32[6] = loop [i < 6] neg(b[i])
      d: f32[6] = extern aten.clone.default(c)
    }""")
    assert not [step for step in steps(found, Reuse) if step.source == "b"]


def test_operand_read_again_after_the_result_is_stored_is_not_overwritten():
    found = check("""
    graph @f(x: f32[6]) -> (e, d) {
      b: f32[6] = extern aten.clone.default(x)
      c: f32[6] = loop [i < 6] neg(b[i])
      d: f32[6] = loop [i < 6] mul(c[i], b[i])
      e: f32[6] = extern aten.clone.default(c)
    }""")
    kernel = found.kernels[0]
    assert set(kernel.stored) == {"c", "d"}
    assert [step.name for step in steps(found, Reuse) if step.source == "b"] == ["d"]


def test_the_last_loop_of_a_kernel_overwrites_what_dies():
    text = """
    graph @f(x: f32[4, 8]) -> (z) {
      b: f32[4, 8] = extern aten.clone.default(x)
      m: f32[4]    = reduce max [i < 4 | j < 8] b[i, j]
      y: f32[4, 8] = loop [i < 4, j < 8] sub(b[i, j], m[i])
      z: f32[4, 8] = extern aten.clone.default(y)
    }"""
    assert [step.source for step in steps(check(text), Reuse)] == ["b"]
    looped = check(text, policy=Policy(persistent_elements=2))
    assert [kernel.form.name for kernel in looped.kernels] == ["looped"]
    assert [(step.name, step.source) for step in steps(looped, Reuse)] == [("y", "b")]


def test_storage_with_another_name_is_left_alone():
    found = check("""
    graph @f(x: f32[6]) -> (d, e) {
      b: f32[6] = extern aten.clone.default(x)
      v: f32[6] = extern ferrite.alias(b) aliases (v: b)
      c: f32[6] = loop [i < 6] neg(b[i])
      d: f32[6] = extern aten.clone.default(c)
      e: f32[6] = loop [i < 6] exp(v[i])
    }""")
    assert not [step for step in steps(found, Reuse) if step.source in ("b", "v")]


def test_result_of_an_in_place_call_is_its_operand():
    found = check("""
    graph @f(x: f32[4], y: f32[4]) -> (c) mutates (x: b) {
      b: f32[4] = extern aten.copy_.default(x, y) mutates (x) aliases (b: x) effects
      c: f32[4] = loop [i < 4] neg(b[i])
    }""")
    (call,) = steps(found, CallExtern)
    assert call.results == (None,)
    assert steps(found, Launch)[0].args[0] == "x"


def test_unused_results_of_calls_are_not_kept():
    graph = parse_graph("""
    graph @f(x: f32[4]) -> (b) {
      a: f32[4], b: f32[4] = extern lib.pair.default(x)
    }""")
    found = schedule(graph)
    (call,) = steps(found, CallExtern)
    assert call.results == (None, "b")
    assert simulate(found, [[1.0, 2.0, 3.0, 4.0]], externs={"lib.pair.default": lambda x: (x.nested(), x.nested())})


def test_views_for_calls_and_outputs_are_made_and_dropped():
    found = check("""
    graph @f(x: f32[4, 6]) -> (a as f32[6]{1} at 6, a, a, x) {
      a: f32[4, 6] = loop [i < 4, j < 6] exp(x[i, j])
      b: f32[3, 6] = extern aten.clone.default(a as f32[3, 6]{6, 1} at 6)
    }""")
    assert found.outputs[1:] == ("a", "a", "x")
    views = steps(found, MakeView)
    assert [view.view.offset for view in views] == [6]
    assert found.outputs[0] == views[0].name


def test_strided_operand_of_a_call_is_a_view_dropped_after_it():
    found = check("""
    graph @f(x: f32[4, 6]) -> (b) {
      b: f32[3, 6] = extern aten.clone.default(x as f32[3, 6]{6, 1} at 6)
    }""")
    (view,) = steps(found, MakeView)
    place = found.steps.index(view)
    assert isinstance(found.steps[place + 1], CallExtern)
    assert found.steps[place + 2] == Free((view.name,))


def test_update_of_an_intermediate_takes_over_its_storage():
    found = check(
        """
    graph @f(x: f32[4], k: i64[2]) -> (c) {
      a: f32[4] = extern aten.clone.default(x)
      b: f32[4] = update set a [i < 2] at [at(k[i], 4)] f32(7.0)
      c: f32[4] = extern aten.clone.default(b)
    }""",
        inputs=[[1.0, 2.0, 3.0, 4.0], [3, 1]],
    )
    assert steps(found, Launch)[0].args == ("k", "a")


def test_cpu_number_is_read_into_an_item_once():
    from ferrite_ir.language.dtypes import F32
    from ferrite_ir.language.graph import Graph, Loop, TensorType, Value, View
    from ferrite_ir.language.index import Dim
    from ferrite_ir.language.scalar import apply, load

    i = Dim("d0", 4)
    x, c = Value("x", TensorType(F32, (4,))), Value("c", TensorType(F32, (), None, "cpu"))
    made = [Value(name, TensorType(F32, (4,))) for name in ("a", "b")]
    loops = [
        Loop((made[0],), (i,), (apply("mul", load("x", [i.index], F32), load("c", [], F32)),)),
        Loop((made[1],), (i,), (apply("mul", load("x", [-i.index + 3], F32), load("c", [], F32)),)),
    ]
    outputs = tuple(View(value.name, F32, (4,), (1,)) for value in made)
    found = schedule(Graph("f", (x, c), tuple(loops), outputs), policy=Policy(horizontal=False))
    (item,) = steps(found, Item)
    assert item.source == "c"
    assert all(item.name in step.args for step in steps(found, Launch))
    assert all(param.host_scalar for kernel in found.kernels for param in kernel.params if param.name == "c")
    assert simulate(found, [[1.0, 2.0, 3.0, 4.0], 2.0]) == [[2.0, 4.0, 6.0, 8.0], [8.0, 6.0, 4.0, 2.0]]


def test_order_keeps_the_peak_low():
    # Reading all large inputs first would keep all copies alive; program order frees each before the next.
    body = "\n".join(
        f"a{k}: f32[4096] = extern aten.clone.default(x)\ns{k}: f32[] = reduce sum [ | r < 4096] a{k}[r]"
        for k in range(6)
    )
    outputs = ", ".join(f"s{k}" for k in range(6))
    found = schedule(
        parse_graph(f"graph @f(x: f32[4096]) -> ({outputs}) {{\n{body}\n}}"), policy=Policy(horizontal=False)
    )
    live = peak = 0
    for step in found.steps:
        if isinstance(step, CallExtern):
            live += 1
        elif isinstance(step, Free):
            live -= sum(name.startswith("a") for name in step.names)
        peak = max(peak, live)
    assert peak == 1


def test_symbolic_sizes_stay_symbolic():
    text = "graph @f(x: f32[n, 4]) -> (y) where n: size >= 1 {\ny: f32[n, 4] = loop [i < n, j < 4] neg(x[i, j])\n}"
    (kernel,) = schedule(parse_graph(text)).kernels
    assert sizes.symbols_of(kernel.grid[0].size) == {"n"}


def test_symbolic_buffers_are_reused_where_their_sizes_are_equal():
    plan = schedule(
        parse_graph(
            """graph @f(x: f32[n, 4], w: f32[4, 4]) -> (c) where n: size >= 1 {
            a: f32[n, 4] = extern aten.mm.default(x, w)
            b: f32[4*n] = loop [i < 4*n] exp(a[i % n, i // n])
            c: f32[n, 4] = loop [i < n, j < 4] b[j*n + i]
            }"""
        )
    )
    assert [str(step) for step in plan.steps if isinstance(step, Reuse)] == ["c = reuse a as f32[n, 4]"]


def test_donated_inputs_are_overwritten():
    text = """
    graph @f(x: f32[6], y: f32[6]) -> (b, c) {
      a: f32[6] = loop [i < 6] neg(x[i])
      b: f32[6] = extern aten.clone.default(a)
      c: f32[6] = loop [i < 6] add(b[i], y[i])
    }"""
    graph = parse_graph(text)
    found = schedule(graph, donated=("x", "y"))
    assert [(step.name, step.source) for step in steps(found, Reuse)] == [("a", "x"), ("c", "y")]
    assert [step.names for step in steps(found, Free)] == [("a",)]
    assert simulate(found, [[1.0] * 6, [2.0] * 6]) == [[-1.0] * 6, [1.0] * 6]
    kept = schedule(parse_graph(text.replace("(b, c)", "(b, c, y)")), donated=("x", "y"))
    assert "y" not in [step.source for step in steps(kept, Reuse)]


def test_an_earlier_loop_does_not():
    found = check(
        """
    graph @f(x: f32[3, 64]) -> (z, t) {
      y: f32[3, 64] = extern aten.clone.default(x)
      m: f32[3] = reduce max [i < 3 | r < 64] y[i, r]
      z: f32[3, 64] = loop [i < 3, r < 64] sub(y[i, r], m[i])
      s: f32[3] = reduce sum [i < 3 | r < 64] exp(sub(y[i, r], m[i]))
      t: f32[3] = reduce sum [i < 3 | r < 64] div(exp(y[i, r]), s[i])
    }""",
        policy=Policy(persistent_elements=2),
    )
    (kernel,) = found.kernels
    assert kernel.form.name == "looped"
    assert not steps(found, Reuse)


def test_nor_does_one_whose_values_a_later_loop_computes_anew():
    graph = parse_graph("""
    graph @f(x: f32[n, 3], c: f32[3]) -> (v, z) where n: size >= 1 ~ 2 {
      y: f32[n, 3] = extern aten.clone.default(x)
      v: f32[n, 3] = loop [i < n, j < 3] mul(sin(add(y[i, j], c[j])), f32(0.5))
      m: f32[3]    = reduce max [j < 3 | r < n] mul(x[r, j], c[j])
      z: f32[n, 3] = loop [i < n, j < 3] mul(sin(add(m[j], v[i, j])), f32(0.5))
    }""")
    found = schedule(graph)
    (kernel,) = found.kernels
    assert kernel.form.name == "looped"
    assert [step.name for step in steps(found, Reuse)] == ["z"]
    for n in (1, 300):
        inputs = [[[i / 7 - j for j in range(3)] for i in range(n)], [0.5, -0.25, 1.0]]
        expected = evaluate(graph, inputs, externs=LIBRARY, symbols={"n": n})
        assert simulate(found, inputs, externs=LIBRARY, symbols={"n": n}) == expected


EMPTY = """
graph @f(x: f32[64]) -> (c) {
  a: f32[64] = loop [i < 64] neg(x[i])
  p: f32[64] = extern test.reads(a) effects
  b: f32[64] = extern aten.empty_strided.default([64], [1], dtype=tag(dtype, "f32"), device=tag(device, "cuda"))
  extern test.writes(p, b) mutates (b) effects
  c: f32[64] = loop [i < 64] add(b[i], p[i])
}"""


def test_a_tensor_without_contents_is_a_buffer_that_takes_the_place_of_a_dead_one():
    found = schedule(parse_graph(EMPTY))
    first = steps(found, Reuse)[0]
    assert (first.name, first.source) == ("b", "a")
    assert [step.definition.target for step in steps(found, CallExtern)] == ["test.reads", "test.writes"]
    apart = schedule(parse_graph(EMPTY), policy=Policy(reuse=False))
    assert [step.name for step in steps(apart, Allocate)][:2] == ["a", "b"]


def test_a_tensor_without_contents_that_nobody_reads_is_not_made():
    text = EMPTY.replace("extern test.writes(p, b) mutates (b) effects", "").replace("b[i]", "p[i]")
    found = schedule(parse_graph(text))
    assert "b" not in {step.name for step in (*steps(found, Allocate), *steps(found, Reuse))}


COPIED = """
graph @f(x: f32[64]) -> (d) {
  a: f32[64] = extern test.makes(x) effects
  b: f32[64] = loop [i < 64] a[BODY]
  extern test.writes(b) mutates (b) effects
  d: f32[64] = loop [i < 64] neg(b[i])
}"""


def test_a_copy_onto_itself_is_not_launched():
    found = schedule(parse_graph(COPIED.replace("BODY", "i")))
    assert len(steps(found, Launch)) == 1
    first = steps(found, Reuse)[0]
    assert (first.name, first.source) == ("b", "a")


def test_a_copy_of_what_is_read_later_or_in_another_order_is_launched():
    assert len(steps(schedule(parse_graph(COPIED.replace("BODY", "-i + 63"))), Launch)) == 2
    later = COPIED.replace("BODY", "i").replace("neg(b[i])", "add(b[i], a[i])")
    assert len(steps(schedule(parse_graph(later)), Launch)) == 2
    cast = COPIED.replace("a[BODY]", "neg(a[i])")
    assert len(steps(schedule(parse_graph(cast)), Launch)) == 2
