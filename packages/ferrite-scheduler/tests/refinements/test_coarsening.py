"""Windows whose rows overlap: how many rows a lane gets, of which dim, and that they are computed as before."""

from __future__ import annotations

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, Schedule, Target, parse_schedule, schedule

FEW = Policy(coarsened_lanes=1, mixed_combos=False)
"""As if there were lanes enough for any device."""
SMALL = Target(processors=1)


def window(rows: int = 12, width: int = 7, *, body: str = "{window}", side: int = 3) -> str:
    """Returns a graph that adds up windows of two images, of elements that are zero outside."""
    places = [(i - side // 2, j - side // 2) for i in range(side) for j in range(side)]
    inside = "bitand(bitand(ge({h}, i64(0)), lt({h}, i64({rows}))), bitand(ge({w}, i64(0)), lt({w}, i64({width}))))"
    terms = []
    for i, j in places:
        h, w = f"h + {i}" if i >= 0 else f"h - {-i}", f"w + {j}" if j >= 0 else f"w - {-j}"
        condition = inside.format(h=f"index.i64({h})", w=f"index.i64({w})", rows=rows, width=width)
        terms.append(f"masked({condition}, x[n, {h}, {w}], f32(0.0))")
    total = terms[0]
    for term in terms[1:]:
        total = f"add({total}, {term})"
    return f"""graph @windows(x: f32[2, {rows}, {width}], b: f32[2]) -> (y) {{
  y: f32[2, {rows}, {width}] = loop [n < 2, h < {rows}, w < {width}] {body.format(window=total)}
}}"""


def unrolled_of(found: Schedule) -> list[str]:
    """Returns the unrolled axes of the kernels."""
    return [str(kernel.unrolled) for kernel in found.kernels if kernel.unrolled is not None]


@pytest.mark.parametrize(("rows", "count"), [(12, 6), (16, 8), (10, 5), (7, 7), (9, 3), (4, 4), (11, None), (13, None)])
def test_a_lane_has_as_many_rows_as_divide_them(rows: int, count: int | None) -> None:
    found = check(window(rows), SMALL, FEW)
    assert unrolled_of(found) == ([f"u(u0 < {count})"] if count else [])
    (kernel,) = found.kernels
    assert kernel.points == 2 * rows * 7
    assert parse_schedule(str(found)) == found
    assert not count or [change.step for change in found.changes if change.names == ("y",)] == ["coarsening"]


def test_what_reads_windows_is_computed_for_all_rows() -> None:
    text = window(body="mul({window}, b[n])").replace(
        "\n}", "\n  z: f32[2, 12, 7] = loop [n < 2, h < 12, w < 7] add(exp(y[n, h, w]), x[n, h, w])\n}"
    )
    found = check(text.replace("-> (y)", "-> (y, z)"), SMALL, FEW)
    assert unrolled_of(found) == ["u(u0 < 6)"]
    (kernel,) = found.kernels
    assert kernel.stored == ("y", "z")


@pytest.mark.parametrize(
    "changes",
    [{"coarsened_rows": 1}, {"coarsened_window": 10}, {"coarsened_share": 0.1}, {"coarsened_nodes": 20}],
    ids=str,
)
def test_thresholds_say_which_windows_count(changes: dict[str, float]) -> None:
    assert unrolled_of(check(window(), SMALL, Policy(coarsened_lanes=1, **changes))) == []


def test_lanes_are_left_for_the_device() -> None:
    graph = parse_graph(window(16))
    counts = {
        processors: unrolled_of(schedule(graph, Target(processors=processors), FEW)) for processors in (28, 56, 224)
    }
    assert counts == {28: ["u(u0 < 8)"], 56: ["u(u0 < 4)"], 224: []}


def test_neighbours_stay_with_neighbouring_lanes() -> None:
    """Eleven rows have no divisor, and a lane that had two columns of the eight would store every other element."""
    assert unrolled_of(check(window(11, 8), SMALL, FEW)) == []
