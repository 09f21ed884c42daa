"""What every schedule must satisfy: it computes what its graph means, whatever the order of grid points."""

from __future__ import annotations

from random import Random

from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Graph
from ferrite_ir.reference.evaluator import evaluate
from ferrite_ir.reference.tensors import filled
from ferrite_scheduler import Policy, Schedule, Target, schedule
from ferrite_scheduler.model.target import DEFAULT_TARGET
from ferrite_scheduler.simulation.simulator import simulate

EAGER_TO_SPLIT = Target(name="slow memory", bandwidth=1e6)
"""A machine on which a second kernel costs nothing beside the traffic."""

APART = Policy(mixed_combos=False)
"""Kernels as fusion leaves them, each with a launch of its own."""

CHAIN = """
graph @chain(x: f32[4]) -> (d) {
  a: f32[4] = loop [i < 4] exp(x[i])
  b: f32[4] = extern aten.clone.default(a)
  c: f32[4] = loop [i < 4] neg(b[i])
  d: f32[4] = extern aten.clone.default(c)
}"""
"""Kernels and extern calls by turns."""


def _zeros(shape: tuple[int, ...], **_: object) -> list:
    return [_zeros(shape[1:]) for _ in range(shape[0])] if shape else 0


LIBRARY = {"aten.zeros.default": _zeros}
"""Calls that the scheduler adds."""


def generated_inputs(graph: Graph, seed: int = 0) -> list:
    """Returns nested lists of small numbers that fit a graph; integers lie in 0..3."""
    rng = Random(seed)

    def fill(shape, dtype):
        if not shape:
            return rng.randrange(4) if dtype.is_integer else round(rng.uniform(-1, 1), 3)
        return [fill(shape[1:], dtype) for _ in range(shape[0])]

    return [fill(value.type.shape, value.type.dtype) for value in graph.inputs]


def agrees(a, b, tolerance: float = 1e-4) -> bool:
    """Returns whether nested results agree; the order of summation may differ."""
    if isinstance(a, list):
        return len(a) == len(b) and all(agrees(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b
    return a == b or (a != a and b != b) or abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


def check(
    graph: Graph | str, target: Target = DEFAULT_TARGET, policy: Policy = APART, inputs: list | None = None
) -> Schedule:
    """Returns the schedule of a graph after running it, grid points forwards and backwards, next to the evaluator."""
    graph = parse_graph(graph) if isinstance(graph, str) else graph
    given = generated_inputs(graph) if inputs is None else inputs

    def tensors():
        types = [value.type for value in graph.inputs]
        return [filled(item, t.dtype, t.shape, t.strides) for item, t in zip(given, types, strict=True)]

    expected_inputs = tensors()
    expected = evaluate(graph, expected_inputs) + [tensor.nested() for tensor in expected_inputs]
    found = schedule(graph, target, policy)
    for backwards in (False, True):
        real = tensors()
        got = simulate(found, real, backwards=backwards, externs=LIBRARY) + [tensor.nested() for tensor in real]
        assert agrees(expected, got), f"{found}\nexpected {expected}\ngot {got}"
    return found


def refusal(found: Schedule, first: str, second: str) -> str:
    """Returns the rule that kept two definitions from being fused; what they share a launch by is another question."""
    pairs = [d for d in found.decisions if {d.first, d.second} == {first, second} and not d.fused]
    rules = [d.rule for d in pairs if not d.rule.startswith("C")]
    assert rules, f"no refusal of {first} and {second} in\n" + "\n".join(map(str, found.decisions))
    return rules[-1]


def kernel_of(found: Schedule, name: str):
    """Returns the kernel that makes a value."""
    return next(kernel for kernel in found.kernels if name in kernel.homes)
