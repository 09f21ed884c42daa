"""Kernels of any forms and sizes that share a launch: which do, what moves where, and that they compute the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import APART, check, generated_inputs
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Extern
from ferrite_scheduler import Policy, Schedule, boundaries, explain, parse_schedule, schedule
from ferrite_scheduler.memory.footprint import footprint
from ferrite_scheduler.model.forms import Combo, ComboPart, LoopedReduction, MixedCombo, PersistentReduction, Pointwise
from ferrite_scheduler.model.schedule import Decision, Kernel, Launch, Reuse
from generated_graphs import generated_graph

JOINED = Policy()
SUMS = """
graph @sums(a: f32[7, 100], b: f32[20, 33], c: f32[9]) -> (p, q, r) {
  p: f32[7]  = reduce sum [i < 7 | j < 100] a[i, j]
  q: f32[20] = reduce max [i < 20 | j < 33] b[i, j]
  r: f32[9]  = loop [i < 9] exp(c[i])
}"""
LONG = Policy(persistent_elements=16, persistent_elements_outer=16, persistent_elements_again=16)


def parts_of(kernel: Kernel) -> tuple[ComboPart, ...]:
    """Returns the parts of a mixed combo; of other kernels none."""
    return kernel.form.parts if isinstance(kernel.form, MixedCombo) else ()


def refusals(found: Schedule) -> list[Decision]:
    """Returns why kernels do not share a launch."""
    return [decision for decision in found.decisions if decision.rule.startswith("C")]


def test_reductions_and_loops_of_unlike_sizes_are_one_launch() -> None:
    found = check(SUMS, policy=JOINED)
    (kernel,) = found.kernels
    assert isinstance(kernel.form, MixedCombo)
    assert kernel.axes == ()
    assert [type(part.form) for part in parts_of(kernel)] == [PersistentReduction, PersistentReduction, Pointwise]
    assert [[str(axis) for axis in part.axes] for part in parts_of(kernel)] == [
        ["x(x0 < 7)", "r(r0 < 100)"],
        ["x(x0 < 20)", "r(r0 < 33)"],
        ["x(x0 < 9)"],
    ]
    assert [member.stored for member in kernel.members] == [("p",), ("q",), ("r",)]
    assert [[param.name for param in member.params] for member in kernel.members] == [
        ["a", "p"],
        ["b", "q"],
        ["c", "r"],
    ]
    assert kernel.points == 7 * 100 + 20 * 33 + 9
    assert kernel.part_of == (0, 1, 2)


LAYERS = """
graph @layers(a: f32[7, 100], b: f32[20, 33]) -> (r) {
  p: f32[7]  = reduce sum [i < 7 | j < 100] a[i, j]
  q: f32[20] = reduce max [i < 20 | j < 33] b[i, j]
  c: f32[7, 100] = extern aten.mul.Tensor(a, p)
  s: f32[7]  = reduce sum [i < 7 | j < 100] c[i, j]
  r: f32[20] = extern aten.mul.Tensor(q, s)
}"""


def test_few_kernels_of_a_large_program_stay_apart_where_another_is_like_one_of_them() -> None:
    """With so many kernels that they are those of layers, a launch for few of them is one more to compile."""
    large = Policy(combo_small_program=2, combo_least_parts=4)
    found = schedule(parse_graph(LAYERS), policy=large)
    assert len(found.kernels) == 3
    (refused,) = [each for each in refusals(found) if each.rule == "C11"]
    assert dict(refused.numbers) == {"kernels": 2, "least": 4}
    assert len(schedule(parse_graph(LAYERS), policy=replace(large, combo_least_parts=2)).kernels) == 2
    assert len(schedule(parse_graph(LAYERS), policy=replace(large, combo_small_program=3)).kernels) == 2
    other = LAYERS.replace("reduce sum [i < 7 | j < 100] c", "reduce max [i < 7 | j < 100] c")
    assert len(schedule(parse_graph(other), policy=large).kernels) == 2


def test_it_is_a_matter_of_policy() -> None:
    assert len(check(SUMS, policy=APART).kernels) == 3
    assert len(check(SUMS, policy=Policy(max_combo_parts=2)).kernels) == 2
    assert len(check(SUMS, policy=Policy(combo_distance=0)).kernels) == 3
    assert len(check(SUMS, policy=Policy(combo_distance=1)).kernels) == 2


def test_a_kernel_alone_is_its_only_member() -> None:
    for kernel in check(SUMS, policy=APART).kernels:
        assert kernel.members == (kernel,)


@pytest.mark.parametrize("policy", [JOINED, LONG], ids=["persistent", "looped"])
def test_rows_columns_scans_and_updates_share_a_launch(policy: Policy) -> None:
    text = """
    graph @f(a: f32[5, 40], b: f32[33, 6], c: f32[3, 24], d: f32[11], e: f32[4], k: i64[4]) -> (p, q, r, s)
        mutates (d: t) {
      p: f32[5] = reduce sum [i < 5 | j < 40] a[i, j]
      m: f32[5] = reduce max [i < 5 | j < 40] a[i, j]
      s: f32[5, 40] = loop [i < 5, j < 40] sub(a[i, j], m[i])
      q: f32[6] = reduce sum [j < 6 | i < 33] b[i, j]
      r: f32[3, 24] = scan sum [i < 3, j < 24] along j c[i, j]
      t: f32[11] = update add d [i < 4] at [wrap(k[i], 11)] e[i]
    }"""
    graph = parse_graph(text)
    found = check(graph, policy=policy, inputs=[*generated_inputs(graph)[:5], [1, 5, 1, 0]])
    (kernel,) = found.kernels
    assert len(parts_of(kernel)) == 4
    forms = {type(part.form) for part in parts_of(kernel)}
    assert (LoopedReduction in forms) is (policy is LONG)


def test_lists_of_equal_shapes_are_parts_that_are_combos_themselves() -> None:
    lists = [f"x{k}: f32[{8 + k % 2}]" for k in range(6)]
    body = "\n".join(f"y{k}: f32[{8 + k % 2}] = loop [i < {8 + k % 2}] exp(x{k}[i])" for k in range(6))
    results = ", ".join(f"y{k}" for k in range(6))
    (kernel,) = check(f"graph @f({', '.join(lists)}) -> ({results}) {{\n{body}\n}}", policy=JOINED).kernels
    assert [part.form for part in parts_of(kernel)] == [Combo((1, 1, 1)), Combo((1, 1, 1))]
    assert kernel.part_of == (0, 1, 2, 3, 4, 5)


def test_each_level_of_dependences_is_a_launch_of_its_own() -> None:
    sizes = (5, 9, 12)
    inputs = ", ".join(f"x{n}: f32[{n}]" for n in sizes)
    body = [f"s{n}: f32[] = reduce sum [ | i < {n}] mul(x{n}[i], x{n}[i])" for n in sizes]
    body.append(f"t: f32[] = loop [] sqrt({'add(s5[], add(s9[], s12[]))'})")
    body += [f"y{n}: f32[{n}] = loop [i < {n}] div(x{n}[i], t[])" for n in sizes]
    results = ", ".join(f"y{n}" for n in sizes)
    found = check(f"graph @clip({inputs}) -> ({results}) {{\n" + "\n".join(body) + "\n}", policy=JOINED)
    assert len(found.kernels) == 3
    assert [bool(parts_of(kernel)) for kernel in found.kernels] == [True, False, True]


BETWEEN = """
graph @f(x: f32[64], y: f32[4, 8]) -> (b, c, d) {
  a: f32[64] = loop [i < 64] exp(x[i])
  b: f32[64] = extern aten.clone.default(a)
  c: f32[4]  = reduce sum [i < 4 | j < 8] y[i, j]
  d: f32[64] = loop [i < 64] neg(b[-i + 63])
}"""


def test_kernels_move_past_calls_that_need_nothing_of_them() -> None:
    found = check(BETWEEN, policy=JOINED)
    assert len(found.kernels) == 2
    assert sorted(len(parts_of(kernel)) for kernel in found.kernels) == [0, 2]
    call = next(n for n, step in enumerate(found.steps) if type(getattr(step, "definition", None)) is Extern)
    before = [step.kernel for step in found.steps[:call] if isinstance(step, Launch)]
    assert before == [0]


def test_a_move_that_raises_the_peak_is_refused() -> None:
    """The second reduction runs where the first one is only if both large operands are alive at once."""
    text = """
    graph @f(x: f32[4096], y: f32[4000]) -> (p, q, c, d) {
      a: f32[4096] = extern aten.clone.default(x)
      p: f32[] = reduce sum [ | i < 4096] a[i]
      b: f32[4000] = extern aten.clone.default(y)
      q: f32[] = reduce max [ | i < 4000] b[i]
      c: f32[4096] = extern aten.clone.default(x)
      d: f32[4000] = extern aten.clone.default(y)
    }"""
    policy = replace(JOINED, split_minimum=1 << 20, combo_peak_bytes=0)
    found, apart = check(text, policy=policy), check(text, policy=replace(policy, mixed_combos=False))
    assert len(found.kernels) == len(apart.kernels) == 2
    (refusal,) = refusals(found)
    assert (refusal.first, refusal.second, refusal.rule) == ("p", "q", "C10")
    numbers = dict(refusal.numbers)
    assert numbers["bytes"] > numbers["peak"]
    assert footprint(found).peak <= footprint(apart).peak


def test_a_large_kernel_stays_where_its_operands_are_in_the_cache() -> None:
    assert [len(parts_of(kernel)) for kernel in check(BETWEEN, policy=JOINED).kernels] == [2, 0]
    found = check(BETWEEN, policy=Policy(combo_moved_bytes=100))
    assert [len(parts_of(kernel)) for kernel in found.kernels] == [0, 2]
    assert [decision.rule for decision in refusals(found)] == ["C09"]


def test_reductions_of_one_space_that_share_nothing_have_programs_of_their_own() -> None:
    text = """
    graph @f(x: f32[6, 8], y: f32[6, 8], z: f32[6, 8]) -> (p, q, r, s) {
      p: f32[6] = reduce sum [i < 6 | j < 8] x[i, j]
      q: f32[6] = reduce sum [i < 6 | j < 8] y[i, j]
      r: f32[6] = reduce max [i < 6 | j < 8] z[i, j]
      s: f32[6, 8] = loop [i < 6, j < 8] sub(y[i, j], q[i])
    }"""
    (kernel,) = check(text, policy=JOINED).kernels
    assert [member.stored for member in kernel.members] == [("q", "s"), ("p",), ("r",)]
    (whole,) = check(text, policy=APART).kernels
    assert whole.form == PersistentReduction()


@given(st.integers(0, 10**6), st.integers(2, 14))
@settings(max_examples=60, deadline=None)
def test_drawn_graphs_compute_the_same_with_no_higher_peak(seed: int, length: int) -> None:
    graph = generated_graph(seed, length)
    found = check(graph, policy=Policy(inplace=False), inputs=generated_inputs(graph, seed))
    assert str(parse_schedule(str(found))) == str(found)
    apart = schedule(graph, policy=Policy(inplace=False, mixed_combos=False))
    assert len(found.kernels) <= len(apart.kernels)


@pytest.mark.parametrize(
    ("rule", "thresholds", "first", "second"),
    [
        ("C03", {"max_combo_parts": 1}, "p", "q"),
        ("C04", {"max_launch_params": 3}, "p", "q"),
        ("C05", {"combo_part_bytes": 1000}, "q", "r"),
        ("C06", {"combo_row_elements": 50, "combo_unlike_bytes": 0}, "p", "q"),
    ],
)
def test_refusals_have_a_rule_and_numbers(rule: str, thresholds: dict[str, int], first: str, second: str) -> None:
    found = check(SUMS, policy=Policy(**thresholds))
    decision = next(each for each in refusals(found) if {each.first, each.second} == {first, second})
    assert decision.rule == rule
    assert decision.numbers
    assert rule in explain(found, first, second)


def test_forms_whose_programs_wait_or_sort_share_no_launch() -> None:
    text = """
    graph @f(a: f32[4, 8], b: f32[5]) -> (p, q) {
      p: f32[4, 8] = sort [i < 4, j < 8] along j a[i, j]
      q: f32[5] = loop [i < 5] exp(b[i])
    }"""
    found = check(text, policy=JOINED)
    assert len(found.kernels) == 2
    assert not any(parts_of(kernel) for kernel in found.kernels)


def test_devices_stay_apart() -> None:
    text = """
    graph @f(a: f32[4] @"cuda:1", b: f32[5]) -> (p, q) {
      p: f32[4] @"cuda:1" = loop [i < 4] exp(a[i])
      q: f32[5] = loop [i < 5] exp(b[i])
    }"""
    found = schedule(parse_graph(text))
    assert len(found.kernels) == 2
    assert [decision.rule for decision in refusals(found)] == ["C02"]


@pytest.mark.parametrize(("divided", "together"), [(False, True), (True, False)])
def test_large_parts_share_a_launch_where_they_only_reduce(*, divided: bool, together: bool) -> None:
    rows = "reduce sum [i < 100000 | r0 < 70] x[i, r0]"
    last = "  q: f32[100000, 70] = loop [i < 100000, j < 70] div(x[i, j], p[i])\n" if divided else ""
    text = f"""
    graph @f(x: f32[100000, 70], y: f32[9000, 900]) -> ({"q" if divided else "p"}, s) {{
      p: f32[100000] = {rows}
    {last}  s: f32[900] = reduce sum [j < 900 | r0 < 9000] y[r0, j]
    }}"""
    found = schedule(parse_graph(text))
    sharing = [kernel for kernel in found.kernels if parts_of(kernel)]
    assert bool(sharing) is together
    assert any(decision.rule == "C05" for decision in refusals(found)) is not together


def test_results_take_the_storage_of_what_their_own_part_alone_reads() -> None:
    text = """
    graph @f(x: f32[8], y: f32[9]) -> (p, q) {
      a: f32[8] = extern aten.clone.default(x)
      b: f32[9] = extern aten.clone.default(y)
      p: f32[8] = loop [i < 8] neg(a[i])
      q: f32[9] = loop [i < 9] exp(b[i])
    }"""
    found = check(text, policy=JOINED)
    (kernel,) = found.kernels
    assert len(parts_of(kernel)) == 2
    assert {(step.name, step.source) for step in found.steps if isinstance(step, Reuse)} == {("p", "a"), ("q", "b")}
    shared = text.replace("y: f32[9]", "y: f32[9], z: f32[8]").replace("exp(b[i])", "add(exp(b[i]), a[0])")
    again = check(shared, policy=JOINED)
    assert {step.source for step in again.steps if isinstance(step, Reuse)} == {"b"}


def test_programs_that_take_longest_come_first() -> None:
    text = """
    graph @f(a: f32[5], b: f32[9, 8], c: f32[3, 100]) -> (p, q, r) {
      p: f32[5] = loop [i < 5] exp(a[i])
      q: f32[9] = reduce sum [i < 9 | j < 8] b[i, j]
      r: f32[3] = reduce sum [i < 3 | j < 100] c[i, j]
    }"""
    (kernel,) = check(text, policy=JOINED).kernels
    assert [member.stored for member in kernel.members] == [("r",), ("q",), ("p",)]


@pytest.mark.parametrize(("rows", "turns"), [((6, 6), True), ((6, 7), False)])
def test_rows_of_unlike_length_take_turns_where_there_are_equally_many(rows: tuple[int, int], *, turns: bool) -> None:
    one, other = rows
    text = f"""
    graph @f(a: f32[{one}, 1024], b: f32[{other}, 2048]) -> (p, q) {{
      p: f32[{one}] = reduce sum [i < {one} | j < 1024] a[i, j]
      q: f32[{other}] = reduce sum [i < {other} | j < 2048] b[i, j]
    }}"""
    (kernel,) = schedule(parse_graph(text)).kernels
    assert isinstance(kernel.form, MixedCombo)
    assert kernel.form.takes_turns is turns
    assert ("mixed_combo(takes_turns=True)" in str(kernel)) is turns
    for policy in (Policy(combo_single_row=2048), Policy(combo_unlike_rows=3)):
        (kernel,) = schedule(parse_graph(text), policy=policy).kernels
        assert isinstance(kernel.form, MixedCombo)
        assert not kernel.form.takes_turns


@pytest.mark.parametrize(
    ("length", "together"), [("n", True), ("n * 2", True), ("9", True), ("n + k", True), ("m", False)]
)
def test_sizes_that_change_together_may_be_parts_of_one_launch(length: str, *, together: bool) -> None:
    symbols = ", ".join(f"{name}: size >= 1 ~ 6" for name in "nkm" if name in f"n{length}")
    text = f"""
    graph @f(a: f32[n, 8], b: f32[{length}]) -> (p, q) where {symbols} {{
      p: f32[n] = reduce sum [i < n | j < 8] a[i, j]
      q: f32[{length}] = loop [i < {length}] exp(b[i])
    }}"""
    found = schedule(parse_graph(text), policy=Policy(small_kernel_bytes=0))
    assert len(found.kernels) == (1 if together else 2)
    assert [each.rule for each in refusals(found)] == ([] if together else ["C07"])


def test_what_is_decided_is_reported() -> None:
    found = check(SUMS, policy=JOINED)
    assert "saves a launch" in explain(found, "p", "q")
    assert "mixed_combos" in explain(found, "p", "q")
    apart = check(SUMS, policy=Policy(combo_part_bytes=1000))
    titles = {boundary.title for boundary in boundaries(apart)}
    assert "a launch counts" in titles


def test_parts_parse_back() -> None:
    found = check(SUMS, policy=JOINED)
    assert "part persistent_sum: persistent [x(x0 < 7) r(r0 < 100)] {" in str(found)
    again = parse_schedule(str(found))
    assert again.kernels == found.kernels
    assert again.kernels[0].homes == found.kernels[0].homes
