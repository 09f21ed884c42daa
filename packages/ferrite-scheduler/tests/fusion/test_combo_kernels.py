"""Independent definitions of a kernel: which get programs of their own, and that these meet in no storage."""

from __future__ import annotations

from checks import check
from ferrite_scheduler import Policy
from ferrite_scheduler.model.forms import Combo, Pointwise
from ferrite_scheduler.model.schedule import Kernel, Reuse

WIDE = 32
"""Elements, so many that a tensor of two is small beside them."""


def steps_of(count: int, factor: str = "f[0]") -> Kernel:
    """Returns the kernel of two steps on each of several tensors."""
    inputs = ", ".join(f"p{k}: f32[{WIDE}], g{k}: f32[{WIDE}]" for k in range(count))
    moved = [f"m{k}: f32[{WIDE}] = loop [i < {WIDE}] mul(g{k}[i], {factor})" for k in range(count)]
    new = [f"q{k}: f32[{WIDE}] = loop [i < {WIDE}] sub(p{k}[i], m{k}[i])" for k in range(count)]
    results = ", ".join(f"m{k}, q{k}" for k in range(count))
    body = "\n".join((*moved, *new))
    found = check(f"graph @steps(f: f32[2], w: f32[{WIDE}], {inputs}) -> ({results}) {{\n{body}\n}}")
    (kernel,) = found.kernels
    return kernel


def test_steps_over_a_list_are_branches_though_each_reads_the_same_number() -> None:
    kernel = steps_of(3)
    assert kernel.form == Combo((2, 2, 2))
    assert [d.results[0].name for d in kernel.body] == ["m0", "q0", "m1", "q1", "m2", "q2"]
    assert kernel.part_of == (0, 0, 1, 1, 2, 2)
    assert "combo(parts=2+2+2)" in str(kernel)
    assert "# part 2" in str(kernel)


def test_definitions_that_read_the_same_tensor_stay_together() -> None:
    assert steps_of(3, factor="w[i]").form == Pointwise()


def test_a_tensor_that_is_updated_joins_all_that_touch_it() -> None:
    found = check("""
    graph @f(p: f32[8], a: f32[8], b: f32[8]) -> () mutates (p: q, a: c, b: d) {
      q: f32[8] = update set p [i < 8] at [i] add(p[i], f32(1.0))
      c: f32[8] = update set a [i < 8] at [i] add(a[i], q[i])
      d: f32[8] = update set b [i < 8] at [i] exp(b[i])
    }""")
    (kernel,) = found.kernels
    assert kernel.form == Combo((2, 1))


def test_results_of_a_branch_never_take_the_storage_of_another_one() -> None:
    text = """
    graph @f(x: f32[8], y: f32[8]) -> (p, q) {
      a: f32[8] = extern aten.clone.default(x)
      b: f32[8] = extern aten.clone.default(y)
      q: f32[8] = loop [i < 8] exp(b[i])
      p: f32[8] = loop [i < 8] neg(a[i])
    }"""
    found = check(text)
    assert found.kernels[-1].form == Combo((1, 1))
    taken = {(step.name, step.source) for step in found.steps if isinstance(step, Reuse)}
    assert taken == {("p", "a"), ("q", "b")}


def test_results_of_a_branch_never_take_the_storage_in_which_another_reads_where_to_store() -> None:
    text = """
    graph @f(x: f32[1], y: f32[8]) -> (p, z) {
      a: i64[1] = extern aten.clone.default(x)
      c: f32[8] = extern aten.clone.default(y)
      p: i64[1] = loop [i < 1] sub(i64(3), a[i])
      z: f32[8] = update set c [i < 1] at [wrap(mod(a[i], i64(8)), 8)] f32(2.0)
    }"""
    found = check(text)
    assert found.kernels[-1].form == Combo((1, 1))
    assert not [step for step in found.steps if isinstance(step, Reuse)]


def test_branches_can_be_switched_off() -> None:
    text = """
    graph @f(x: f32[8], y: f32[8]) -> (p, q) {
      p: f32[8] = loop [i < 8] neg(x[i])
      q: f32[8] = loop [i < 8] exp(y[i])
    }"""
    assert check(text).kernels[0].form == Combo((1, 1))
    assert check(text, policy=Policy(combo=False)).kernels[0].form == Pointwise()
