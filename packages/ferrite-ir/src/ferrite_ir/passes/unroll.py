"""Writes small window reductions out as expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import ClassVar, TypeAlias

from ferrite_ir.language import index as ix
from ferrite_ir.language import sizes
from ferrite_ir.language.graph import Definition, Graph, Loop, Reduction, TensorType, domain_of, loads_of
from ferrite_ir.language.index import Dim, Index, atom_dims
from ferrite_ir.language.scalar import Scalar, apply, substitute_dims
from ferrite_ir.language.sizes import Size

from .costs import count_nodes
from .rewriting import Rewriter, with_definitions
from .simplify import simplifier

State: TypeAlias = tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Unroll:
    """Turns reductions over small windows (pooling, resampling, depthwise convolutions) into pointwise definitions.

    Neighbouring windows overlap or touch, so a kernel that gives each result to one lane and takes the points of the
    window one after the other reads the same cache lines as its neighbours, and pads nothing to a power of two. A
    reduction whose result is needed at every one of its points again (a softmax over groups) stays: it belongs into one
    kernel with its readers.

    Attributes:
        max_points: largest window that is unrolled.
        max_filter_points: the same of a window whose elements are multiplied with a filter, of fewer elements than the
            result: they are read again by many lanes.
        max_nodes: largest number of nodes in the expressions that come about.
        max_gap: neighbouring results read elements at most so many steps of the window apart.
        numerics: how bodies are simplified; see `Simplify`.
    """

    name: ClassVar[str] = "unroll"
    max_points: int = 16
    max_filter_points: int = 49
    max_nodes: int = 1600
    max_gap: int = 4
    numerics: str = "fast"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with small windows unrolled."""
        if not any(isinstance(definition, Reduction) for definition in graph.definitions):
            return graph
        reach = _reading_points(graph)
        simplify = simplifier(self.numerics)

        def change(definition: Definition) -> Definition:
            if isinstance(definition, Reduction) and self._is_small_window(definition, graph, reach):
                return unrolled(definition, simplify)
            return definition

        return with_definitions(graph, [change(definition) for definition in graph.definitions])

    def _is_small_window(self, reduction: Reduction, graph: Graph, reach: dict[str, Size]) -> bool:
        points = sizes.product(dim.size for dim in reduction.reduction_dims)
        most = max(self.max_points, self.max_filter_points)
        if reduction.combine not in _STEPS or not isinstance(points, int) or not 1 < points <= most:
            return False
        if sum(map(count_nodes, reduction.bodies)) * points > self.max_nodes:
            return False
        if any(not sizes.is_provably_at_most(reach.get(v.name, 0), v.type.numel) for v in reduction.results):
            return False
        loads = [
            load for body in reduction.bodies for load in body.loads if load.dims & frozenset(reduction.reduction_dims)
        ]
        others = [load for load in loads if not self._is_window(load, reduction, graph.type_of(load.source))]
        numel = sizes.hint(reduction.results[0].type.numel)
        are_filters = all(sizes.hint(graph.type_of(load.source).numel) < numel for load in others)
        most = self.max_filter_points if others else self.max_points
        return len(others) < len(loads) and are_filters and points <= most

    def _is_window(self, load: Scalar, reduction: Reduction, read: TensorType) -> bool:
        """Returns whether a reduction dim and a result dim move along one axis of what is read, in comparable steps."""
        inner, outer = frozenset(reduction.reduction_dims), frozenset(reduction.dims)
        if not any(index.dims & inner and index.dims & outer for index in load.indices):
            return False
        near = _smallest_step(load.indices, read, outer)
        return near is not None and near <= self.max_gap * (_smallest_step(load.indices, read, inner) or 1)


def unrolled(reduction: Reduction, simplify: Rewriter) -> Loop:
    """Returns the loop whose bodies combine the operands at all points of a reduction, in order.

    The reduction's dims have integer sizes, and its combine is one that `Unroll` knows.
    """
    states = [tuple(simplify(body) for body in point) for point in _points_of(reduction)]
    step = _STEPS[reduction.combine]
    state = states[0]
    for _, other in pairwise(states):
        state = tuple(map(simplify, step(state, other)))
    return Loop(reduction.results, reduction.dims, state, reduction.origins)


def _points_of(reduction: Reduction) -> Iterator[State]:
    """Yields the operands at every point of the reduction dims, last dim fastest."""
    for position in product(*(range(int(dim.size)) for dim in reduction.reduction_dims)):
        mapping: dict[Dim, Index] = {
            d: ix.constant(at) for d, at in zip(reduction.reduction_dims, position, strict=True)
        }
        memo: dict[Scalar, Scalar] = {}
        yield tuple(substitute_dims(body, mapping, memo) for body in reduction.bodies)


def _each(op: str) -> Callable[[State, State], State]:
    return lambda a, b: (apply(op, a[0], b[0]),)


def _extreme(keep: str, beats: str) -> Callable[[State, State], State]:
    """Returns the step of argmax or argmin: NaN wins, ties go to the lowest index.

    The value does not hang on the index, so that it costs one operation where nobody asks for the index.
    """

    def step(a: State, b: State) -> State:
        (value, index), (other, position) = a, b
        wins = apply(beats, other, value)
        ties = apply("eq", other, value)
        if value.dtype.is_float:
            a_is_nan, b_is_nan = (apply("ne", x, x) for x in (value, other))
            both = apply("bitand", a_is_nan, b_is_nan)
            wins = apply("bitor", wins, apply("bitand", b_is_nan, apply("logical_not", a_is_nan)))
            ties = apply("bitor", ties, both)
        wins = apply("bitor", wins, apply("bitand", ties, apply("lt", position, index)))
        return apply(keep, value, other), apply("where", wins, position, index)

    return step


_STEPS: dict[str, Callable[[State, State], State]] = {
    "sum": _each("add"),
    "prod": _each("mul"),
    "max": _each("maximum"),
    "min": _each("minimum"),
    "any": _each("bitor"),
    "all": _each("bitand"),
    "argmax": _extreme("maximum", "gt"),
    "argmin": _extreme("minimum", "lt"),
}


def _reading_points(graph: Graph) -> dict[str, Size]:
    """Returns, for every value that definitions read, the largest number of points at which one of them does."""
    reach: dict[str, Size] = {}
    for definition in graph.definitions:
        points = sizes.product(dim.size for dims in domain_of(definition) for dim in dims)
        for load in loads_of(definition):
            if not sizes.is_provably_at_most(points, reach.get(load.source, 0)):
                reach[load.source] = points
    return reach


def _smallest_step(indices: tuple[Index, ...], read: TensorType, dims: frozenset[Dim]) -> int | None:
    """Returns the fewest elements between what neighbouring points along one of the dims read, None if unknown."""
    steps = [
        abs(stride * coefficient)
        for index, stride in zip(indices, read.strides, strict=True)
        for atom, coefficient in index.terms
        if isinstance(stride, int) and isinstance(coefficient, int) and atom_dims(atom) & dims
    ]
    return min((step for step in steps if step), default=None)
