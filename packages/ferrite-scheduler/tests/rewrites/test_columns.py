"""Column sums share a kernel with what runs along rows, where that saves a read, and nowhere else."""

from __future__ import annotations

import pytest

from checks import EAGER_TO_SPLIT, agrees, check, kernel_of
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Reduction
from ferrite_ir.language.sizes import Size
from ferrite_ir.reference.evaluator import evaluate
from ferrite_scheduler import Policy, Schedule, Target, schedule
from ferrite_scheduler.model.annotations import ColumnReduction
from ferrite_scheduler.model.forms import RowColumnReduction
from ferrite_scheduler.model.schedule import Kernel
from ferrite_scheduler.simulation.simulator import simulate

POLICY = Policy(chunk_minimum=200, chunk_columns=2)
TARGET = Target(name="two processors", processors=2)

NORM_BACKWARD = """
graph @f(g: f32[{rows}, 6], x: f32[{rows}, 6], scale: f32[{rows}], w: f32[6]) -> (dx, dw, db) {{
  s: f32[{rows}] = reduce sum [i < {rows} | c < 6] mul(g[i, c], mul(w[c], x[i, c]))
  dx: f32[{rows}, 6] = loop [i < {rows}, c < 6] sub(mul(g[i, c], w[c]), mul(x[i, c], mul(s[i], scale[i])))
  dw: f32[6] = reduce sum [c < 6 | i < {rows}] mul(g[i, c], mul(x[i, c], scale[i]))
  db: f32[6] = reduce sum [c < 6 | i < {rows}] g[i, c]
}}"""


def column_reductions(found: Schedule) -> list[list[str]]:
    """Returns the results of the column reductions of each kernel."""
    return [
        [r.name for d in kernel.body if isinstance(d, ColumnReduction) for r in d.results] for kernel in found.kernels
    ]


def chunk_of(kernel: Kernel) -> Size:
    """Returns the rows of a chunk."""
    assert isinstance(kernel.form, RowColumnReduction)
    return kernel.form.chunk_length(next(axis.size for axis in kernel.axes if axis.name == "x"))


def test_norm_backward_reads_its_operands_in_one_kernel():
    found = check(NORM_BACKWARD.format(rows=24), TARGET, POLICY)
    first = kernel_of(found, "dx")
    assert column_reductions(found)[0] == ["dw_part", "db_part"]
    assert {"dx", "dw_part", "db_part"} <= set(first.stored)
    assert chunk_of(first) == 6  # four programs on two processors
    assert all(not {"g", "x"} & {param.name for param in k.params} for k in found.kernels if k is not first)
    assert "row_column(chunks=4)" in str(first)


def test_the_graph_itself_shows_ordinary_reductions():
    found = check(NORM_BACKWARD.format(rows=24), TARGET, POLICY)
    parts = [d for d in found.graph.definitions if d.results[0].name == "dw_part"]
    assert [type(part) for part in parts] == [Reduction]
    assert parts[0].dims[0].size * parts[0].reduction_dims[0].size == 24


@pytest.mark.parametrize("rows", [23, 2])
def test_rows_that_do_not_divide_evenly_stay_apart(rows):
    found = check(NORM_BACKWARD.format(rows=rows), TARGET, POLICY)
    assert not any(column_reductions(found))


def test_a_pointwise_result_takes_its_column_sum_along():
    found = check(
        """
    graph @f(g: f32[16, 4], x: f32[16, 4]) -> (d, b) {
      d: f32[16, 4] = loop [i < 16, c < 4] mul(g[i, c], tanh(x[i, c]))
      b: f32[4] = reduce sum [c < 4 | i < 16] d[i, c]
    }""",
        TARGET,
        POLICY,
    )
    assert column_reductions(found) == [["b_part"], []]


def test_rows_in_two_dims_are_cut_where_they_end():
    found = check(
        """
    graph @f(g: f32[4, 6, 4], x: f32[4, 6, 4]) -> (s, b) {
      s: f32[4, 6] = reduce sum [i < 4, j < 6 | c < 4] mul(g[i, j, c], x[i, j, c])
      b: f32[4] = reduce sum [c < 4 | i < 4, j < 6] mul(g[i, j, c], s[i, j])
    }""",
        TARGET,
        POLICY,
    )
    assert column_reductions(found) == [["b_part"], []]


def test_a_sum_that_nothing_rides_with_is_an_ordinary_reduction():
    found = check(
        """
    graph @f(x: f32[16, 4]) -> (b, y) {
      b: f32[4] = reduce sum [c < 4 | i < 16] x[i, c]
      y: f32[16, 4] = loop [i < 16, c < 4] sub(x[i, c], b[c])
    }""",
        TARGET,
        POLICY,
    )
    assert not any(column_reductions(found))


def test_sums_left_without_rows_become_kernels_over_columns():
    """The rows go another way: their kernel updates in place what the sums read."""
    found = check(
        """
    graph @f(x: f32[16, 4], y: f32[16, 4]) -> (b, a) {
      b: f32[4] = reduce sum [c < 4 | i < 16] mul(x[i, c], y[i, c])
      a: f32[4] = reduce sum [c < 4 | i < 16] x[i, c]
      z: f32[16, 4] = update set x [i < 16, c < 4] at [i, c] mul(x[i, c], f32(2.0))
    }""",
        TARGET,
        POLICY,
    )
    assert not any(column_reductions(found))


def test_wide_rows_that_do_not_fit_stay_apart():
    narrow = Policy(chunk_minimum=200, chunk_columns=2, chunk_bytes=64)
    found = check(NORM_BACKWARD.format(rows=24), TARGET, narrow)
    assert not any(column_reductions(found))
    assert any(decision.rule == "F10" for decision in found.decisions)
    assert kernel_of(found, "dw_part") is kernel_of(found, "db_part")


def test_small_matrices_are_summed_as_before():
    assert not any(column_reductions(check(NORM_BACKWARD.format(rows=24), EAGER_TO_SPLIT)))


def test_the_policy_says_how_many_programs_share_the_rows():
    policy = Policy(chunk_minimum=200, chunk_columns=2, chunk_programs=4, chunk_rows=3)
    assert chunk_of(kernel_of(check(NORM_BACKWARD.format(rows=24), TARGET, policy), "dx")) == 3


def test_shorter_rows_are_shared_among_more_programs_as_long_as_chunks_are_long():
    policy = Policy(chunk_minimum=1 << 20)

    def chunks(rows, columns):
        text = f"""
        graph @f(x: bf16[{rows}, {columns}]) -> (dx, db) {{
          s: f32[{rows}]          = reduce sum [i < {rows} | c < {columns}] cast.f32(x[i, c])
          dx: f32[{rows}, {columns}] = loop [i < {rows}, c < {columns}] sub(cast.f32(x[i, c]), s[i])
          db: f32[{columns}]      = reduce sum [c < {columns} | i < {rows}] cast.f32(x[i, c])
        }}"""
        return rows // chunk_of(kernel_of(schedule(parse_graph(text), Target(), policy), "dx"))

    assert [chunks(65536, columns) for columns in (768, 1024, 2048, 4096, 8192)] == [1024, 1024, 512, 256, 128]
    assert [chunks(rows, 768) for rows in (32768, 16384, 8192)] == [512, 256, 256], "fewer sums are worth less memory"


ANY_ROWS = """
graph @f(g: f32[n, 2, 6], x: f32[n, 2, 6], scale: f32[n, 2], w: f32[6]) -> (dx, dw, db) where n: size >= 0 ~ {hint} {{
  s: f32[n, 2] = reduce sum [i < n, j < 2 | c < 6] mul(g[i, j, c], mul(w[c], x[i, j, c]))
  dx: f32[n, 2, 6] = loop [i < n, j < 2, c < 6] sub(mul(g[i, j, c], w[c]), mul(x[i, j, c], mul(s[i, j], scale[i, j])))
  dw: f32[6] = reduce sum [c < 6 | i < n, j < 2] mul(g[i, j, c], mul(x[i, j, c], scale[i, j]))
  db: f32[6] = reduce sum [c < 6 | i < n, j < 2] g[i, j, c]
}}"""


@pytest.mark.parametrize("hint", [2, 4096])
def test_any_number_of_rows_is_cut_into_as_many_chunks(hint):
    graph = parse_graph(ANY_ROWS.format(hint=hint))
    found = schedule(graph, TARGET, Policy(chunk_minimum=1 << 17, chunk_columns=2))
    assert column_reductions(found)[0] == ["dw_part", "db_part"]
    first = kernel_of(found, "dx")
    assert first.form == RowColumnReduction(4), "two programs on each of two processors"
    assert str(chunk_of(first)) == "((2*n+3)//4)"
    for n in (0, 1, 2, 3, 4, 7, 12):
        values = {
            "g": [[[(i * 5 + j + c) % 7 - 3.0 for c in range(6)] for j in range(2)] for i in range(n)],
            "x": [[[(i + j * 3 + c) % 5 - 2.0 for c in range(6)] for j in range(2)] for i in range(n)],
            "scale": [[i + j + 0.5 for j in range(2)] for i in range(n)],
            "w": [0.5, 1.0, -1.0, 2.0, 0.25, 3.0],
        }
        given = [values[value.name] for value in graph.inputs]
        expected = evaluate(graph, given, symbols={"n": n})
        for backwards in (False, True):
            assert agrees(expected, simulate(found, given, symbols={"n": n}, backwards=backwards)), n


def test_a_few_rows_at_hand_say_nothing_of_the_rows_to_come():
    """Where even several thousand rows would be found in the cache again, nothing is gained."""
    found = schedule(parse_graph(ANY_ROWS.format(hint=2)), TARGET, Policy(chunk_minimum=1 << 20, chunk_columns=2))
    assert not any(column_reductions(found))
