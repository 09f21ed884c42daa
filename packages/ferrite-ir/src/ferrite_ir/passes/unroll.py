"""Loop unrolling: reductions over small windows, or over few points that lie apart, become expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import ClassVar, TypeAlias

from ferrite_ir.language import index as ix
from ferrite_ir.language import sizes
from ferrite_ir.language.graph import (
    Definition,
    Extern,
    Graph,
    Loop,
    Reduction,
    TensorType,
    domain_of,
    loads_of,
    names_read,
)
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

    So it does with those of a few points that lie apart, where neighbouring results lie side by side (a sum over three
    channels): the elements of a result stay in one lane, which no other has to wait for.

    Neighbouring windows overlap or touch, so a kernel that gives each result to one lane and takes the points of the
    window one after the other reads the same cache lines as its neighbours, and pads nothing to a power of two. A
    reduction whose result is needed at every one of its points again (a softmax over groups) stays: it belongs into one
    kernel with its readers.

    Attributes:
        max_points: largest window that is unrolled.
        max_overlapping_points: the same of windows one step of the window apart, of which a lane may have several
            (thread coarsening): those have most elements in common.
        max_filter_points: the same of a window whose elements are multiplied with a filter, of fewer elements than the
            result: they are read again by many lanes.
        max_apart_points: the same of other reductions, of what lies in memory in rows of results side by side, if no
            other definition reads all of it as well, with which they would share a kernel, and nothing reduces the
            results, for which they might be computed again in each pass over a row. Set.
        min_apart_row: fewest results of such a row. Set: those of a warp.
        max_nodes: largest number of nodes in the expressions that come about.
        max_gap: neighbouring results read elements at most so many steps of the window apart.
        numerics: how bodies are simplified; see `Simplify`.
    """

    name: ClassVar[str] = "unroll"
    max_points: int = 27
    max_overlapping_points: int = 125
    max_filter_points: int = 49
    max_apart_points: int = 8
    min_apart_row: int = 32
    max_nodes: int = 1600
    max_gap: int = 4
    numerics: str = "fast"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with small windows unrolled."""
        if not any(isinstance(definition, Reduction) for definition in graph.definitions):
            return graph
        reach, at_hand = _reading_points(graph), _at_hand(graph)
        simplify = simplifier(self.numerics)

        def change(definition: Definition) -> Definition:
            if isinstance(definition, Reduction) and self._is_small(definition, graph, reach, at_hand):
                return unrolled(definition, simplify)
            return definition

        return with_definitions(graph, [change(definition) for definition in graph.definitions])

    def _is_small(
        self, reduction: Reduction, graph: Graph, reach: dict[str, Size], at_hand: dict[str, list[Definition]]
    ) -> bool:
        points = sizes.product(dim.size for dim in reduction.reduction_dims)
        most = max(self.max_points, self.max_overlapping_points, self.max_filter_points, self.max_apart_points)
        if reduction.combine not in _STEPS or not isinstance(points, int) or not 1 < points <= most:
            return False
        if sum(map(count_nodes, reduction.bodies)) * points > self.max_nodes:
            return False
        if any(not sizes.is_provably_at_most(reach.get(v.name, 0), v.type.numel) for v in reduction.results):
            return False
        loads = [
            load for body in reduction.bodies for load in body.loads if load.dims & frozenset(reduction.reduction_dims)
        ]
        if points <= self.max_apart_points and self._lie_apart(loads, reduction, graph, at_hand):
            return True
        gaps = [_gap(load, reduction, graph.type_of(load.source)) for load in loads]
        others = [load for load, gap in zip(loads, gaps, strict=True) if gap > self.max_gap]
        numel = sizes.hint(reduction.results[0].type.numel)
        are_filters = all(sizes.hint(graph.type_of(load.source).numel) < numel for load in others)
        most = self.max_overlapping_points if max(gaps, default=0) <= 1 else self.max_points
        most = self.max_filter_points if others else most
        return len(others) < len(loads) and are_filters and points <= most

    def _lie_apart(
        self,
        loads: Sequence[Scalar],
        reduction: Reduction,
        graph: Graph,
        at_hand: dict[str, list[Definition]],
    ) -> bool:
        """Returns whether all that a reduction combines is in memory, for itself alone, in rows side by side.

        What is smaller than the result, such as a factor of each channel, may lie anyhow.
        """
        inner = frozenset(reduction.reduction_dims)
        along = frozenset(dim for dim in reduction.dims if sizes.hint(dim.size) >= self.min_apart_row)
        numel = sizes.hint(reduction.results[0].type.numel)
        large = [load for load in loads if sizes.hint(graph.type_of(load.source).numel) >= numel]
        for load in large:
            read = graph.type_of(load.source)
            if load.source not in at_hand or _smallest_step(load.indices, read, along) != 1:
                return False
            if (_smallest_step(load.indices, read, inner) or 1) < self.min_apart_row:
                return False
            if not all(_leaves_alone(each, reduction) for each in at_hand[load.source]):
                return False
        return bool(large) and not _is_reduced(reduction, graph)


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


UNROLLED_COMBINES = frozenset(_STEPS)
"""Combines of reductions that can be unrolled."""


def _gap(load: Scalar, reduction: Reduction, read: TensorType) -> float:
    """Returns how many steps of a window neighbouring results read elements apart, infinity for what is no window.

    In a window a reduction dim and a result dim move along one axis of what is read.
    """
    inner, outer = frozenset(reduction.reduction_dims), frozenset(reduction.dims)
    if not any(index.dims & inner and index.dims & outer for index in load.indices):
        return math.inf
    near = _smallest_step(load.indices, read, outer)
    return math.inf if near is None else near / (_smallest_step(load.indices, read, inner) or 1)


def _reading_points(graph: Graph) -> dict[str, Size]:
    """Returns, for every value that definitions read, the largest number of points at which one of them does."""
    reach: dict[str, Size] = {}
    for definition in graph.definitions:
        points = sizes.product(dim.size for dims in domain_of(definition) for dim in dims)
        for load in loads_of(definition):
            if not sizes.is_provably_at_most(points, reach.get(load.source, 0)):
                reach[load.source] = points
    return reach


def _at_hand(graph: Graph) -> dict[str, list[Definition]]:
    """Returns the definitions that read each value which no kernel makes: inputs, and results of extern calls."""
    called = {v.name for each in graph.definitions if isinstance(each, Extern) for v in each.results if v is not None}
    readers: dict[str, list[Definition]] = {name: [] for name in called.union(value.name for value in graph.inputs)}
    for definition in graph.definitions:
        for name in {load.source for load in loads_of(definition)} & readers.keys():
            readers[name].append(definition)
    return readers


def _leaves_alone(reader: Definition, reduction: Reduction) -> bool:
    """Returns whether a kernel of both, which would load what they read once, is none to wait for with a reduction."""
    mine, theirs = domain_of(reduction), domain_of(reader)
    if isinstance(reader, Reduction) and [dim.size for dim in mine[1]] == [dim.size for dim in theirs[1]]:
        return reader.combine in _STEPS
    points, others = (sizes.hint(sizes.product(dim.size for dims in each for dim in dims)) for each in (mine, theirs))
    return others < points


def _is_reduced(reduction: Reduction, graph: Graph) -> bool:
    """Returns whether the results of a reduction, or what loops make of them, are operands of more than loops."""
    names = {value.name for value in reduction.results}
    for definition in graph.definitions[graph.definitions.index(reduction) + 1 :]:
        if names.isdisjoint(names_read(definition)):
            continue
        if isinstance(definition, Loop):
            names.update(value.name for value in definition.results)
        elif not isinstance(definition, Extern):
            return True
    return False


def _smallest_step(indices: tuple[Index, ...], read: TensorType, dims: frozenset[Dim]) -> int | None:
    """Returns the fewest elements between what neighbouring points along one of the dims read, None if unknown."""
    steps = [
        abs(stride * coefficient)
        for index, stride in zip(indices, read.strides, strict=True)
        for atom, coefficient in index.terms
        if isinstance(stride, int) and isinstance(coefficient, int) and atom_dims(atom) & dims
    ]
    return min((step for step in steps if step), default=None)
