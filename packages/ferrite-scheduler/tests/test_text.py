"""Schedules print and parse back, the same to the letter; broken text is refused with its place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import EAGER_TO_SPLIT
from ferrite_ir import ParseError, parse_graph
from ferrite_ir.language.graph import Origin
from ferrite_scheduler import Policy, Schedule, Target, parse_schedule, schedule
from ferrite_scheduler.model.forms import FORMS, form_text, parse_form
from ferrite_scheduler.model.schedule import CallExtern
from ferrite_scheduler.model.segments import REDUCE_SEGMENTS
from generated_graphs import generated_graph

POLICIES = {
    "default": (Target(), Policy()),
    "looped": (Target(), Policy(persistent_elements=2, persistent_elements_outer=2, persistent_elements_again=2)),
    "splitting": (EAGER_TO_SPLIT, Policy(split_minimum=4)),
    "reluctant": (Target(), Policy(small_kernel_bytes=0, horizontal=False, reuse=False, inplace=False)),
}

EVERY_FORM = Policy(chunk_minimum=1, tile_products=True)

GRAPHS = {
    "two versions": """graph @f(x: f32[n, 3]) -> (y) where n: size >= 0 ~ 100000 {
  s: f32[3] = reduce sum [j < 3 | r < n] x[r, j]
  y: f32[3] = loop [j < 3] mul(s[j], f32(2.0))
}""",
    "a symbolic row": """graph @f(x: f32[2, n]) -> (y) where n: size >= 1 <= 100000 ~ 64 {
  s: f32[2] = reduce sum [i < 2 | r < n] exp(x[i, r])
  y: f32[2, n] = loop [i < 2, j < n] div(exp(x[i, j]), s[i])
}""",
    "columns beside rows": """graph @f(g: f32[65536, 512], x: f32[65536, 512], w: f32[512]) -> (dx, dw) {
  s: f32[65536] = reduce sum [i < 65536 | c < 512] mul(g[i, c], mul(w[c], x[i, c]))
  dx: f32[65536, 512] = loop [i < 65536, c < 512] sub(mul(g[i, c], w[c]), mul(x[i, c], s[i]))
  dw: f32[512] = reduce sum [c < 512 | i < 65536] mul(g[i, c], x[i, c])
}""",
    "a long scan": """graph @f(x: f32[2, 1048576]) -> (y) {
  y: f32[2, 1048576] = scan sum [i < 2, j < 1048576] along j x[i, j]
}""",
    "a scan by a user's combine": """graph @f(a: f32[2, 1048576], b: f32[2, 1048576]) -> (y) {
  p: f32[2, 1048576], y: f32[2, 1048576] = scan by
    let t0 = mul(left1[], right0[])
    (mul(left0[], right0[]), add(t0, mul(right1[], cast.f32(lt(t0, right1[])))))
    [i < 2, j < 1048576] along j (a[i, j], b[i, j])
}""",
    "a shared row": """graph @f(x: f32[4096, 131072]) -> (y) {
  s: f32[4096] = reduce sum [i < 4096 | r < 131072] x[i, r]
  y: f32[4096, 131072] = loop [i < 4096, r < 131072] div(x[i, r], s[i])
}""",
    "lists": """graph @f(p: f32[100000], q: f32[100000]) -> (a, b) {
  a: f32[100000] = loop [i < 100000] exp(p[i])
  b: f32[100000] = loop [i < 100000] neg(q[i])
}""",
    "few rows by a matrix": """graph @f(x: bf16[4, 1024], w: bf16[4096, 1024]) -> (y) {
  z: f32[4, 4096] = contract [i < 4, j < 4096 | k < 1024] cast.f32(x[i, k]) * cast.f32(w[j, k])
  y: bf16[4, 4096] = loop [i < 4, j < 4096] cast.bf16(z[i, j])
}""",
    "few rows of float32": """graph @f(x: f32[4, 1024], w: f32[4096, 1024]) -> (z) {
  z: f32[4, 4096] = contract [i < 4, j < 4096 | k < 1024] x[i, k] * w[j, k]
}""",
    "a product with what reads it": """graph @f(x: bf16[512, 64], w: bf16[96, 64], b: f32[96], s: bf16[512, 96])
  -> (y) {
  z: f32[512, 96] = contract [i < 512, j < 96 | k < 64] x[i, k] * w[j, k]
  y: bf16[512, 96] = loop [i < 512, j < 96] cast.bf16(add(relu(add(z[i, j], b[j])), cast.f32(s[i, j])))
}""",
    "a product in parts": """graph @f(x: bf16[128, 65536], w: bf16[128, 65536]) -> (y) {
  z: f32[128, 128] = contract [i < 128, j < 128 | k < 65536] x[i, k] * w[j, k]
  y: bf16[128, 128] = loop [i < 128, j < 128] cast.bf16(z[i, j])
}""",
    "rows of scores": """graph @f(q: bf16[2, 4, 300, 64], k: bf16[2, 2, 300, 64], v: bf16[2, 2, 300, 64]) -> (o, l) {
  o: f32[2, 4, 300, 64], l: f32[2, 4, 300] =
    attend softmax (s) [b < 2, h < 4, i < 300, e < 64 | j < 300 | d < 64]
    q[b, h, i, d] * k[b, h // 2, j, d] along d weigh mul(s[], f32(0.125)) times v[b, h // 2, j, e]
    if le(index.i32(j), index.i32(i))
}""",
    "few rows of scores": """graph @f(q: bf16[1, 4, 1, 64], k: bf16[1, 2, 8192, 64], v: bf16[1, 2, 8192, 64]) -> (o) {
  o: f32[1, 4, 1, 64] =
    attend softmax (s) [b < 1, h < 4, i < 1, e < 64 | j < 8192 | d < 64]
    q[b, h, i, d] * k[b, h // 2, j, d] along d weigh mul(s[], f32(0.125)) times v[b, h // 2, j, e]
}""",
    "images": """graph @f(x: f32[2, 64, 64, 64]{262144, 1, 4096, 64}) -> (y) {
  mean: f32[2, 4], m2: f32[2, 4], count: f32[2, 4] = reduce welford
      [n < 2, g < 4 | c < 16, h < 64, w < 64] x[n, g*16 + c, h, w]
  y: f32[2, 64, 64, 64]{262144, 1, 4096, 64} = loop [n < 2, k < 64, h < 64, w < 64]
      mul(sub(x[n, k, h, w], mean[n, k // 16]), rsqrt(add(m2[n, k // 16], f32(1e-05))))
}""",
    "kernels of any forms": """graph @f(a: f32[7, 100], b: f32[20, 33], c: f32[9]) -> (p, q, r) {
  p: f32[7] = reduce sum [i < 7 | j < 100] a[i, j]
  q: f32[20, 33] = scan sum [i < 20, j < 33] along j b[i, j]
  r: f32[9] = loop [i < 9] exp(c[i])
}""",
    "sorted rows": """graph @f(x: f32[4000, 600]) -> (v, p) {
  v: f32[4000, 600], p: i64[4000, 600] = sort descending [i < 4000, j < 600] along j neg(x[i, j])
}""",
    "scanned rows": """graph @f(x: f32[4000, 600]) -> (y) {
  y: f32[4000, 600] = scan sum [i < 4000, j < 600] along j x[i, j]
}""",
    "held rows": """graph @f(x: f32[4000, 600]) -> (y) {
  s: f32[4000] = reduce sum [i < 4000 | r < 600] x[i, r]
  y: f32[4000, 600] = loop [i < 4000, r < 600] div(x[i, r], s[i])
}""",
    "scattered rows": """graph @f(t: bf16[1000, 128], k: i64[65536], x: bf16[65536, 128]) -> (y) {
  s: f32[1000, 128] = loop [r < 1000, j < 128] cast.f32(t[r, j])
  u: f32[1000, 128] = update add s [i < 65536, j < 128] at [at(k[i], 1000), j] cast.f32(x[i, j])
  y: bf16[1000, 128] = loop [r < 1000, j < 128] cast.bf16(u[r, j])
}""",
    "calls, views and names": """graph @f(x: f32[4, 6], $loop: f32[4], k: f32[] @cpu)
  -> ($loop, v as f32[2]{2} at 1, e, 3, true, none) {
  v: f32[4] = loop [i < 4] add(mul($loop[i], x[i, 0]), k[])
  e: f32[4], _ = extern aten.two.default(v, x as f32[4]{6} at 2, [1, 2.5], dim=-1, mode="sum") effects
  u: f32[4] = update add v [i < 4] at [i] e[i]
}""",
}


def reparsed(found: Schedule) -> Schedule:
    """Returns what the text of a schedule says, after checking that it prints the same."""
    text = str(found)
    again = parse_schedule(text)
    assert str(again) == text
    return again


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9), length=st.integers(1, 14))
def test_schedules_of_drawn_graphs_parse_back(name: str, seed: int, length: int) -> None:
    target, policy = POLICIES[name]
    found = schedule(generated_graph(seed, length), target, policy)
    again = reparsed(found)
    assert again.steps == found.steps
    assert again.decisions == found.decisions
    assert again.outputs == found.outputs
    assert [kernel.params for kernel in again.kernels] == [kernel.params for kernel in found.kernels]
    assert [kernel.homes for kernel in again.kernels] == [kernel.homes for kernel in found.kernels]


@pytest.mark.parametrize("name", GRAPHS)
def test_all_that_a_kernel_has_parses_back(name: str) -> None:
    found = schedule(parse_graph(GRAPHS[name]), policy=EVERY_FORM)
    again = reparsed(found)
    assert again.steps == found.steps
    assert again.decisions == found.decisions
    assert again.changes == found.changes
    for mine, theirs in zip(again.kernels, found.kernels, strict=True):
        assert (mine.form, mine.axes, mine.params, mine.homes) == (
            theirs.form,
            theirs.axes,
            theirs.params,
            theirs.homes,
        )
        assert (mine.skip_guard, mine.backwards, {*mine.stored}) == (
            theirs.skip_guard,
            theirs.backwards,
            {*theirs.stored},
        )
        assert list(map(type, mine.body)) == list(map(type, theirs.body))
        assert mine.body == theirs.body


def test_the_graphs_above_have_every_form() -> None:
    """Else the test before this one says nothing of it."""
    plans = {name: schedule(parse_graph(text), policy=EVERY_FORM) for name, text in GRAPHS.items()}
    assert {kernel.form.name for found in plans.values() for kernel in found.kernels} == FORMS.keys()
    called = [step for step in plans["scattered rows"].steps if isinstance(step, CallExtern)]
    assert [step.definition.target for step in called] == [REDUCE_SEGMENTS]
    versions = plans["two versions"].kernels
    assert any(kernel.skip_guard for kernel in versions)


def test_origins_parse_back() -> None:
    graph = parse_graph(GRAPHS["two versions"])
    origins = (Origin("aten.sum", "net.0", "model.py:7", "/a/model.py"), Origin("aten.mul", "", 'a "quoted" name:1'))
    graph = replace(graph, definitions=tuple(replace(d, origins=origins) for d in graph.definitions))
    again = reparsed(schedule(graph))
    assert {d.origins for kernel in again.kernels for d in kernel.body} == {origins}
    assert {d.origins for d in again.graph.definitions} == {origins}


@pytest.mark.parametrize("name", FORMS)
def test_forms_parse_back(name: str) -> None:
    given = {
        "combo": "combo(parts=2+1)",
        "row_column": "row_column(chunks=4)",
        "look_back": "look_back(block_length=8)",
    }
    given["grid_reduction"] = "grid_reduction(block_length=64, workspace=words)"
    given["register_norm"] = "register_norm(block_length=64, channels=32, workspace=words, prefetch_distance=3)"
    text = given.get(name, name)
    assert form_text(parse_form(text)) == text
    assert type(parse_form(text)) is FORMS[name]


TEXT = str(schedule(parse_graph(GRAPHS["lists"])))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("combo(parts=1+1)", "spiral", "'spiral' is no kernel form; there are"),
        ("combo(parts=1+1)", "combo", "combo needs parts"),
        ("combo(parts=1+1)", "combo(parts=one)", "combo: parts is 'one', a number is needed"),
        ("combo(parts=1+1)", "combo(parts=1+1, depth=2)", "combo has no 'depth'; it has parts"),
        ("kernel 0", "kernel 7", "expected kernel 0"),
        ("read p:", "borrow p:", "expected an access (read, write, readwrite, atomic), found 'borrow'"),
        ("exp(p[x0])", "exp(q9[x0])", "unknown value 'q9'"),
        ("at [x0] stores a", "at [z0] stores a", "unknown dim or size 'z0'"),
        ("stores a", "stores b", "stores what it does not make: b"),
        ("launch 0(p, q, a, b)", "launch 3(p, q, a, b)", "there is no kernel 3"),
        ("launch 0(p, q, a, b)", "launch 0(p, a)", "kernel 0 has 4 params, not 2"),
        ("a = alloc f32", "a = borrow f32", "expected alloc, keep, reuse, item or view, found 'borrow'"),
        ("return a, b", "", "expected"),
        ("schedule @f", "schedule @g", "a schedule of @g holds the graph @f"),
    ],
)
def test_broken_text_is_refused_with_line_and_caret(before: str, after: str, reason: str) -> None:
    assert before in TEXT
    with pytest.raises(ParseError) as caught:
        parse_schedule(TEXT.replace(before, after, 1), "saved.schedule")
    message = str(caught.value)
    assert reason in message
    assert message.startswith("saved.schedule:")
    assert message.splitlines()[-1].strip() == "^"


def test_what_stands_behind_a_schedule_is_refused() -> None:
    with pytest.raises(ParseError, match="expected the end of the text after the schedule"):
        parse_schedule(f"{TEXT}\n}}")
