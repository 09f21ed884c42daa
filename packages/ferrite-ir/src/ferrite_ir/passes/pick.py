"""One-hot sums: a sum of which at most one point is not zero becomes that point, which is loaded by its index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ferrite_ir.language.dtypes import BOOL
from ferrite_ir.language.graph import Definition, Graph, Loop, Reduction
from ferrite_ir.language.index import Dim, constant
from ferrite_ir.language.scalar import Scalar, apply, const, index_value, postorder, rewrite

from .inline import Inline
from .rewriting import with_definitions
from .simplify import simplifier


@dataclass(frozen=True, slots=True)
class Pick:
    """Turns sums of one-hot rows into a choice: ``sum_r where(k == r, a, 0) * b`` is ``a * b`` if ``0 <= k < size``.

    That is what the gradient of a loss over class labels sums up. It stays the same sum as long as the other factors
    are finite: a zero times them is taken for zero, as it is in a library that never multiplies them.

    Attributes:
        numerics: ``"fast"``, or ``"rounding"``, which keeps every bit and so does nothing here; see `Simplify`.
    """

    name: ClassVar[str] = "pick"
    numerics: str = "fast"

    def run(self, graph: Graph) -> Graph:
        """Returns the graph with such sums replaced, and their values moved to where they are read."""
        if self.numerics != "fast":
            return graph
        definitions = [self._changed(definition) for definition in graph.definitions]
        if all(new is old for new, old in zip(definitions, graph.definitions, strict=True)):
            return graph
        return Inline(numerics=self.numerics).run(with_definitions(graph, definitions))

    def _changed(self, definition: Definition) -> Definition:
        if not isinstance(definition, Reduction) or definition.combine != "sum":
            return definition
        (body,) = definition.bodies
        wide = [dim for dim in definition.reduction_dims if dim.size != 1]
        if len(wide) != 1:
            return definition
        hit = _only_test(body, wide[0])
        if hit is None or not _is_zero_without(body, hit):
            return definition
        chosen = simplifier(self.numerics)(rewrite(body, lambda node: node, {hit: const(True, BOOL)}))
        if chosen.dims & frozenset(definition.reduction_dims):
            return definition
        bodies = (apply("where", _is_inside(hit, wide[0]), chosen, const(0, chosen.dtype)),)
        return Loop(definition.results, definition.dims, bodies, definition.origins)


def _only_test(body: Scalar, dim: Dim) -> Scalar | None:
    """Returns the comparison of ``dim`` with something that does not depend on it, if there is exactly one."""
    found = [node for node in postorder((body,)) if node.op == "eq" and _key_of(node, dim) is not None]
    return found[0] if len(found) == 1 else None


def _key_of(node: Scalar, dim: Dim) -> Scalar | None:
    """Returns what an ``eq`` compares a dim with, or None if that is not what it does."""
    for position, key in (node.args, node.args[::-1]):
        if position.op == "index" and position.args[0] == dim.index and dim not in key.dims and key.dtype.bits >= 32:
            return key  # type: ignore[no-any-return]
    return None


def _is_zero_without(body: Scalar, hit: Scalar) -> bool:
    """Returns whether the body vanishes wherever the comparison does not hold."""
    zeros: set[Scalar] = set()
    for node in postorder((body,)):
        args = node.args
        match node.op:
            case "const":
                vanishes = node.value == 0
            case "where" | "masked":
                vanishes = args[2] in zeros and (args[0] is hit or args[1] in zeros)
            case "mul":
                vanishes = args[0] in zeros or args[1] in zeros
            case "add" | "sub":
                vanishes = args[0] in zeros and args[1] in zeros
            case "neg" | "cast" | "rounded" | "div":
                vanishes = args[0] in zeros
            case _:
                vanishes = False
        if vanishes:
            zeros.add(node)
    return body in zeros


def _is_inside(hit: Scalar, dim: Dim) -> Scalar:
    """Returns whether what a dim is compared with is a position along it."""
    key = _key_of(hit, dim)
    assert key is not None, "the comparison was found by its key"
    low, high = const(0, key.dtype), index_value(constant(dim.size), key.dtype)
    return apply("bitand", apply("ge", key, low), apply("lt", key, high))
