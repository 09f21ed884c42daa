"""Writes folds over small windows and over short rows out as expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from typing import ClassVar, TypeAlias

from ferrite_ir import index as ix
from ferrite_ir import sizes
from ferrite_ir.graph import Definition, Fold, Graph, Loop, TensorType
from ferrite_ir.index import Dim, Index
from ferrite_ir.scalar import Scalar, apply, const, is_constant, substitute_dims
from ferrite_ir.sizes import Size

from .costs import count_nodes
from .readings import reading_points, smallest_step
from .rewriting import Rewriter, with_definitions
from .short_rows import short_rows
from .simplify import simplifier

State: TypeAlias = tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Unroll:
    """Turns folds over small windows (pooling, resampling) and short rows into pointwise definitions.

    Neighbouring windows overlap or touch, so a kernel that gives each result to one lane and takes the points of the
    window one after the other reads the same cache lines as its neighbours, and pads nothing to a power of two. The
    same goes for short rows that a tile cannot hold without padding, nor read several elements at a time; see
    `short_rows`. A fold whose result is needed at every one of its points again (a softmax over groups) stays: it
    belongs into one kernel with its readers.

    Attributes:
        max_points: largest window that is written out.
        max_row: longest row.
        max_nodes: largest number of nodes in the expressions that come about.
        max_gap: neighbouring results read elements at most so many steps of the window apart.
        numerics: how bodies are simplified; see `Simplify`.
    """

    name: ClassVar[str] = "unroll"
    max_points: int = 16
    max_row: int = 48
    max_nodes: int = 800
    max_gap: int = 4
    numerics: str = "fast"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with small windows and short rows written out."""
        folds = [fold for fold in graph.definitions if isinstance(fold, Fold)]
        if not folds:
            return graph
        reach = reading_points(graph.definitions)
        chosen = {id(fold) for fold in folds if self._is_small_window(fold, graph, reach)}
        short = (fold for fold in folds if self._is_small(fold, self.max_row))
        chosen |= {id(fold) for fold in short_rows(graph, short)}
        simplify = simplifier(self.numerics)

        def change(definition: Definition) -> Definition:
            if isinstance(definition, Fold) and id(definition) in chosen:
                return unrolled(definition, simplify)
            return definition

        return with_definitions(graph, [change(definition) for definition in graph.definitions])

    def _is_small(self, fold: Fold, most: int) -> bool:
        """Returns whether a fold of ``most`` points can be written out in few nodes."""
        points = sizes.product(dim.size for dim in fold.fold_dims)
        is_known = fold.combine in _STEPS or (fold.combine == "welford" and len(fold.bodies) == 1)
        if not is_known or not isinstance(points, int) or not 1 < points <= most:
            return False
        return sum(map(count_nodes, fold.bodies)) * points <= self.max_nodes

    def _is_small_window(self, fold: Fold, graph: Graph, reach: dict[str, Size]) -> bool:
        if not self._is_small(fold, self.max_points):
            return False
        if any(not sizes.is_provably_at_most(reach.get(v.name, 0), v.type.numel) for v in fold.results):
            return False
        loads = [load for body in fold.bodies for load in body.loads if load.dims & frozenset(fold.fold_dims)]
        return bool(loads) and all(self._is_window(load, fold, graph.type_of(load.source)) for load in loads)

    def _is_window(self, load: Scalar, fold: Fold, read: TensorType) -> bool:
        """Returns whether a fold dim and a result dim move along one axis of what is read, in comparable steps."""
        inner, outer = frozenset(fold.fold_dims), frozenset(fold.dims)
        if not any(index.dims & inner and index.dims & outer for index in load.indices):
            return False
        near = smallest_step(load.indices, read, outer)
        return near is not None and near <= self.max_gap * (smallest_step(load.indices, read, inner) or 1)


def unrolled(fold: Fold, simplify: Rewriter) -> Loop:
    """Returns the loop whose bodies combine the operands at all points of a fold, in order.

    The fold's dims have integer sizes, and its combine is one that `Unroll` knows.
    """
    states = [tuple(simplify(body) for body in point) for point in _points_of(fold)]
    if fold.combine == "welford":
        moments = tuple(map(simplify, _moments([value for (value,) in states])))
        return Loop(fold.results, fold.dims, moments, fold.origins)
    ascend = len(states[0]) == 2 and _ascend([place for _, place in states])
    step = (_FIRST if ascend else _STEPS)[fold.combine]
    state = states[0]
    for _, other in pairwise(states):
        state = tuple(map(simplify, step(state, other)))
    return Loop(fold.results, fold.dims, state, fold.origins)


def _moments(values: list[Scalar]) -> State:
    """Returns the mean of values, the sum of their squared distances from it, and how many they are."""
    count = const(float(len(values)), values[0].dtype)
    mean = apply("div", _sum(values), count)
    away = [apply("sub", value, mean) for value in values]
    return mean, _sum([apply("mul", distance, distance) for distance in away]), count


def _sum(values: list[Scalar]) -> Scalar:
    return reduce(lambda total, value: apply("add", total, value), values)


def _points_of(fold: Fold) -> Iterator[State]:
    """Yields the operands at every point of the fold dims, last dim fastest."""
    for place in product(*(range(int(dim.size)) for dim in fold.fold_dims)):
        mapping: dict[Dim, Index] = {d: ix.constant(at) for d, at in zip(fold.fold_dims, place, strict=True)}
        memo: dict[Scalar, Scalar] = {}
        yield tuple(substitute_dims(body, mapping, memo) for body in fold.bodies)


def _each(op: str) -> Callable[[State, State], State]:
    return lambda a, b: (apply(op, a[0], b[0]),)


def _ascend(places: list[Scalar]) -> bool:
    """Returns whether indices are numbers, each larger than the one before."""
    return all(map(is_constant, places)) and all(a.value < b.value for a, b in pairwise(places))


def _extreme(keep: str, beats: str, *, ascend: bool = False) -> Callable[[State, State], State]:
    """Returns the step of argmax or argmin: NaN wins, ties go to the lowest index, the first one if they ``ascend``.

    The value does not hang on the index, so that it costs one operation where nobody asks for the index.
    """

    def step(a: State, b: State) -> State:
        (value, index), (other, place) = a, b
        wins = apply(beats, other, value)
        ties = apply("eq", other, value)
        if value.dtype.is_float:
            a_is_nan, b_is_nan = (apply("ne", x, x) for x in (value, other))
            both = apply("bitand", a_is_nan, b_is_nan)
            wins = apply("bitor", wins, apply("bitand", b_is_nan, apply("logical_not", a_is_nan)))
            ties = apply("bitor", ties, both)
        if not ascend:
            wins = apply("bitor", wins, apply("bitand", ties, apply("lt", place, index)))
        return apply(keep, value, other), apply("where", wins, place, index)

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
_FIRST = {"argmax": _extreme("maximum", "gt", ascend=True), "argmin": _extreme("minimum", "lt", ascend=True)}
