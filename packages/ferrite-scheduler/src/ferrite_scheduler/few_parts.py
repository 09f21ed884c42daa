"""A few partial states that another fold reads are combined by its reader, not by a kernel between the two.

A group norm of channels-last images folds places first, in parts, then parts, then the channels of a group. With as few
parts as there mostly are, whoever reads the states of a channel can as well combine them for itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrite_ir.graph import Fold, Graph, Loop, View, names_read
from ferrite_ir.index import Dim, Index, constant
from ferrite_ir.passes.simplify import simplifier
from ferrite_ir.passes.unroll import unrolled
from ferrite_ir.scalar import Scalar, apply, const, substitute_dims

FEW_PARTS = 8
"""Most parts that are written out."""
WRITTEN_OUT = ("sum", "prod", "max", "min", "any", "all", "welford")


def states_of_folds(graph: Graph) -> frozenset[str]:
    """Returns the values that nothing reads but folds that combine them as they are."""
    combined: set[str] = set()
    others = {output.name for output in graph.outputs if isinstance(output, View)}
    others.update(value for _, value in graph.mutations)
    for definition in graph.definitions:
        whole = isinstance(definition, Fold) and all(body.op == "load" for body in definition.bodies)
        (combined if whole else others).update(names_read(definition))
    return frozenset(combined - others)


def written_out(second: Fold) -> Loop:
    """Returns the second stage of a split fold as the loop that combines the states of all parts.

    Args:
        second: a fold of states over one dim, by one of the combines `WRITTEN_OUT`.
    """
    if second.combine != "welford":
        return unrolled(second, simplifier("rounding"))
    (part,) = second.fold_dims
    places: list[dict[Dim, Index]] = [{part: constant(number)} for number in range(int(part.size))]
    states = [tuple(substitute_dims(body, place) for body in second.bodies) for place in places]
    return Loop(second.results, second.dims, _union(states), second.origins)


def _union(states: Sequence[Sequence[Scalar]]) -> tuple[Scalar, Scalar, Scalar]:
    """Returns mean, sum of squared deviations and weight of a union.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    """
    dtype = states[0][0].dtype
    weight = _sum([weight for _, _, weight in states])
    empty = apply("eq", weight, const(0, dtype))
    divisor = apply("where", empty, const(1, dtype), weight)
    mean = apply("div", _sum([apply("mul", middle, w) for middle, _, w in states]), divisor)
    squares = []
    for middle, m2, w in states:
        delta = apply("sub", middle, mean)
        squares.append(apply("add", m2, apply("mul", w, apply("mul", delta, delta))))
    return mean, _sum(squares), weight


def _sum(terms: Sequence[Scalar]) -> Scalar:
    total = terms[0]
    for term in terms[1:]:
        total = apply("add", total, term)
    return total
