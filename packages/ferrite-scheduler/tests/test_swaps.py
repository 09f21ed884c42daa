"""Neighbours in the order of execution are swapped where fewer bytes are alive at once while the two run."""

from __future__ import annotations

from ferrite_ir import parse_graph
from ferrite_scheduler import Target, schedule
from ferrite_scheduler.fusion.execution_order import Trace, with_swaps
from ferrite_scheduler.memory.footprint import footprint
from ferrite_scheduler.model.schedule import CallExtern

# A layer's gradients: that of its input is as large as its activations, that of its weight is the last to read these.
BACKWARD = """
graph @f(e: f32[64, 8], a: f32[64, 512], w: f32[512, 8], u: f32[8, 512]) -> (dx, dw) {
  da: f32[64, 512] = extern aten.mm.default(e, u)
  dw: f32[8, 512]  = extern aten.mm.default(e as f32[8, 64]{1, 8}, a)
  dx: f32[64, 8]   = extern aten.mm.default(da, w)
}"""


def trace(made: str, touched: str) -> Trace:
    return Trace(frozenset(made), frozenset(made + touched))


def test_the_gradient_of_a_weight_comes_before_that_of_the_input() -> None:
    found = schedule(parse_graph(BACKWARD), Target())
    order = [step.results[0] for step in found.steps if isinstance(step, CallExtern)]
    assert order == ["dw", "da", "dx"]
    assert footprint(found).peak < 2 * 64 * 512 * 4


def test_what_frees_more_than_it_makes_goes_first() -> None:
    sizes = {"a": 10, "b": 10, "c": 1}
    traces = {0: trace("a", ""), 1: trace("b", ""), 2: trace("c", "a"), 3: trace("", "bc")}
    after = {0: [2], 1: [3], 2: [3], 3: []}
    assert with_swaps([0, 1, 2, 3], after, traces, sizes) == [0, 2, 1, 3]
    assert with_swaps([0, 1, 2, 3], {**after, 1: [2, 3]}, traces, sizes) == [0, 1, 2, 3]


def test_what_another_one_reads_later_is_not_counted_as_freed() -> None:
    sizes = {"a": 10, "b": 10, "c": 1}
    traces = {0: trace("a", ""), 1: trace("b", ""), 2: trace("c", "a"), 3: trace("", "abc")}
    assert with_swaps([0, 1, 2, 3], {0: [2, 3], 1: [3], 2: [3], 3: []}, traces, sizes) == [0, 1, 2, 3]
