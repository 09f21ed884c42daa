"""The reference evaluator: every definition, memory, extern calls, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ferrite_ir.language.dtypes import F32, I32
from ferrite_ir.reference.evaluator import EvaluationError, Tensor, evaluate, filled
from ferrite_ir.text.parser import parse_graph, parse_module

INF = math.inf


def run(text: str, *inputs: Any, **options: Any) -> list[Any]:
    return evaluate(parse_module(text), list(inputs), **options)


def body(text: str, inputs: str = "x: f32[4]", outputs: str = "y") -> str:
    return f"graph @main({inputs}) -> ({outputs}) {{\n{text}\n}}"


def test_loop_with_two_results() -> None:
    assert run(
        body("a: f32[4], y: i32[4] = loop [i < 4] (neg(x[i]), index.i32(3 - i))", outputs="a, y"), [1, 2, 3, 4]
    ) == [
        [-1.0, -2.0, -3.0, -4.0],
        [3, 2, 1, 0],
    ]


REDUCTIONS = [
    ("y: f32[] = reduce sum [ | r < 4] x[r]", [10.0]),
    ("y: f32[] = reduce prod [ | r < 4] x[r]", [24.0]),
    ("y: f32[] = reduce max [ | r < 4] x[r]", [4.0]),
    ("y: f32[], i: i64[] = reduce argmin [ | r < 4] (neg(x[r]), index.i64(r))", [-4.0]),
    ("y: bool[] = reduce any [ | r < 4] gt(x[r], f32(3.0))", [True]),
    ("y: bool[] = reduce all [ | r < 4] gt(x[r], f32(3.0))", [False]),
    ("y: i64[] = reduce xor [ | r < 4] cast.i64(x[r])", [4]),
    ("y: f32[], m2: f32[], w: f32[] = reduce welford [ | r < 4] x[r]", [2.5]),
    ("m: f32[], y: f32[] = reduce online_softmax [ | r < 4] x[r]", [pytest.approx(1.5530, abs=1e-4)]),
    ("y: f32[] = reduce logaddexp [ | r < 4] x[r]", [pytest.approx(4.4402, abs=1e-4)]),
    ("y: f32[] = reduce sum [ | r < 0] x[r]", [0.0]),
    ("y: f32[] = reduce max [ | r < 0] x[r]", [-INF]),
    ("y: f32[2] = reduce sum [i < 2 | r < 2] x[i*2 + r]", [[3.0, 7.0]]),
]


@pytest.mark.parametrize(("text", "expected"), REDUCTIONS)
def test_reductions(text: str, expected: list[Any]) -> None:
    assert run(body(text), [1, 2, 3, 4]) == expected


def test_reduction_of_no_values_without_a_result() -> None:
    with pytest.raises(EvaluationError, match="in y, i: argmax of no values"):
        run(body("y: f32[], i: i64[] = reduce argmax [ | r < 0] (x[r], index.i64(r))"), [1, 2, 3, 4])


def test_scans() -> None:
    assert run(body("y: f32[4] = scan sum [i < 4] along i x[i]"), [1, 2, 3, 4]) == [[1.0, 3.0, 6.0, 10.0]]
    text = body("y: f32[4], p: i64[4] = scan cummax [i < 4] along i (x[i], index.i64(i))", outputs="y, p")
    assert run(text, [1, 3, 2, 3]) == [[1.0, 3.0, 3.0, 3.0], [0, 1, 1, 3]]


def test_scans_from_the_end() -> None:
    assert run(body("y: f32[4] = scan reverse sum [i < 4] along i x[i]"), [1, 2, 3, 4]) == [[10.0, 9.0, 7.0, 4.0]]
    text = body("y: f32[4], p: i64[4] = scan reverse cummax [i < 4] along i (x[i], index.i64(i))", outputs="y, p")
    assert run(text, [1, 3, 2, 3]) == [[3.0, 3.0, 3.0, 3.0], [1, 1, 3, 3]]


def test_sorts_are_stable_and_put_nan_last() -> None:
    text = body("y: f32[4], p: i64[4] = sort [i < 4] along i x[i]", outputs="p")
    assert run(text, [math.nan, 2, 1, 2]) == [[2, 1, 3, 0]]
    text = body("y: f32[2], p: i64[2] = sort descending top 2 [i < 4] along i x[i]", outputs="p")
    assert run(text, [1, 2, 1, 2]) == [[1, 3]]


UPDATES = [
    ("set", [5.0, 2.0, 9.0, 4.0]),
    ("add", [12.0, 2.0, 12.0, 4.0]),
    ("mul", [30.0, 2.0, 27.0, 4.0]),
    ("max", [6.0, 2.0, 9.0, 4.0]),
    ("min", [1.0, 2.0, 3.0, 4.0]),
]


@pytest.mark.parametrize(("mode", "expected"), UPDATES)
def test_updates(mode: str, expected: list[float]) -> None:
    text = body(
        f"y: f32[4] = update {mode} x [i < 4] at [wrap(k[i], 4)] v[i] if lt(index.i64(i), i64(3))",
        "x: f32[4], k: i64[4], v: f32[4]",
    )
    assert run(text, [1, 2, 3, 4], [0, -2, 0, 3], [6, 9, 5, 100]) == [expected]


def test_an_update_changes_the_memory_of_the_caller() -> None:
    x = filled([1, 2, 3, 4], F32, (4,), (1,))
    graph = parse_graph(
        "graph @f(x: f32[4]) -> (x1 as f32[2]{2} at 1) mutates (x: x1) {\n"
        "  x1: f32[4] = update set x [i < 4] at [i] mul(x[i], x[i])\n}"
    )
    assert evaluate(graph, [x]) == [[4.0, 16.0]]
    assert x.nested() == [1.0, 4.0, 9.0, 16.0]


def test_contract() -> None:
    text = body("y: f32[2, 2] = contract [i < 2, j < 2 | k < 2] x[i*2 + k] * x[k*2 + j]")
    assert run(text, [1, 2, 3, 4]) == [[[7.0, 10.0], [15.0, 22.0]]]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([0, 2, 2, 3], [6.0, 14.0, 88.0, 0.0]),  # no row of the first and the third group, the last row of none
        ([4, 4, 4, 4], [3.0, 7.0, 11.0, 15.0]),
        ([0, 0, 0, 1], [24.0, 0.0, 0.0, 0.0]),
    ],
)
def test_rows_in_groups(ends: list[int], expected: list[float]) -> None:
    graph = parse_graph(
        "graph @f(x: f32[4, 2], w: f32[4], ends: i32[4]) -> (y) {\n"
        "  y: f32[4, 1] = contract [m < 4, n < 1 | k < 2 | g < 4] x[m, k] * w[g] segments m as g until ends[g]\n}"
    )
    (found,) = evaluate(graph, [[[1, 2], [3, 4], [5, 6], [7, 8]], [1, 2, 4, 8], ends])
    assert [row[0] for row in found] == expected


def test_sums_over_groups() -> None:
    graph = parse_graph(
        "graph @f(x: f32[4, 2], y: f32[4, 1], ends: i32[3]) -> (z) {\n"
        "  z: f32[3, 2, 1] = contract [g < 3, i < 2, j < 1 | m < 4] x[m, i] * y[m, j] segments m as g until ends[g]\n}"
    )
    found = evaluate(graph, [[[1, 2], [3, 4], [5, 6], [7, 8]], [[1], [1], [1], [1]], [2, 2, 3]])
    assert found == [[[[4.0], [6.0]], [[0.0], [0.0]], [[5.0], [6.0]]]]


def test_groups_end_in_order() -> None:
    graph = parse_graph(
        "graph @f(x: f32[4, 2], w: f32[2], ends: i32[2]) -> (y) {\n"
        "  y: f32[4, 1] = contract [m < 4, n < 1 | k < 2 | g < 2] x[m, k] * w[g] segments m as g until ends[g]\n}"
    )
    with pytest.raises(EvaluationError, match=r"groups end at \[3, 1\]"):
        evaluate(graph, [[[1, 2], [3, 4], [5, 6], [7, 8]], [1, 1], [3, 1]])


def test_layouts() -> None:
    storage: list[Any] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    tensor = Tensor(F32, (2, 2), (1, 3), 1, storage)
    assert tensor.nested() == [[1.0, 4.0], [2.0, 5.0]]
    graph = parse_graph(
        "graph @f(x: f32[2, 2]{1, 3}) -> (y as f32[4]) {\n  y: f32[2, 2]{1, 2} = loop [i < 2, j < 2] x[i, j]\n}"
    )
    assert evaluate(graph, [tensor]) == [[1.0, 2.0, 4.0, 5.0]]


def test_masked_guards_its_loads() -> None:
    text = body("y: f32[6] = loop [i < 6] masked(lt(index.i64(i), i64(4)), x[i], f32(-1.0))")
    assert run(text, [1, 2, 3, 4]) == [[1.0, 2.0, 3.0, 4.0, -1.0, -1.0]]


def test_library_calls() -> None:
    def double(x: Tensor, *, times: int) -> Any:
        return [times * item for item in x.nested()], None

    text = body("y: f32[2], _ = extern my.double.default(x as f32[2]{2} at 1, times=3)")
    assert run(text, [1, 2, 3, 4], externs={"my.double.default": double}) == [[6.0, 12.0]]
    with pytest.raises(EvaluationError, match=r"no extern call 'my\.double\.default' is known here"):
        run(text, [1, 2, 3, 4])


def test_library_call_that_changes_an_operand() -> None:
    call = "extern aten.copy_.default(x, v) mutates (x) aliases (x1: x)"
    text = f"graph @f(x: f32[2], v: f32[2]) -> (x1) mutates (x: x1) {{\n  x1: f32[2] = {call}\n}}"
    x = filled([1, 2], F32, (2,), (1,))
    assert run(text, x, [5, 6]) == [[5.0, 6.0]]
    assert x.nested() == [5.0, 6.0]


CONTROL = """
graph @main(x: f32[], limit: f32[]) -> (y, z, w) {
  y: f32[] = call @twice(x)
  big: bool[] = loop [] gt(y[], limit[])
  z: f32[] = if big then @twice else @same (y)
  w: f32[], l: f32[] = while @small do @step (x, limit)
}
graph @twice(x: f32[]) -> (y) {
  y: f32[] = loop [] mul(x[], f32(2.0))
}
graph @same(x: f32[]) -> (x) {
}
graph @small(x: f32[], limit: f32[]) -> (c) {
  c: bool[] = loop [] lt(x[], limit[])
}
graph @step(x: f32[], limit: f32[]) -> (y, limit) {
  y: f32[] = loop [] add(x[], f32(4.0))
}
"""


def test_control_flow() -> None:
    assert run(CONTROL, 3.0, 5.0) == [6.0, 12.0, 7.0]
    assert run(CONTROL, 3.0, 16.0) == [6.0, 6.0, 19.0]


COUNTING = """
graph @main(x: f32[n], y: f32[]) -> (z, size(u)) where n: size >= 1, u: size {
  z: f32[n] = while @more do @step (x, y) sizes (0, n) binds (u)
}
graph @more(x: f32[n], y: f32[], i: size, m: size) -> (size(max(0, -i + m))) where i: size, m: size, n: size >= 1 {
}
graph @step(x: f32[n], y: f32[], i: size, m: size) -> (z, size(i + 2)) where i: size, m: size, n: size >= 1 {
  z: f32[n] = loop [a < n] add(x[a], y[])
}
"""


def test_a_loop_carries_integers_and_binds_the_last_ones() -> None:
    assert run(COUNTING, [1.0, 2.0, 3.0], 0.5) == [[2.0, 3.0, 4.0], 4]


STACKED = """
graph @main(x: f32[2], limit: f32[]) -> (y, l, size(u)) where u: size >= 0 {
  y: f32[u, 2], l: f32[u] = while @small do @step (x, limit) stacked
}
graph @small(x: f32[2], limit: f32[]) -> (c) {
  c: bool[] = loop [] lt(x[0], limit[])
}
graph @step(x: f32[2], limit: f32[]) -> (y, l) {
  y: f32[2] = loop [i < 2] add(x[i], f32(4.0))
  l: f32[] = loop [] neg(neg(limit[]))
}
"""


def test_a_loop_stacks_what_its_turns_make_and_binds_their_number() -> None:
    assert run(STACKED, [0.0, 1.0], 9.0) == [[[4.0, 5.0], [8.0, 9.0], [12.0, 13.0]], [9.0, 9.0, 9.0], 3]


def test_a_loop_that_never_turns_stacks_what_it_was_given() -> None:
    assert run(STACKED, [9.0, 1.0], 2.0) == [[[9.0, 1.0]], [2.0], 1]


ROWS = """
graph @main(s: f32[], x: f32[n, 2], w: f32[2]) -> (t, y) where n: size {
  t: f32[], y: f32[n, 2] = for @turn(s, x, w) times (n) carries (1) rows (1) sizes (n)
}
graph @turn(s: f32[], x: f32[2], w: f32[2], m: size) -> (t, y) where m: size {
  t: f32[] = loop [] add(s[], x[0])
  y: f32[2] = loop [i < 2] add(mul(w[i], index.f32(m)), s[])
}
"""


def test_a_loop_over_rows_carries_and_stacks() -> None:
    x = [[1.0, 9.0], [2.0, 9.0], [4.0, 9.0]]
    assert run(ROWS, 0.5, x, [10.0, 20.0]) == [7.5, [[30.5, 60.5], [31.5, 61.5], [33.5, 63.5]]]


def test_a_loop_over_no_rows_gives_what_it_was_given() -> None:
    x = filled([], F32, (0, 2), (2, 1))
    assert run(ROWS, 0.5, x, [10.0, 20.0]) == [0.5, []]


def test_results_of_called_graphs_are_tensors_of_their_own() -> None:
    text = """
graph @main(x: f32[2]) -> (y, z) mutates (x: z) {
  y: f32[2] = call @same(x)
  z: f32[2] = update set x [i < 2] at [i] f32(7.0)
}
graph @same(x: f32[2]) -> (x) {
}
"""
    assert run(text, [1.0, 2.0]) == [[1.0, 2.0], [7.0, 7.0]]


def test_numbers_and_none_as_outputs() -> None:
    assert run("graph @f() -> (3, 2.5, true, none) {\n}") == [3, 2.5, True, None]


def test_random_numbers_depend_on_seed_and_offset_alone() -> None:
    text = body(
        "s: i64[2] = extern ferrite.seed(2) effects\n  y: f32[4] = loop [i < 4] rand(s[i // 2], index.i64(i % 2))"
    )
    (drawn,) = run(text, [0, 0, 0, 0])
    assert len(set(drawn)) == 4
    assert run(text, [0, 0, 0, 0]) == [drawn]


REFUSED = [
    (body("y: f32[4] = loop [i < 4] x[i + 1]"), r"in y: x\[i \+ 1\]: i=3 reads element \[4\] of shape \[4\]"),
    (
        body("y: f32[4] = loop [i < 4] x[at(cast.i64(x[i]), 4)]"),
        r"at\(cast.i64\(x\[i\]\), 4\): i=3 gives 4, out of bounds for size 4",
    ),
    (body("y: f32[4] = update set x [i < 4] at [i + 1] f32(0.0)"), r"stores to element \[4\] of shape \[4\]"),
    (
        body("y: f32[4] = while @yes do @same (x)")
        + "graph @yes(x: f32[4]) -> (true) {\n}\ngraph @same(x: f32[4]) -> (x) {\n}",
        "@yes still holds after 10000 iterations",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_undefined_things_are_errors(text: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        run(text, [1, 2, 3, 4])


def test_inputs_are_checked() -> None:
    text = body("y: f32[4] = loop [i < 4] x[i]")
    with pytest.raises(EvaluationError, match="@main takes 1 inputs, got 2"):
        run(text, [1], [2])
    with pytest.raises(EvaluationError, match=r"input x has shape \[3\], expected \[4\]"):
        run(text, [1, 2, 3])
    with pytest.raises(EvaluationError, match="input x is i32, expected f32"):
        run(text, filled([1, 2, 3, 4], I32, (4,), (1,)))
    with pytest.raises(ValueError, match="different lengths"):
        run(text, [[1], [2, 3]])


def test_a_replaced_value_is_gone() -> None:
    text = body("z: f32[4] = update set x [i < 4] at [i] f32(0.0)\n  y: f32[4] = loop [i < 4] x[i]")
    with pytest.raises(EvaluationError, match="no value 'x' at this place"):
        run(text, [1, 2, 3, 4])


def test_zero_sized() -> None:
    assert run("graph @f(x: f32[0, 3]) -> (y) {\n  y: f32[3, 0] = loop [i < 3, j < 0] x[j, i]\n}", []) == [[[], [], []]]


def test_what_is_required_is_the_value_or_an_error() -> None:
    text = body("y: f32[4] = loop [i < 4] require_probability(le(x[i], f32(1.0)), x[i])")
    assert run(text, [0.0, 0.5, 1.0, 0.25]) == [[0.0, 0.5, 1.0, 0.25]]
    with pytest.raises(EvaluationError, match="i=2: probabilities have to be in"):
        run(text, [0.0, 0.5, 1.5, 0.25])


def test_nothing_is_required_where_a_value_is_left_out() -> None:
    required = "require_divisor(ne(x[i], f32(0.0)), x[i])"
    text = body(f"y: f32[4] = loop [i < 4] masked(gt(x[i], f32(0.0)), {required}, f32(7.0))")
    assert run(text, [0.0, 1.0, 2.0, 0.0]) == [[7.0, 1.0, 2.0, 7.0]]
