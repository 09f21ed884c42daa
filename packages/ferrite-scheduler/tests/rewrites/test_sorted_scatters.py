"""Rows that many others are combined into get them in the order of their places, and come to the same."""

from __future__ import annotations

from random import Random

import pytest

from checks import check
from ferrite_ir.language.graph import Extern, loads_of
from ferrite_scheduler import Policy, Schedule, parse_schedule
from ferrite_scheduler.model.annotations import SortedScatter

POLICY = Policy(reduce_segments=False, sort_scatters=True, sorted_bytes=0, sorted_row=1)
WIDTH = 64
GRAPH = """graph @f(i: i64[{shape}], x: f32[{shape}, {width}]) -> (y) {{
  s: f32[2, {width}] = loop [r < 2, c < {width}] f32(0.5)
  y: f32[2, {width}] = update {mode} s [{dims}, c < {width}] at [{place}] {body}
}}"""
ROWS = {"shape": "19", "dims": "p < 19", "place": "wrap(i[p], 2), c", "body": "x[p, c]", "mode": "add"}


def scheduled(policy: Policy = POLICY, **parts: str) -> Schedule:
    """Returns the schedule of such an update after checking what it computes; places count from the end, too."""
    random, parts = Random(0), ROWS | parts
    shape = [int(size) for size in parts["shape"].split(", ")]

    def drawn(draw, sizes):
        return [drawn(draw, sizes[1:]) for _ in range(sizes[0])] if sizes else draw()

    places = drawn(lambda: random.randrange(-2, 2), shape)
    values = drawn(lambda: round(random.uniform(-1, 1), 3), [*shape, WIDTH])
    return check(GRAPH.format(width=WIDTH, **parts), policy=policy, inputs=[places, values])


def is_sorted(found: Schedule) -> bool:
    return any(isinstance(d, Extern) and d.target == "aten.sort.stable" for d in found.graph.definitions)


@pytest.mark.parametrize("mode", ["add", "max", "min"])
def test_rows_come_in_the_order_of_their_places(mode: str) -> None:
    assert is_sorted(scheduled(mode=mode))


def test_a_scatter_reads_the_row_of_the_next_point_beside_its_body() -> None:
    found = scheduled()
    kernels = [kernel for kernel in found.kernels if any(isinstance(d, SortedScatter) for d in kernel.body)]
    (update,) = (definition for kernel in kernels for definition in kernel.body)
    assert isinstance(update, SortedScatter)
    assert {load.source for load in update.body.loads} == {"x", "y_order"}
    ranked = [load for load in loads_of(update) if load.source == "y_ranked"]
    assert len(ranked) == 2, "the row of this point, and that of the next one"
    assert {load.source for load in update.following.loads} == {"y_ranked"}
    assert update.points == 19
    assert "sorted(19)" in str(found)
    assert str(parse_schedule(str(found))) == str(found)


def test_rows_of_several_dims_are_one_line_of_rows() -> None:
    parts = {"shape": "4, 5", "dims": "p < 4, q < 5", "place": "wrap(i[p, q], 2), c", "body": "x[p, q, c]"}
    assert is_sorted(scheduled(**parts))


def test_the_value_may_be_computed() -> None:
    assert is_sorted(scheduled(body="mul(x[p, c], index.f32(p + c))"))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"mode": "mul"}, "products are not combined in a tile"),
        ({"place": "wrap(i[p], 2), 63 - c"}, "columns move, too"),
        ({"body": "x[p, c] if gt(x[p, c], f32(0.0))"}, "not all elements of a row count"),
        ({"shape": "5", "dims": "p < 5"}, "few indices collide"),
    ],
)
def test_other_updates_stay(parts: dict[str, str], why: str) -> None:
    assert not is_sorted(scheduled(**parts)), why


def test_small_updates_and_those_of_short_rows_stay() -> None:
    assert not is_sorted(scheduled(Policy(sort_scatters=True, sorted_row=1)))
    assert not is_sorted(scheduled(Policy(sort_scatters=True, sorted_bytes=0, sorted_row=WIDTH + 1)))
    assert not is_sorted(scheduled(Policy(sorted_bytes=0, sorted_row=1, sort_scatters=False)))
