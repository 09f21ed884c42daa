"""Applies rewriting rules to expressions and definitions, each node once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ferrite_ir.language.combine_functions import CombineFunction
from ferrite_ir.language.graph import Attend, Contract, Definition, Graph, Loop, Reduction, Scan, Sort, Update
from ferrite_ir.language.index import Index
from ferrite_ir.language.index_substitution import with_indirects
from ferrite_ir.language.scalar import Scalar, index_value, load, rebuilt, unsettled
from ferrite_ir.passes.rules.indices import settled_indirect
from ferrite_ir.passes.rules.rule import Rewrite, Rule, index_rules


class Rewriter:
    """Rewrites expressions bottom-up until no rule applies at any node, also inside indirect indices.

    The result of a node depends on the node alone, so one rewriter can serve many graphs; it remembers every node it
    has seen.
    """

    __slots__ = ("_candidates", "_fallback", "_memo")

    def __init__(self, rules: Iterable[Rule], fallback: Rewrite | None = None) -> None:
        self._candidates = index_rules(rules)
        self._fallback = fallback  # tried last, on nodes whose first operand is a constant
        self._memo: dict[Scalar, Scalar] = {}

    def __call__(self, root: Scalar) -> Scalar:
        """Returns the expression in simplest form."""
        memo = self._memo
        found = memo.get(root)
        if found is not None:
            return found
        for node in unsettled(root, memo):
            if node.op in ("load", "index", "const"):
                memo[node] = self._settle_leaf(node) if node.below else node
            else:
                args = node.args
                new = tuple([memo[arg] for arg in args])
                memo[node] = self._settle(node if new == args else rebuilt(node, new))
        return memo[root]

    def index(self, index: Index) -> Index:
        """Returns an index whose indirect parts are in simplest form."""
        return with_indirects(index, lambda part: settled_indirect(self(part.value), part.size, wraps=part.wraps))

    def _settle_leaf(self, node: Scalar) -> Scalar:
        indices = [self.index(index) for index in node.indices]
        new = load(node.source, indices, node.dtype) if node.op == "load" else index_value(indices[0], node.dtype)
        self._memo[new] = new
        return new

    def _settle(self, node: Scalar) -> Scalar:
        """Returns what a node with simplified operands becomes."""
        new = self._step(node)
        if new is None:
            self._memo[node] = node
            return node
        return self._memo.get(new) or self(new)

    def _step(self, node: Scalar) -> Scalar | None:
        candidates = self._candidates.get(node.op)
        if candidates is not None:
            for rewrite in candidates.always:
                new = rewrite(node)
                if new is not None:
                    return new
            args = node.args
            for rewrite in candidates.first.get(args[0].op, ()):
                new = rewrite(node)
                if new is not None:
                    return new
            if candidates.second and len(args) > 1:
                for rewrite in candidates.second.get(args[1].op, ()):
                    new = rewrite(node)
                    if new is not None:
                        return new
        is_constant = self._fallback is not None and node.args[0].op == "const"
        return self._fallback(node) if is_constant else None  # type: ignore[misc]


def map_functions(definition: Definition, change: Callable[[Scalar], Scalar]) -> Definition:
    """Returns the definition with the expressions of a user's combine changed, which `map_scalars` leaves alone.

    Their loads are components of states, whatever values of the graph are called.
    """
    if not isinstance(definition, Scan) or not isinstance(definition.combine, CombineFunction):
        return definition
    bodies = tuple([change(body) for body in definition.combine.bodies])
    changed = bodies != definition.combine.bodies
    return replace(definition, combine=CombineFunction(bodies)) if changed else definition


def map_scalars(
    definition: Definition, change: Callable[[Scalar], Scalar], change_index: Callable[[Index], Index]
) -> Definition:
    """Returns the definition with its expressions and the indices of an update changed.

    The same object if nothing changes.
    """
    match definition:
        case Loop():
            bodies = tuple([change(body) for body in definition.bodies])
            return (
                definition
                if bodies == definition.bodies
                else Loop(definition.results, definition.dims, bodies, definition.origins)
            )
        case Reduction() | Scan():
            bodies = tuple([change(body) for body in definition.bodies])
            return definition if bodies == definition.bodies else replace(definition, bodies=bodies)
        case Sort():
            body = change(definition.body)
            return definition if body is definition.body else replace(definition, body=body)
        case Contract() | Attend():
            return definition.with_bodies(tuple([change(body) for body in definition.bodies]))
        case Update():
            return _map_update(definition, change, change_index)
    return definition


def _map_update(update: Update, change: Callable[[Scalar], Scalar], change_index: Callable[[Index], Index]) -> Update:
    indices = tuple([change_index(index) for index in update.indices])
    body = change(update.body)
    condition = None if update.condition is None else change(update.condition)
    if (indices, body, condition) == (update.indices, update.body, update.condition):
        return update
    return replace(update, indices=indices, body=body, condition=condition)


def with_definitions(graph: Graph, definitions: Iterable[Definition]) -> Graph:
    """Returns the graph with other definitions; the same object if they are the same objects."""
    new = tuple(definitions)
    if len(new) == len(graph.definitions) and all(map(_is_same, new, graph.definitions)):
        return graph
    return Graph(graph.name, graph.inputs, new, graph.outputs, graph.mutations, graph.device, graph.sizes)


def _is_same(a: Definition, b: Definition) -> bool:
    return a is b
