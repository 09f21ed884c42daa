"""Reductions over symbolic axes in two forms: when each is launched, what they compute, and what keeps only one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from checks import EAGER_TO_SPLIT, LIBRARY, agrees
from ferrite_ir import parse_graph
from ferrite_ir.language.sizes import evaluate as value_of
from ferrite_ir.reference.evaluator import evaluate
from ferrite_scheduler import Kernel, Schedule, schedule
from ferrite_scheduler.simulation.simulator import simulate

COLUMNS = """graph @columns(x: bf16[n, {width}], y: f32[n, {width}]) -> (t, u) where n: size >= 0 ~ {hint} {{
  s: f32[{width}] = reduce sum [j < {width} | r < n] cast.f32(x[r, j])
  t: f32[{width}] = loop [j < {width}] mul(s[j], f32(2.0))
  u: f32[{width}] = reduce sum [j < {width} | r < n] mul(cast.f32(x[r, j]), y[r, j])
}}"""
TOTAL = """graph @total(x: f32[n, m]) -> (s) where n: size >= 0 ~ {hint}, m: size >= 0 ~ 2 {{
  s: f32[] = reduce max [ | r < n, q < m] neg(x[r, q])
}}"""
WIDE = """graph @wide(x: f32[n, m]) -> (u) where n: size >= 0 ~ {hint}, m: size >= 0 ~ 2 {{
  u: f32[m] = reduce sum [q < m | r < n] x[r, q]
}}"""
STORED = """graph @stored(x: f32[n, 3]) -> (e, s) where n: size >= 0 ~ {hint} {{
  e: f32[n, 3] = loop [i < n, j < 3] exp(x[i, j])
  s: f32[3] = reduce sum [j < 3 | r < n] e[r, j]
}}"""
SOFTMAX = """graph @rows(x: f32[2, n]) -> (y) where n: size >= 0 ~ {hint} {{
  s: f32[2] = reduce sum [i < 2 | r < n] exp(x[i, r])
  y: f32[2, n] = loop [i < 2, j < n] div(exp(x[i, j]), s[i])
}}"""

PAIRS = """graph @pairs(a: bf16[n, {width}], b: f32[n, {width}], c: bf16[n, {width}], d: f32[n, {width}])
  -> (p, q, r, s) where n: size >= 0 ~ {hint} {{
  p: f32[{width}] = reduce sum [j < {width} | i < n] cast.f32(a[i, j])
  q: f32[{width}] = reduce sum [j < {width} | i < n] mul(cast.f32(a[i, j]), b[i, j])
  r: f32[{width}] = reduce sum [j < {width} | i < n] cast.f32(c[i, j])
  s: f32[{width}] = reduce sum [j < {width} | i < n] mul(cast.f32(c[i, j]), d[i, j])
}}"""
"""Two pairs of sums, of which the second stages are small enough to share a kernel."""

NORM = """graph @norm(x: bf16[n, {width}], m: f32[1, {width}]) -> (y) mutates (m: m2) where n: size >= 0 ~ {hint} {{
  a: f32[{width}], v: f32[{width}], w: f32[{width}] = reduce welford [j < {width} | r < n] cast.f32(x[r, j])
  m2: f32[1, {width}] = update set m [j < {width}] at [0, j] add(mul(m[0, j], f32(0.9)), mul(a[j], f32(0.1)))
  y: f32[n, {width}] = loop [i < n, j < {width}] mul(sub(cast.f32(x[i, j]), a[j]), rsqrt(add(v[j], f32(1.0))))
}}"""
"""Moments of columns, what keeps their average over many calls, and what is computed with them for each element."""

ORDERED = """graph @ordered(x: f32[n, 1]) -> (y, e) where n: size >= 0 ~ {hint} {{
  e: f32[n, 1] = loop [i < n, j < 1] exp(x[i, j])
  a: f32[], v: f32[], w: f32[] = reduce welford [ | r < n, q < 1] e[r, q]
  m: f32[] = reduce max [ | r < n, q < 1] add(e[r, q], f32(0.5))
  k: f32[1] = loop [i < 1] mul(m[], f32(0.25))
  k2: f32[1] = update set k [i < 1] at [i] add(mul(m[], f32(0.25)), f32(1.0))
  y: f32[1] = loop [i < 1] add(k2[i], v[])
}}"""
"""One reduction has to be whole before another, and both read what a loop makes: it may not wait for the later one."""


def is_idle(kernel: Kernel, values: dict[str, int]) -> bool:
    return any(all(value_of(size, values) <= most for size, most in row) for row in kernel.skip_guard)


def launched(found: Schedule, **values: int) -> list[int]:
    return [number for number, kernel in enumerate(found.kernels) if not is_idle(kernel, values)]


@pytest.mark.parametrize("hint", [2, 4096])
@pytest.mark.parametrize("text", [COLUMNS, TOTAL, WIDE, STORED, SOFTMAX, PAIRS, NORM, ORDERED])
def test_both_forms_are_right(text: str, hint: int) -> None:
    graph = parse_graph(text.format(hint=hint, width=3))
    found = schedule(graph, EAGER_TO_SPLIT)
    for n in (0, 1, 2, 7, 255, 256, 257, 331):
        symbols = {"n": n, "m": 2}
        shapes = [[value_of(size, symbols) for size in value.type.shape] for value in graph.inputs]
        given = [[[(i * 7 + j) % 5 - 1.5 for j in range(b)] for i in range(a)] for a, b in shapes]
        expected = evaluate(graph, given, symbols=symbols)
        for backwards in (False, True):
            assert agrees(expected, simulate(found, given, symbols=symbols, backwards=backwards), 1e-3), n


@pytest.mark.parametrize("hint", [2, 100_000])
def test_a_form_is_launched_for_the_lengths_that_it_is_better_for(hint: int) -> None:
    found = schedule(parse_graph(COLUMNS.format(hint=hint, width=1000)))
    first, whole, second = found.kernels
    (((size, length),),) = first.skip_guard
    assert str(size) == "n"
    assert 1000 < length < 20_000
    assert [launched(found, n=n) for n in (0, 1, length, length + 1, 1 << 30)] == [[1], [1], [1], [0, 2], [0, 2]]
    assert {"s", "t", "u"} <= whole.homes.keys()
    assert {param.name: param.access for param in second.params if param.name in "tu"} == dict.fromkeys(
        "tu", "readwrite"
    )
    assert f"unless n <= {length}" in str(found)


@pytest.mark.parametrize("hint", [2, 100_000])
def test_stages_share_kernels_with_those_of_reductions_that_are_one_kernel_whole(hint: int) -> None:
    found = schedule(parse_graph(PAIRS.format(hint=hint, width=1000)))
    short, long = ({frozenset(found.kernels[k].homes) for k in launched(found, n=n)} for n in (2, 100_000))
    assert frozenset().union(*short) == {"p", "q", "r", "s"}
    assert frozenset().union(*long) == {name + end for name in "pqrs" for end in ("", "_part")}
    assert {frozenset(name.removesuffix("_part") for name in names) for names in long} == short


def test_many_columns_are_never_split() -> None:
    found = schedule(parse_graph(WIDE.format(hint=2)))
    assert len(found.kernels) == 3
    assert launched(found, n=100, m=100) == launched(found, n=100_000, m=100_000) == [1]
    assert launched(found, n=100_000, m=100) == [0, 2]


def test_rows_that_share_a_kernel_with_what_follows_have_the_form_that_their_hint_asks_for() -> None:
    small, large = (schedule(parse_graph(SOFTMAX.format(hint=hint)), EAGER_TO_SPLIT) for hint in (2, 100_000))
    assert [kernel.skip_guard for kernel in small.kernels] == [()]
    assert len(large.kernels) > 1


def test_a_reduction_of_what_changes_later_has_one_form() -> None:
    """What does the work of both stages runs late: what the first stage reads may have been overwritten by then."""
    text = """graph @changed(x: f32[n, 1000]) -> (s) mutates (x: z) where n: size >= 0 ~ 2 {
      s: f32[1000] = reduce sum [j < 1000 | r < n] x[r, j]
      z: f32[n, 1000] = update set x [i < n, j < 1000] at [i, j] add(x[i, j], f32(1.0))
    }"""
    assert not any(kernel.skip_guard for kernel in schedule(parse_graph(text)).kernels)


def test_static_reductions_have_one_form() -> None:
    text = COLUMNS.format(hint=2, width=1000).replace("[n,", "[20000,").replace("< n]", "< 20000]")
    found = schedule(parse_graph(text.replace(" where n: size >= 0 ~ 2", "")))
    assert [len(found.kernels), *(kernel.skip_guard for kernel in found.kernels)] == [2, (), ()]


@pytest.mark.parametrize("hint", [2, 3000, 100_000])
def test_moments_that_update_an_average_have_both_forms(hint: int) -> None:
    found = schedule(parse_graph(NORM.format(hint=hint, width=64)))
    first, whole, second, last = found.kernels
    (((size, length),),) = first.skip_guard
    assert str(size) == "n"
    assert [launched(found, n=n) for n in (1, length, length + 1)] == [[1], [1], [0, 2, 3]]
    assert {"a", "m2", "y"} <= whole.homes.keys()
    assert {"a", "m2"} <= second.homes.keys()
    assert {param.access for param in last.params if param.name == "y"} == {"readwrite"}


@pytest.mark.parametrize("is_read_again", [False, True])
def test_loops_that_are_reduced_share_a_kernel_with_whole_reductions(*, is_read_again: bool) -> None:
    """Their elements are stored for the parts of the reduction alone, or for the caller as well."""
    text = STORED.format(hint=2) if is_read_again else STORED.format(hint=2).replace("(e, s)", "(s)")
    found = schedule(parse_graph(text.replace("exp(x[i, j])", "cast.f32(cast.bf16(exp(x[i, j])))")), EAGER_TO_SPLIT)
    short, long = (launched(found, n=n) for n in (2, 1_000_000))
    (whole,) = (found.kernels[number] for number in short)
    assert ("e" in whole.stored) == is_read_again
    assert len(long) == 3
    assert whole not in [found.kernels[number] for number in long]


def test_loops_that_read_what_is_made_after_the_reductions_do_not_follow_them() -> None:
    text = NORM.replace("(y) mutates", "(y, z, t) mutates").replace(
        "\n}}",
        """
  t: f32[n, {width}] = extern aten.relu.default(y)
  z: f32[n, {width}] = loop [i < n, j < {width}] mul(t[i, j], a[j])
}}""",
    )
    assert text.count("extern") == 1
    found = schedule(parse_graph(text.format(hint=3000, width=64)))
    whole = found.kernels[1]
    assert "y" in whole.homes
    assert "z" not in whole.homes
    assert launched(found, n=1) == [1, 4]


# --- generated chains of loops and reductions of columns
# -----------------------------------------------------------------


class Chain:
    """A graph being generated: matrices of n rows, and what their columns tell, each computed of those before."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.matrices, self.columns = ["x", "y"], ["c"]
        self.lines: list[str] = []
        for _ in range(self.rng.randint(2, 9)):
            self.rng.choice((self.loop, self.loop, self.reduce, self.reduce, self.call))(f"v{len(self.lines)}")

    def element(self, row: str) -> str:
        if self.rng.random() < 0.4:
            return f"{self.rng.choice(self.columns)}[j]"
        return f"{self.rng.choice(self.matrices)}[{row}, j]"

    def loop(self, name: str) -> None:
        value = f"mul(sin(add({self.element('i')}, {self.element('i')})), f32(0.5))"
        self.lines.append(f"{name}: f32[n, 3] = loop [i < n, j < 3] {value}")
        self.matrices.append(name)

    def reduce(self, name: str) -> None:
        combine = self.rng.choice(("sum", "max"))
        value = f"mul({self.rng.choice(self.matrices)}[r, j], {self.element('r')})"
        if combine == "sum":  # of many numbers, which shall not drown what is added to it
            value = f"mul({value}, f32(0.00390625))"
        self.lines.append(f"{name}: f32[3] = reduce {combine} [j < 3 | r < n] {value}")
        self.columns.append(name)

    def call(self, name: str) -> None:
        self.lines.append(f"{name}: f32[n, 3] = extern aten.clone.default({self.rng.choice(self.matrices)})")
        self.matrices.append(name)

    def text(self, hint: int) -> str:
        made = [line.split(":")[0] for line in self.lines]
        outputs = sorted({made[-1], *self.rng.sample(made, self.rng.randint(0, min(2, len(made))))})
        lines = "\n  ".join(self.lines)
        return (
            f"graph @chain(x: f32[n, 3], y: f32[n, 3], c: f32[3]) -> ({', '.join(outputs)}) "
            f"where n: size >= 1 ~ {hint} {{\n  {lines}\n}}"
        )


@settings(deadline=None, max_examples=40)
@drawn(st.integers(0, 1 << 30), st.sampled_from([2, 200, 100_000]))
def test_generated_chains_are_right_in_both_forms(seed: int, hint: int) -> None:
    graph = parse_graph(Chain(seed).text(hint))
    found = schedule(graph, EAGER_TO_SPLIT)
    for n in (1, 5, 256, 257):
        rng = Random(n)
        inputs = [[[rng.uniform(-1, 1) for _ in range(3)] for _ in range(n)] for _ in range(2)] + [[0.5, -0.25, 1.0]]
        expected = evaluate(graph, inputs, externs=LIBRARY, symbols={"n": n})
        for backwards in (False, True):
            computed = simulate(found, inputs, backwards=backwards, externs=LIBRARY, symbols={"n": n})
            assert agrees(expected, computed, 1e-3), n
