"""Reductions over few neighbours, whose results lie side by side, reduce everything but the neighbours first."""

from __future__ import annotations

import pytest

from checks import check, kernel_of
from ferrite_ir.language.graph import Reduction
from ferrite_scheduler import Policy, Schedule

POLICY = Policy(small_kernel_bytes=0, persistent_elements_outer=4)

REDUCTIONS = {
    "sum": "s: f32[2, 3] = reduce sum [n < 2, g < 3 | c < 4, p < 10] x[n, g*4 + c, p]",
    "max": "s: f32[2, 3] = reduce max [n < 2, g < 3 | c < 4, p < 10] abs(x[n, g*4 + c, p])",
    "any": "s: bool[2, 3] = reduce any [n < 2, g < 3 | c < 4, p < 10] gt(x[n, g*4 + c, p], f32(0.95))",
    "welford": "m: f32[2, 3], s: f32[2, 3], w: f32[2, 3] = reduce welford [n < 2, g < 3 | c < 4, p < 10]\n"
    "  x[n, g*4 + c, p]",
}
CHANNELS_LAST, CONTIGUOUS = "{120, 1, 12}", ""


def reductions_of(found: Schedule) -> list[tuple[int, ...]]:
    """Returns the sizes of the reduction dims of each reduction."""
    return [tuple(dim.size for dim in d.reduction_dims) for d in found.graph.definitions if isinstance(d, Reduction)]


@pytest.mark.parametrize("combine", REDUCTIONS)
def test_the_neighbours_come_last(combine: str) -> None:
    found = check(f"graph @f(x: f32[2, 12, 10]{CHANNELS_LAST}) -> (s) {{\n{REDUCTIONS[combine]}\n}}", policy=POLICY)
    assert reductions_of(found) == [(10,), (4,)]


def test_all_columns_lie_on_one_axis() -> None:
    found = check(f"graph @f(x: f32[2, 12, 10]{CHANNELS_LAST}) -> (s) {{\n{REDUCTIONS['sum']}\n}}", policy=POLICY)
    (x,) = [axis for axis in kernel_of(found, "s_inner").axes if axis.name == "x"]
    assert x.size == 2 * 12, "of both images, as twelve columns do not fill a tile"


def test_operands_that_lie_along_the_reduction_stay() -> None:
    found = check(f"graph @f(x: f32[2, 12, 10]{CONTIGUOUS}) -> (s) {{\n{REDUCTIONS['sum']}\n}}", policy=POLICY)
    assert reductions_of(found) == [(4, 10)]


def test_small_operands_stay() -> None:
    found = check(f"graph @f(x: f32[2, 12, 10]{CHANNELS_LAST}) -> (s) {{\n{REDUCTIONS['sum']}\n}}")
    assert reductions_of(found) == [(4, 10)]


def test_long_runs_stay() -> None:
    """In the order of memory, as `reduction_order` has them."""
    text = "s: f32[2, 3] = reduce sum [n < 2, g < 3 | c < 32, p < 10] x[n, g*32 + c, p]"
    found = check(f"graph @f(x: f32[2, 96, 10]{{960, 1, 96}}) -> (s) {{\n{text}\n}}", policy=POLICY)
    assert reductions_of(found) == [(10, 32)]
