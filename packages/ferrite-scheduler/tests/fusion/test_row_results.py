"""What is computed of the result of each row: where the rows are reduced, unless there are none or it draws numbers."""

from __future__ import annotations

from checks import check
from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, explain, schedule

SHORT = Policy(split_minimum=4)
LOSS = """
graph @loss(x: f32[6, 8], labels: i64[6]) -> (mean) {{
  most: f32[6]    = reduce max [i < 6 | j < 8] x[i, j]
  mass: f32[6]   = reduce sum [i < 6 | j < 8] exp(sub(x[i, j], most[i]))
  valid: bool[6] = loop [i < 6] ge(labels[i], i64(0))
  count: i64[]   = reduce sum [ | r < 6] cast.i64(valid[r])
  total: f32[]   = reduce sum [ | r < 6] {body}
  mean: f32[]    = loop [] div(total[], cast.f32(count[]))
}}"""
BODY = "where(valid[r], sub(add(log(mass[r]), most[r]), x[r, at(where(valid[r], labels[r], i64(0)), 8)]), f32(0.0))"


def test_a_loss_is_computed_by_the_kernel_that_reduces_its_rows() -> None:
    found = check(LOSS.format(body=BODY), policy=SHORT)
    rows, last = found.kernels
    assert "total_row" in rows.stored
    assert not {"most", "mass"} & set(rows.stored)
    assert {param.name for param in last.params} >= {"total_row", "mean"}
    assert "P05" in explain(found, "total_row", "total")


def test_a_sum_of_rows_as_they_are_has_nothing_to_compute_before() -> None:
    graph = parse_graph(LOSS.format(body="mass[r]"))
    assert "total_row" not in schedule(graph, policy=SHORT).graph.values


def test_results_of_short_rows_are_looked_up_where_they_are_combined() -> None:
    assert "total_row" not in schedule(parse_graph(LOSS.format(body=BODY))).graph.values


def test_a_reduction_of_more_than_the_rows_reads_their_results_again() -> None:
    """As the gradient of a norm's weight does, which takes a mean for each element."""
    found = check(
        """
        graph @f(x: f32[6, 8]) -> (s) {
          m: f32[6] = reduce sum [i < 6 | j < 8] x[i, j]
          s: f32[8] = reduce sum [j < 8 | i < 6] mul(x[i, j], m[i])
        }""",
        policy=SHORT,
    )
    assert "s_row" not in found.graph.values


def test_dims_of_one_point_are_left_out_of_the_rows() -> None:
    found = check(
        """
        graph @f(x: f32[6, 1, 8]) -> (s) {
          m: f32[6, 1] = reduce max [i < 6, k < 1 | j < 8] x[i, k, j]
          s: f32[]     = reduce sum [ | i < 6, k < 1] exp(m[i, k])
        }""",
        policy=SHORT,
    )
    assert found.graph.values["s_row"].type.shape == (6,)
