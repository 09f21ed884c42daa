"""Reduction dims in the order of memory: what is cut into parts of points that follow one another lies together.

A group norm of channels-last images reduces channels, then positions, as the program has it. Parts of that order are
few channels of all positions, each in another line of memory; parts of the order of memory are whole lines.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ferrite_ir.language.graph import Definition, Graph, Reduction
from ferrite_ir.language.sizes import is_static
from ferrite_scheduler.analysis.nodes import Node, Touch, make_node
from ferrite_scheduler.model.policy import Policy

from .merged_partials import ANY_ORDER
from .split_plans import Domain, domain_of


def order_by_memory(graph: Graph, policy: Policy) -> Graph:
    """Returns the graph with reduction dims from the outermost in memory to the innermost; itself where all are so.

    Of reductions over equal dims the one that reads most decides. Those that tell points apart by their order, such as
    the position of a maximum, keep it, and with it all that are over equal dims.
    """
    orders = _orders(graph, policy)
    if not orders:
        return graph
    return replace(graph, definitions=tuple(_ordered(definition, orders) for definition in graph.definitions))


def _ordered(definition: Definition, orders: dict[Domain, tuple[int, ...]]) -> Definition:
    if not isinstance(definition, Reduction) or domain_of(definition) not in orders:
        return definition
    dims = definition.reduction_dims
    return replace(definition, reduction_dims=tuple(dims[position] for position in orders[domain_of(definition)]))


def _orders(graph: Graph, policy: Policy) -> dict[Domain, tuple[int, ...]]:
    """Returns the order of the dims of each domain in which another one than that of the program is to be taken."""
    types = {name: value.type for name, value in graph.values.items()}
    heaviest: dict[Domain, tuple[int, tuple[int, ...]]] = {}
    kept: set[Domain] = set()
    for definition in graph.definitions:
        if not isinstance(definition, Reduction) or len(definition.reduction_dims) < 2:
            continue
        domain = domain_of(definition)
        if definition.combine not in ANY_ORDER or not all(is_static(size) for size in domain[1]):
            kept.add(domain)
        elif domain not in kept:
            node = make_node(0, definition, types, {})
            read = max((touch.bytes for touch in node.loads), default=0)
            if node.reduction >= policy.split_minimum and read > heaviest.get(domain, (0, ()))[0]:
                # Where operands that are alike lie in different orders that of the program is as good as any.
                orders = {_memory_order(definition, node, touch) for touch in node.loads if touch.bytes == read}
                as_it_is = tuple(range(len(definition.reduction_dims)))
                heaviest[domain] = (read, as_it_is if as_it_is in orders else min(orders))
    return {
        domain: order
        for domain, (_, order) in heaviest.items()
        if domain not in kept and order != tuple(range(len(order)))
    }


def _memory_order(reduction: Reduction, node: Node, touch: Touch) -> tuple[int, ...]:
    """Returns positions of the reduction dims by how far apart an operand has their points, farthest first.

    Dims that it does not go along, or not by steps that are known, count as farthest.
    """
    apart: list[float] = []
    for dim in reduction.reduction_dims:
        first = node.steps.get(dim)
        points = range(first, first * int(dim.size)) if first is not None else range(0)
        apart.append(
            min((abs(factor) for step, _, factor in touch.known if factor and step in points), default=math.inf)
        )
    return tuple(sorted(range(len(apart)), key=lambda position: -apart[position]))
